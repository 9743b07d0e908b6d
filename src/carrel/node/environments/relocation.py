"""Environments of a home that has another path: virtual environments hold their own path in many files.

Left as they are, `pip` in a copied environment would be a script whose first line names the original's interpreter, and would
install into the original.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from carrel.core.spool.foreign import read_regular
from carrel.core.spool.trees import remove_tree
from carrel.node.environments.named.records import Layout as NamedLayout
from carrel.node.environments.records import Layout

#: No script is larger; a program that is compiled has zero bytes in it, and is left alone.
_LARGEST = 1024**2


def relocate(root: Path, before: Path) -> None:
    """Make the environments below `root` their own again, which were below `before`. Nobody may be using them. Again is harmless.

    Those of tasks go: they are built from their locks when they are needed. Named ones stay, and get their new paths.
    """
    if root.is_symlink():  # they lie elsewhere, and have not moved
        return
    layout = Layout(root)
    if layout.environments.is_dir():
        remove_tree(layout.environments)
    old, new = os.fsencode(before) + b"/", os.fsencode(root) + b"/"
    for place, _record in NamedLayout(root / "named").everything():
        for prefix in place.generations():
            for path in _files(prefix):
                # Its owner may have put links to others' directories there.
                if Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(prefix)):
                    _rewrite(path, old, new)


def _files(prefix: Path) -> Iterator[Path]:
    """Yield the files in which a virtual environment may hold its path: scripts, configuration, what lengthens sys.path."""
    yield prefix / "pyvenv.cfg"
    yield from prefix.glob("bin/*")
    for packages in prefix.glob("lib/python*/site-packages"):
        yield from packages.glob("*.pth")
        yield from packages.glob("*.dist-info/direct_url.json")


def _rewrite(path: Path, old: bytes, new: bytes) -> None:
    with suppress(FileNotFoundError):
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            target = os.fsencode(path.readlink())
            if target.startswith(old):
                draft = path.with_name(f".{path.name}.new")
                draft.unlink(missing_ok=True)
                draft.symlink_to(os.fsdecode(new + target.removeprefix(old)))
                draft.replace(path)
        elif stat.S_ISREG(about.st_mode) and about.st_size <= _LARGEST:
            data = read_regular(path, _LARGEST)
            if old in data and b"\0" not in data:
                draft = path.with_name(f".{path.name}.new")  # another file: this one may be shared with other names
                draft.unlink(missing_ok=True)
                with draft.open("xb") as file:
                    file.write(data.replace(old, new))
                    os.fchmod(file.fileno(), stat.S_IMODE(about.st_mode))
                draft.replace(path)

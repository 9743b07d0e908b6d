"""A file system of an image as the root of a contained process, instead of the machine's.

What the process was given lies at paths that the image does not have. The root is therefore a file system in memory, in which
what the image has is mounted, read-only: a directory as a whole, or piece by piece where one of those paths leads through it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from carrel.node.containment import calls

#: Where the image and the new root are mounted meanwhile; the machine's /tmp is not seen any more then.
_MEANWHILE = "/tmp"
#: What every root has, and no image says how.
_OURS = ("dev", "proc", "tmp")
#: Directories that are taken apart for one place: a mount for each entry costs time.
_DEEPEST = 12


def change_root(image: str, places: Iterable[str]) -> None:
    """In new namespaces: make `image`, a directory, the root, with a mount point for each of `places` that it lacks.

    /proc is still the old one, which the kernel wants to see before it mounts a new one. The root itself can be written until the
    caller ends that. Nothing of the machine is left below it. Raises `OSError`.
    """
    tree = calls.clone_tree(image)
    proc = calls.clone_tree("/proc")
    calls.set_attributes(tree, on=calls.ATTR_RDONLY | calls.ATTR_NOSUID | calls.ATTR_NODEV)
    calls.mount("tmpfs", _MEANWHILE, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=0755,size=4m")
    source, root = Path(_MEANWHILE, "image"), Path(_MEANWHILE, "root")
    source.mkdir()
    root.mkdir()
    calls.place_tree(tree, str(source))
    os.close(tree)
    calls.mount("tmpfs", str(root), "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=0755,size=4m")
    lay_image(source, root, places)
    calls.place_tree(proc, str(root / "proc"))
    os.close(proc)
    os.chdir(root)
    calls.pivot_root(".", ".")
    calls.unmount(".")
    os.chdir("/")


def lay_image(source: Path, root: Path, places: Iterable[str]) -> None:
    """Show the image that is mounted at `source` in the empty directory `root`, with mount points for `places`."""
    wanted = {Path(place).parts[1:] for place in places}
    for entry in sorted(os.scandir(source), key=lambda one: one.name):
        if entry.name not in _OURS:
            _lay(entry, root, wanted, 0)
    for name in _OURS:
        (root / name).mkdir()


def _lay(entry: os.DirEntry[str], directory: Path, places: set[tuple[str, ...]], depth: int) -> None:
    """Show an entry of the image in `directory`, and let there be mount points for `places`, as seen from there."""
    target = directory / entry.name
    kind = os.lstat(entry.path).st_mode
    below = {parts[1:] for parts in places if len(parts) > 1 and parts[0] == entry.name}
    lacks = depth < _DEEPEST and any(not os.path.lexists(Path(entry.path, *parts)) for parts in below)
    if stat.S_ISLNK(kind) and lacks:
        target.mkdir()  # a directory of the job's goes before a link of the image's
    elif stat.S_ISLNK(kind):
        target.symlink_to(os.readlink(entry.path))  # noqa: PTH115 - it is text here, and leads somewhere later
    elif stat.S_ISDIR(kind):
        target.mkdir()
        if lacks:
            for inner in sorted(os.scandir(entry.path), key=lambda one: one.name):
                _lay(inner, target, below, depth + 1)
        else:
            _show(entry.path, target)
    elif stat.S_ISREG(kind):
        target.touch()
        _show(entry.path, target)
    # Devices, sockets and pipes of an image are nobody's here.


def _show(source: str, target: Path) -> None:
    tree = calls.clone_tree(source)
    try:
        calls.place_tree(tree, str(target))
    finally:
        os.close(tree)

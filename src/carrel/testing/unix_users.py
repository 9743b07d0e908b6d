"""Other Unix users, for tests that run as root: what they run, and where they may write."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import carrel


def open_to_all(path: Path) -> bool:
    """Return whether every user can reach and read what `path` leads to."""
    real = Path(os.path.realpath(path))
    return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents)) and bool(
        real.stat().st_mode & stat.S_IROTH
    )


def python_for_all(directory: Path) -> Path | None:
    """Return an interpreter with Carrel in it that every user can run, made in `directory`; None where there is none.

    A developer's own Python is often in a home directory that others cannot enter; the system's of the same version stands in.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [Path(sys.executable), *(Path(where) / version for where in ("/usr/bin", "/usr/local/bin"))]
    base = next((path for path in found if path.exists() and open_to_all(path)), None)
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(carrel.__file__).parent.parent)]
    if base is None or not all(open_to_all(Path(place)) for place in places):
        return None
    home = Path(os.path.realpath(base)).parent
    packages = directory / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "carrel.pth").write_text("".join(f"{place}\n" for place in dict.fromkeys(places)))
    (directory / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    (directory / "bin").mkdir()
    python = directory / "bin" / "python"
    python.symlink_to(home / version)
    deputy = directory / "bin" / "carrel-deputy"
    deputy.write_text(f"#!{python}\nimport sys\nfrom carrel.engines.deputy.process import main\nsys.exit(main())\n")
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path == deputy else 0o644)
    return python


def run_as(user: str) -> Sequence[str]:
    """Return the words before a command that make root run it as another user; none for whoever runs the tests."""
    account = pwd.getpwnam(user)
    if account.pw_uid == os.geteuid():
        return ()
    return ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups")


@contextmanager
def common_ground() -> Iterator[Path]:
    """A directory where everybody may write, as on a cluster's shared file system."""
    path = Path(tempfile.mkdtemp(prefix="carrel-"))
    path.chmod(0o1777)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)

"""Other Unix users, for tests that run as root: what they run, and where they may write."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import carrel


def open_to_all(path: Path) -> bool:
    """Return whether every user can reach and read what `path` leads to."""
    real = Path(os.path.realpath(path))
    return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents)) and bool(
        real.stat().st_mode & stat.S_IROTH
    )


def python_for_all(directory: Path) -> Path:
    """Return an interpreter with Carrel in it that every user can run, made in `directory`, which all can enter.

    A developer's own Python and packages are often in a home directory that others cannot enter. Then the system's Python of the
    same version stands in, or a copy; and of the packages there is a copy, of links where one file system holds both.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    directory.mkdir()
    directory.chmod(0o755)
    found = [Path(sys.executable), *(Path(where) / version for where in ("/usr/bin", "/usr/local/bin"))]
    base = next((path for path in found if path.exists() and open_to_all(path)), None)
    home = _copy_of_python(directory / "base", version) if base is None else Path(os.path.realpath(base)).parent
    ours = str(Path(carrel.__file__).parent.parent)
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), ours])
    packages = directory / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    lines = [
        place if open_to_all(Path(place)) else _shared(Path(place), directory / "copies" / str(number))
        for number, place in enumerate(places)
    ]
    (packages / "carrel.pth").write_text("".join(f"{line}\n" for line in lines))
    (directory / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    (directory / "bin").mkdir()
    python = directory / "bin" / "python"
    python.symlink_to(home / version)
    deputy = directory / "bin" / "carrel-deputy"
    deputy.write_text(f"#!{python}\nimport sys\nfrom carrel.engines.deputy.process import main\nsys.exit(main())\n")
    deputy.chmod(0o755)
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    if uv.exists():  # which the package of that name looks for here
        _share(str(uv), str(python.parent / "uv"))
    for path in (packages.parent.parent, packages.parent, packages, python.parent):
        path.chmod(0o755)
    for path in (packages / "carrel.pth", directory / "pyvenv.cfg"):
        path.chmod(0o644)
    return python


def _copy_of_python(directory: Path, version: str) -> Path:
    """Copy this Python, without what was installed into it; return the directory of its program."""
    base = Path(sys.base_prefix)
    _shared(base / "lib" / version, directory / "lib" / version, "site-packages", "test")
    for library in base.glob("lib/libpython*"):
        _share(str(library), str(directory / "lib" / library.name))
    (directory / "bin").mkdir()
    _share(os.path.realpath(sys.executable), str(directory / "bin" / version))
    for path in (directory, directory / "bin"):
        path.chmod(0o755)
    tried = subprocess.run(
        [*run_as("nobody"), directory / "bin" / version, "-I", "-c", "import ssl"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        raise RuntimeError(
            f"Other users cannot run a copy of {sys.executable} ({tried.stderr.strip()[-200:]}). Install {version} for all users."
        )
    return directory / "bin"


def _shared(source: Path, target: Path, *leave_out: str) -> str:
    """Make what is in `source` readable for everybody at `target`; return that."""
    shutil.copytree(source, target, symlinks=True, copy_function=_share, ignore=shutil.ignore_patterns(*leave_out))
    for path in (target.parent, target, *target.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    return str(target)


def _share(source: str, target: str) -> None:
    """Link a file that everybody may read; copy any other, and what is on another file system."""
    mode = Path(source).stat().st_mode
    if mode & stat.S_IROTH:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
    Path(target).chmod(0o755 if mode & stat.S_IXUSR else 0o644)


def run_as(user: str) -> Sequence[str]:
    """Return the words before a command that make root run it as another user; none for the user who runs the tests."""
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

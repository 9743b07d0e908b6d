"""Wheels of what is installed here: real packages for tests that may reach no index."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import re
import shutil
import sysconfig
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

#: What an installer writes into a package's directory, and a wheel does not have.
_OF_INSTALLERS = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"})
#: Neither changes what is inside nor takes time: most of a wheel is read once.
_STORED = zipfile.ZIP_STORED


def wheels_of(directory: Path, names: Iterable[str]) -> None:
    """Make wheels of installed packages, and of all that they need, in `directory`.

    Raises:
        importlib.metadata.PackageNotFoundError: One of them is not installed.
    """
    waiting, done = list(names), set[str]()
    while waiting:
        name = _normal(waiting.pop())
        if name in done:
            continue
        done.add(name)
        found = distribution(name)
        _pack(found, directory)
        needs = (Requirement(line) for line in found.requires or ())
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def pip_wheel(directory: Path) -> None:
    """Copy the wheel of pip that came with Python (Debian keeps it in a directory of its own)."""
    places = [Path(ensurepip.__file__).parent / "_bundled", Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/nowhere")]
    found = [file for place in places for file in sorted(place.glob("pip-*.whl"))]
    if not found:
        raise FileNotFoundError(f"Python brought no wheel of pip; none is in {places[0]} or {places[1]}")
    shutil.copy(found[-1], directory)


def _pack(found: Distribution, directory: Path) -> None:
    """Make the wheel that this was installed from, without its scripts (PyPA, "Binary distribution format")."""
    info = f"{_file_name(found.name)}-{found.version}.dist-info"
    file = directory / f"{_file_name(found.name)}-{found.version}-{_tags(found)}.whl"
    record = ""
    with zipfile.ZipFile(file, "w", _STORED) as archive:
        for path in found.files or ():
            inside = _inside(path, info)
            if inside is None:
                continue
            content = Path(str(path.locate())).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{inside},sha256={digest},{len(content)}\n"
            archive.writestr(inside, content)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


def _inside(path: PurePosixPath, info: str) -> str | None:
    """Return a file's path in the wheel, or None for what no wheel has there."""
    if path.is_absolute() or path.parts[0] == ".." or path.suffix == ".pyc":
        return None
    if path.parts[0].endswith(".dist-info"):
        return None if path.name in _OF_INSTALLERS else str(PurePosixPath(info, *path.parts[1:]))
    return str(path)


def _tags(found: Distribution) -> str:
    lines = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*lines, strict=True))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _file_name(name: str) -> str:
    return _normal(name).replace("-", "_")

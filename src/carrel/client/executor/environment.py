"""What a worker needs to carry out what is called here: the same Python, the same packages, the caller's own modules."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_size
from carrel.core.submission.installed import DISTRIBUTION, origin
from carrel.wire.needs import MODULES, needs_beside

#: What makes an environment, and is no part of what runs in it; Carrel, which travels otherwise; and the other program that is
#: called `carrel`, whose module would hide ours there.
_LEFT_OUT = frozenset({"pip", "setuptools", "wheel", "uv", DISTRIBUTION, f"{DISTRIBUTION}-residency", "carrel"})
#: Most bytes of the caller's own modules.
_MOST = 64 * 1024 * 1024
_SKIPPED = frozenset({"__pycache__", ".git", ".venv", "node_modules"})


def python_version() -> str:
    """The caller's Python, without the last part: pickled functions are understood by the same one alone."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed() -> list[str]:
    """Return a requirement line for each package of this environment, with its version; none for what is no package of an index.

    A package that is installed from a directory (``pip install -e .``) counts as modules of the caller's own.
    """
    found: dict[str, str] = {}
    for item in distributions():
        name = item.metadata["Name"]
        if name and name.lower() not in _LEFT_OUT and (line := _requirement(item)) is not None:
            found.setdefault(name.lower(), line)
    return [found[name] for name in sorted(found)]


def _requirement(item: Distribution) -> str | None:
    name = item.metadata["Name"]
    url, _ = origin(item)
    if re.match(r"(\w+\+)?file:", url):
        return None
    return f"{name} @ {url}" if url else f"{name}=={item.version}"


def read_requirements(asked: str | Path | Sequence[str] | None) -> list[str]:
    """Return requirement lines: of this environment (None), of a file, or those that are given. Raises `Invalid`."""
    if asked is None:
        return installed()
    if isinstance(asked, (str, Path)):
        path = Path(asked).expanduser()
        if not path.is_file():
            raise Invalid(f'There is no file "{asked}".', remedy='requirements takes a file, or a list such as ["numpy"].')
        lines = (line.strip() for line in path.read_text().splitlines())
        return [line for line in lines if line and not line.startswith("#")]
    return [str(line) for line in asked]


def own_modules(loaded: Iterable[ModuleType] | None = None) -> dict[str, Path]:
    """Return the caller's own modules that are imported now: top-level name -> file or directory of a package.

    Own are those that lie neither in the standard library nor among installed packages.
    """
    # Packages that came with a copy of Carrel are as little one's own as those that are installed.
    beside = str(needs_beside(MODULES))
    places = [Path(place).resolve() for place in {*sysconfig.get_paths().values(), *_site_packages(), beside}]
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()) if loaded is None else loaded:
        name = getattr(module, "__name__", "").partition(".")[0]
        if name in ("", "__main__", "__mp_main__", "carrel", "carrel_residency", "_distutils_hack") or name in found:
            continue
        top = sys.modules.get(name)
        file = getattr(top, "__file__", None)
        if file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if any(path.is_relative_to(place) for place in places):
            continue
        found[name] = path.parent if path.name == "__init__.py" else path
    return found


def _site_packages() -> Iterator[str]:
    yield from (entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))
    yield sysconfig.get_paths()["stdlib"]
    yield str(Path(sys.base_prefix) / "lib" / f"python{python_version()}")


def copy_modules(found: dict[str, Path], target: Path) -> None:
    """Copy modules to where a worker imports them from. Raises `Invalid` when they are more than travels."""
    size = 0
    for name, path in found.items():
        for file in [path] if path.is_file() else _files(path):
            size += file.stat().st_size
            if size > _MOST:
                raise Invalid(
                    f"The modules that are imported here have more than {format_size(_MOST)}; the last is {name}.",
                    remedy="Name those that calls need: Executor(modules=[…]).",
                )
            place = target / (file.name if path.is_file() else Path(name) / file.relative_to(path))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_symlink() or path.name in _SKIPPED:
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path

"""What a worker needs to carry out what is called here: the same Python, the same packages, the caller's own modules."""

from __future__ import annotations

import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_size
from carrel.core.submission.installed import DISTRIBUTION, origin
from carrel.core.tasks.files import DirectoryFiles
from carrel.core.tasks.requirements import Requirements
from carrel.wire.needs import MODULES, needs_beside

#: What makes an environment, and is no part of what runs in it; Carrel, which travels otherwise; and the other program that is
#: called `carrel`, whose module would hide ours there.
_LEFT_OUT = frozenset({"pip", "setuptools", "wheel", "uv", DISTRIBUTION, f"{DISTRIBUTION}-residency", "carrel"})
#: Most bytes of the caller's own modules.
_MOST = 64 * 1024 * 1024
#: Seconds between two looks whether they were edited.
_LOOK = 1.0
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SAY_WHICH = 'Say what calls need: requirements=["numpy==2.1.0"], or image=….'
_SKIPPED = frozenset({"__pycache__", ".git", ".venv", "node_modules"})


def python_version() -> str:
    """The caller's Python, without the last part: pickled functions are understood by the same one alone."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def installed() -> list[str]:
    """Return a requirement line for each package of this environment, with its version.

    There is none for what comes from a directory or a file of this machine: no index is asked for such a name, and a copy travels
    (`own_modules`). Raises `Invalid` where a copy would not do.
    """
    found = _packages()
    local = {name for name, item in found.items() if item is None or _is_local(item)}
    conda = [name for name, item in found.items() if item is not None and name in local and _is_condas(item)]
    if conda:
        raise Invalid(
            f"conda built these packages from files, and which index has them is not known: {', '.join(sorted(conda))}.",
            remedy=_SAY_WHICH,
        )
    lines = []
    for name, item in sorted(found.items()):
        if item is None or name in local:
            continue
        url, _ = origin(item)
        about = item.metadata  # read anew each time that it is asked for, which takes a millisecond
        needs = {_canonical(match[0]) for line in item.requires or () if "extra ==" not in line and (match := _NAME.match(line))}
        if url and needs & local:
            raise Invalid(
                f"{name}, from {url}, needs {', '.join(sorted(needs & local))}, which is installed from a directory or a file "
                "here: an index would be asked for that name.",
                remedy=_SAY_WHICH,
            )
        lines.append(f"{about['Name']} @ {url}" if url else f"{about['Name']}=={about['Version']}")
    return lines


def _packages() -> dict[str, Distribution | None]:
    """Return what decides for each name of a package: what is installed; None for a source tree alone.

    A source tree on the import path has a NAME.egg-info of its own, which does not say where the package came from.
    """
    found: dict[str, Distribution | None] = {}
    for item in distributions():
        name = _canonical(item.metadata["Name"] or "")
        if name and name not in _LEFT_OUT and found.get(name) is None:
            is_source = item.read_text("RECORD") is None and _base(item).name not in ("site-packages", "dist-packages")
            found[name] = None if is_source else item
    return found


def _is_local(item: Distribution) -> bool:
    url, _ = origin(item)
    if url:
        return re.match(r"(\w+\+)?file:", url) is not None
    # Editable, by a program that writes no direct_url.json: a path in the place of modules.
    return ".pth," in (item.read_text("RECORD") or "") and not _tops(item)


def _is_condas(item: Distribution) -> bool:
    """True for compiled code of conda's, which needs the libraries around it."""
    return (item.read_text("INSTALLER") or "").strip() == "conda" and any(".so" in file.suffixes for file in item.files or ())


def _tops(item: Distribution) -> dict[str, Path]:
    """Modules and packages that a distribution has put among the installed ones: name -> file or directory."""
    tops = {file.parts[0] for file in item.files or ()}
    left_out = ("..", "__pycache__")
    found = [name for name in tops if name not in left_out and not name.endswith((".dist-info", ".egg-info", ".pth"))]
    return {name.partition(".")[0]: _base(item) / name for name in found if not name.startswith("__editable__")}


def _about(item: Distribution) -> dict[str, Path]:
    """What is known of a distribution besides its modules: its version, its entry points."""
    names = {file.parts[0] for file in item.files or () if file.parts[0].endswith(".dist-info")}
    return {name: _base(item) / name for name in names if (_base(item) / name).is_dir()}


def _base(item: Distribution) -> Path:
    return Path(str(item.locate_file("")))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(asked: str | Path | Sequence[str] | None) -> list[str]:
    """Return requirement lines: of this environment (None), of a file as pip reads it, or those that are given.

    Raises `Invalid`.
    """
    if asked is None:
        return installed()
    if not isinstance(asked, (str, Path)):
        return [str(line) for line in asked]
    path = Path(asked).expanduser().absolute()
    if not path.is_file():
        raise Invalid(f'There is no file "{asked}".', remedy='requirements takes a file, or a list such as ["numpy"].')
    found = Requirements(DirectoryFiles.open(path.parent, Path("/")))
    found.add_file(path.name)
    if found.constraints:
        raise Invalid(f"{asked}: constraints (-c) are not supported here.", remedy="Write the versions into the requirements.")
    if found.local:
        raise Invalid(
            f"{asked}: packages in directories and files of this machine are not supported there.",
            remedy="Take those lines out: what is installed from there travels as your own modules do.",
        )
    return list(found.lines())


def own_modules(loaded: Iterable[ModuleType] | None = None, *, whole: bool = False) -> dict[str, Path]:
    """Return the caller's own modules that are imported now: top-level name -> file or directory of a package.

    Own are those that lie neither in the standard library nor among installed packages, and those of packages that come from a
    directory or a file of this machine. `whole`: all of those, imported or not, as the other packages of this environment are.
    """
    packages = [item for item in _packages().values() if item is not None and _is_local(item) and not _is_condas(item)]
    local = {name: path for item in packages for name, path in _tops(item).items()}
    # Packages that came with a copy of Carrel are as little one's own as those that are installed.
    beside = str(needs_beside(MODULES))
    places = [Path(place).resolve() for place in {*sysconfig.get_paths().values(), *_site_packages(), beside}]
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()) if loaded is None else loaded:
        name = getattr(module, "__name__", "").partition(".")[0]
        if name in ("", "__main__", "__mp_main__", "carrel", "carrel_residency", "_distutils_hack") or name in found:
            continue
        if name in local:
            found[name] = local[name]
            continue
        top = sys.modules.get(name)
        file = getattr(top, "__file__", None)
        if file is None or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if any(path.is_relative_to(place) for place in places):
            continue
        found[name] = path.parent if path.name == "__init__.py" else path
    if loaded is None:
        found |= local if whole else {}
        found |= {name: path for item in packages for name, path in _about(item).items()}
    return found


def _site_packages() -> Iterator[str]:
    yield from (entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))
    yield sysconfig.get_paths()["stdlib"]
    yield str(Path(sys.base_prefix) / "lib" / f"python{python_version()}")


class SentModules:
    """Own modules as they were when they travelled to the workers."""

    def __init__(self, modules: Mapping[str, Path], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._modules = dict(modules)
        self._written = {name: _written(path) for name, path in modules.items()}
        self._next = 0.0

    def edited(self) -> Sequence[str]:
        """Return those that were written to since, each once. Their files are looked at once a second at most."""
        now = self._monotonic()
        if now < self._next:
            return ()
        self._next = now + _LOOK
        found = [name for name, path in self._modules.items() if _written(path) > self._written[name]]
        for name in found:
            del self._modules[name]
        return found


def _written(path: Path) -> int:
    """Moments at which Python files of a module were written to last, in nanoseconds."""
    try:
        files = [path] if path.is_file() else [file for file in _files(path) if file.suffix == ".py"] if path.is_dir() else []
        return max((file.stat().st_mtime_ns for file in files), default=0)
    except OSError:  # an editor puts another file in its place just now; the next look sees it
        return 0


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

"""What a target means: which directory is packed, what of it, and which script in it is the task. Loaded on submission."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from carrel.client.companions import find_companions
from carrel.core.domain.errors import CarrelError, Invalid, NotFound
from carrel.core.tasks import fetch_project
from carrel.core.tasks.environment import find_recipe
from carrel.core.tasks.fetch import is_remote
from carrel.core.tasks.files import DirectoryFiles

#: Files that make a directory a project, in small letters: one that has nothing of it is only a place where a script lies.
_PROJECT = frozenset({"mlproject", "pyproject.toml", "setup.py"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a submission packs."""

    directory: Path
    #: The script in it that is the task, if it is one.
    script: str | None = None
    #: Of a bare script: all that travels, by paths in the directory. None: what is code in the directory.
    only: tuple[str, ...] | None = None
    #: What travels besides, because somebody said so.
    also: tuple[str, ...] = ()
    #: What a bare script names and leaves behind, with the file that names it.
    left: Mapping[str, str] = field(default_factory=dict)


def code_of(
    target: str | Path,
    script: str | None,
    version: str | None,
    scratch: Path,
    *,
    include: Sequence[str | Path] = (),
    words: Iterable[str] = (),
) -> Code:
    """Return what travels. `include` is added to it; `words` are the arguments of a bare script, whose files travel too."""
    path = Path(target).expanduser()
    if version is not None and path.exists():
        raise Invalid(
            f'A version ("{version}") is asked of "{target}", which lies here.',
            remedy="Check it out there, or name the repository by its address.",
        )
    if script is None and path.is_file():
        if path.suffix == ".ipynb":
            raise Invalid(f'"{target}" is a notebook.', remedy="Use `carrel run`, or make a task of it with `carrel promote`.")
        if path.suffix not in (".py", ".sh"):
            raise Invalid(f'"{target}" is not a task.', remedy="Name a directory, a .py or .sh file, a notebook or git address.")
        return _bare(path.absolute(), words, include)
    if isinstance(target, Path) or path.is_dir():
        if not path.is_dir():
            raise NotFound(f'There is no file or directory "{target}".')
        return Code(directory=path.absolute(), script=script, also=included(include, path.absolute()))
    if not is_remote(str(target).partition("#")[0]):
        raise NotFound(
            f'There is no file or directory "{target}", and it is no git address.',
            remedy="Name a directory, a script, a notebook, or an address such as https://host/repository.git#directory.",
        )
    if include:
        raise Invalid(
            f'--with {include[0]}: "{target}" is a git address, and travels as it is there.', remedy="Leave --with out."
        )
    fetched = fetch_project(str(target), into=scratch / "code", version=version)
    return Code(directory=fetched.directory, script=script)


def _bare(script: Path, words: Iterable[str], include: Sequence[str | Path]) -> Code:
    """A script in a project or a git repository travels with its directory, elsewhere with what it needs."""
    directory = script.parent
    also = included(include, directory)
    if _is_project(directory):
        return Code(directory=directory, script=script.name, also=also)
    found = find_companions(script, words)
    only = dict.fromkeys(found.files)
    if not _is_common(directory):
        only |= dict.fromkeys(_described_by(directory, script.name))
    left = {path: by for path, by in found.left.items() if not any(path == one or path.startswith(f"{one}/") for one in also)}
    return Code(directory=directory, script=script.name, only=tuple(only), also=also, left=left)


def _is_project(directory: Path) -> bool:
    """True in a project or a git repository. That of a whole home directory (its dotfiles) is not one of code."""
    place = directory.resolve()
    for around in (place, *place.parents):
        if _is_common(around):
            return False
        try:
            names = {name.lower() for name in os.listdir(around)}  # noqa: PTH208 - names only
        except OSError:
            continue
        if names & _PROJECT or ".git" in names:
            return True
    return False


def _is_common(directory: Path) -> bool:
    """True for places where things lie that have nothing to do with each other: what is there describes no script's project."""
    common = (Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/"))
    return directory.resolve() in {place.resolve() for place in common}


def _described_by(directory: Path, script: str) -> list[str]:
    """The files that describe the environment of a bare script: those that the lab will read for it."""
    files = _Read(DirectoryFiles.open(directory))
    with suppress(CarrelError):  # the lab will say what is wrong in it
        find_recipe(files, None, script)
    return [path for path in files.read_ones if path != script]


class _Read:
    """Files of a directory, with a list of those that were read."""

    def __init__(self, files: DirectoryFiles) -> None:
        self._files = files
        self.read_ones: list[str] = []
        self.name, self.kind, self.names = files.name, files.kind, files.names

    def read(self, path: str, limit: int) -> bytes:
        """Read a file, and remember it."""
        found = self._files.read(path, limit)
        self.read_ones.append(os.path.normpath(path))
        return found


def included(include: Sequence[str | Path], directory: Path) -> tuple[str, ...]:
    """Return what --with names, as paths in the directory: they are looked for from here, then from there."""
    return tuple(_included_one(str(given), directory) for given in include)


def _included_one(given: str, directory: Path) -> str:
    path = Path(given).expanduser()
    place = next((place for place in (path.absolute(), directory / path) if place.exists()), None)
    if place is None:
        raise NotFound(f"--with {given}: there is no such file or directory.", remedy="Name one that is there.")
    # By names, not by where links lead: a link in the directory is in the directory.
    for one, top in ((os.path.normpath(place), str(directory)), (str(place.resolve()), str(directory.resolve()))):
        relative = os.path.relpath(one, top)
        if relative == ".":
            raise Invalid(
                f"--with {given} is the whole directory of the code.", remedy="Name what is needed, or write an MLproject file."
            )
        if not relative.startswith(".."):
            return relative
    raise Invalid(
        f"--with {given} lies outside of {directory}: what travels keeps its place beside the code.",
        remedy="Put it there (a link will do), or name it under inputs.",
    )

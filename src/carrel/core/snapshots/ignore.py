"""What does not travel: what .gitignore says, and what is never code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.snapshots.gitignore import GitIgnore, parse_gitignore

#: Names that never travel, at any depth.
NEVER = frozenset({".git", "__pycache__", ".ipynb_checkpoints", "mlruns", "mlflow.db", "mlflow.db-shm", "mlflow.db-wal"})
#: A directory that holds this is a virtual environment (PEP 405), under any name.
VENV_MARK = "pyvenv.cfg"
_FILE = ".gitignore"


@dataclass(frozen=True, slots=True)
class Rules:
    """The ignore rules that hold in one directory: its own .gitignore and those above it (gitignore(5)).

    A file that was added to git in spite of its .gitignore is left out: whether git has it is not asked.
    """

    #: Innermost first: where each .gitignore lies in the packed directory ("" or "sub/"), and its patterns.
    _layers: tuple[tuple[str, GitIgnore], ...] = ()
    #: The same for those above: the way down from each to the packed directory.
    _outer: tuple[tuple[str, GitIgnore], ...] = ()

    @classmethod
    def above(cls, directory: Path) -> Rules:
        """Return the rules that a surrounding git repository gives to `directory`."""
        absolute = directory.resolve()
        top = next((place for place in (absolute, *absolute.parents) if _is_there(place / ".git")), None)
        if top is None:
            return cls()  # not in a repository: what lies above is somebody else's
        outer: list[tuple[str, GitIgnore]] = []
        for parent in absolute.parents:
            if not parent.is_relative_to(top):
                break
            file = _read(parent / _FILE)
            if file is not None:
                outer.append((absolute.relative_to(parent).as_posix() + "/", file))
        return cls(_outer=tuple(outer))

    def entering(self, directory: Path, prefix: str) -> Rules:
        """Return the rules inside `directory` (packed as `prefix`), which holds a .gitignore."""
        file = _read(directory / _FILE)
        return self if file is None else Rules(((prefix, file), *self._layers), self._outer)

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether `path`, relative to the packed directory, is left out. The innermost file that has a say decides."""
        if not self._layers and not self._outer:
            return False
        for prefix, file in self._layers:
            verdict = file.verdict(path[len(prefix) :], is_directory=is_directory)
            if verdict is not None:
                return verdict
        for way, file in self._outer:
            verdict = file.verdict(way + path, is_directory=is_directory)
            if verdict is not None:
                return verdict
        return False


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _read(path: Path) -> GitIgnore | None:
    if not _is_there(path) or path.is_symlink() or path.is_dir():  # git follows no link here either
        return None
    try:
        return parse_gitignore(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Correct its permissions.") from error

"""What is said of code that travels: before it is sent, and when a task did not find a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.client.code import Code
from carrel.core.domain.units import format_size
from carrel.core.snapshots import Packed

#: Names in one sentence; there may be thousands.
_SHOWN = 8
#: How programs say that a file is not there: Python's FileNotFoundError, Python without a script, and everybody else.
_NOT_FOUND = re.compile(
    r"FileNotFoundError:[^\n]*?'([^'\n]+)'|can't open file '([^'\n]+)'|No module named '([\w.]+)'"
    r"|([^\s:'\"]+): No such file or directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Travelling:
    """Code that was packed and is about to be sent."""

    code: Code
    packed: Packed

    def said(self) -> list[str]:
        """Return what travels, of a bare script; of others nothing needs to be said."""
        if self.code.only is None and not self.code.also:
            return []
        if self.code.only is None:
            return [f"{self._name(self.code.directory)} with {', '.join(self.code.also)}"]
        sizes = {entry.path: entry.size for entry in self.packed.files}
        first = self.code.script or ""
        parts = {first: [sizes.get(first, 0)]}
        for path, size in sizes.items():
            if path != first:
                parts.setdefault(self._part(path), []).append(size)
        shown = [_counted(name, found) for name, found in list(parts.items())[:_SHOWN]]
        if len(parts) > _SHOWN:
            rest = [size for found in list(parts.values())[_SHOWN:] for size in found]
            shown.append(f"{len(rest)} more files ({_size(sum(rest))})")
        return [", ".join(shown)]

    def warnings(self) -> list[str]:
        """Return what does not travel although somebody may think that it does."""
        told = []
        if self.packed.skipped:
            verb = "is a socket, pipe or device, and stays" if len(self.packed.skipped) == 1 else "are no files, and stay"
            told.append(f"{_listed(self.packed.skipped)} {verb} behind.")
        if self.packed.pointers:
            verb = "is a pointer" if len(self.packed.pointers) == 1 else "are pointers"
            told.append(f"{_listed(self.packed.pointers)} {verb} of Git LFS, without the contents; `git lfs pull` fetches them.")
        by: dict[str, list[str]] = {}
        for path, who in self.code.left.items():
            by.setdefault(who, []).append(path)
        for who, paths in by.items():
            verb, it = ("does", "it") if len(paths) == 1 else ("do", "them")
            shown = _listed([path + "/" if (self.code.directory / path).is_dir() else path for path in paths])
            options = " ".join(f"--with {self._name(self.code.directory / path)}" for path in paths[:_SHOWN])
            told.append(f"{who} mentions {shown}, which {verb} not travel; {options} adds {it}.")
        return told

    def as_json(self) -> dict[str, object]:
        """Return the same for programs."""
        files = [{"path": entry.path, "size": entry.size} for entry in self.packed.files] if self.code.only is not None else None
        return {"digest": self.packed.digest, "size": self.packed.size, "files": files, "warnings": self.warnings()}

    def missed(self, log: str) -> str | None:
        """Return what to do about the last file that a task's log says it did not find, if it is here; None otherwise."""
        for match in reversed(list(_NOT_FOUND.finditer(log))):
            python, script, module, other = match.groups()
            names = [f"{module.replace('.', '/')}.py", module.replace(".", "/")] if module else [python or script or other]
            for name in names:
                path = self._stayed(name)
                if path is not None:
                    option = self._name(self.code.directory / path)
                    return f"{path} is in {self.code.directory} and did not travel; --with {option} adds it."
        return None

    def _stayed(self, name: str) -> str | None:
        """The path in the directory that a program means, if it is there and did not travel."""
        sent = [entry.path for entry in self.packed.files]
        for path in _meant(name, self.code.left):
            if path in sent or any(one.startswith(f"{path}/") for one in sent):
                continue
            if os.path.exists(self.code.directory / path):  # noqa: PTH110 - a name that is none for the system is no error
                return path
        return None

    def _part(self, path: str) -> str:
        """What a file is counted under: the directory at the top that it lies in, or itself."""
        top, slash, _ = path.partition("/")
        return top + slash

    @staticmethod
    def _name(path: Path) -> str:
        """As one would write it here."""
        relative = os.path.relpath(path)
        return str(path) if relative.startswith("..") else relative


def _meant(name: str, left: Iterable[str]) -> list[str]:
    if not name.startswith("/"):
        path = os.path.normpath(name)
        return [] if path.startswith("..") or path == "." else [path]
    return [path for path in left if name.endswith(f"/{path}")]  # below the working directory there


def _counted(name: str, sizes: Sequence[int]) -> str:
    return f"{name} ({f'{len(sizes)} files, ' if name.endswith('/') and len(sizes) > 1 else ''}{_size(sum(sizes))})"


def _size(size: int) -> str:
    return f"{size} B" if size < 1024 else format_size(size)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"

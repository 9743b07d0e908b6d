"""Looking into a stored snapshot without extracting it: the lab reads a task's description out of the archive."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.snapshots.archive import Kind, Member, read_member, scan

#: As many as Linux follows in one path (path_resolution(7)).
_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """The files below one directory of a snapshot. Paths may climb with ``..`` but never out of the snapshot."""

    _archive: Path
    _members: dict[str, Member]
    _directories: frozenset[str]
    _base: str

    @classmethod
    def open(cls, archive: Path, directory: str = ".") -> SnapshotFiles:
        """Read the table of contents of `archive`; raise `Invalid` when `directory` is not in it."""
        with archive.open("rb") as source:
            members = scan(source, hashes=False)
        directories = {""}
        for path in members:
            while "/" in path:
                path = path.rpartition("/")[0]
                directories.add(path)
        files = cls(archive, members, frozenset(directories), "")
        base = files._resolve(directory)
        if base is None or base not in directories:
            raise Invalid(f'The code has no directory "{directory}".', remedy="Name one relative to the top of what was packed.")
        return cls(archive, members, frozenset(directories), base)

    @property
    def name(self) -> str:
        """Last part of the directory's name; "" for the top of the snapshot, which has none."""
        return posixpath.basename(self._base)

    def kind(self, path: str) -> str | None:
        """Return "file" or "directory" for what is at `path` (links are followed), or None."""
        resolved = self._resolve(path)
        if resolved is None:
            return None
        return "file" if resolved in self._members else "directory" if resolved in self._directories else None

    def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of the file at `path`; raise `NotFound`, or `Invalid` when it has more than `limit`."""
        resolved = self._resolve(path)
        member = None if resolved is None else self._members.get(resolved)
        if member is None:
            raise NotFound(f"{path} is not in the code.")
        if member.entry.size > limit:
            raise Invalid(f"{path} has {member.entry.size} bytes; at most {limit} are read.")
        with self._archive.open("rb") as source:
            return b"".join(read_member(source, member))

    def names(self) -> Iterator[str]:
        """Yield the names in the directory, without order."""
        prefix = f"{self._base}/" if self._base else ""
        seen = {path[len(prefix) :].partition("/")[0] for path in self._members if path.startswith(prefix)}
        yield from seen

    def _resolve(self, path: str) -> str | None:
        if path.startswith("/"):
            return None
        done: list[str] = self._base.split("/") if self._base else []
        parts = path.split("/")[::-1]
        links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(part)
            member = self._members.get("/".join(done))
            if member is not None and member.entry.kind is Kind.LINK:
                links += 1
                if links > _MAX_LINKS:
                    return None
                done.pop()
                parts.extend(member.entry.target.split("/")[::-1])
        return "/".join(done)

"""Making a snapshot of a directory."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.units import GIB, MIB, format_size
from carrel.core.snapshots.archive import CHUNK, END, Entry, Kind, check_link, header, manifest_digest, padding
from carrel.core.snapshots.ignore import NEVER, VENV_MARK, Rules

LIMIT_BYTES = 512 * MIB
LIMIT_FILES = 20_000
#: Archives up to this size are kept in memory.
_IN_MEMORY = 16 * MIB
#: The beginning of a pointer of Git LFS (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A snapshot of a directory that is ready to be sent. Nothing is copied before `write` or `open`."""

    #: "sha256:…"; a lab that has it already needs nothing sent.
    digest: str
    directory: Path
    #: Sorted by path.
    files: tuple[Entry, ...]
    #: Bytes of all files.
    size: int
    #: Sockets, pipes and devices that stay behind.
    skipped: tuple[str, ...] = ()
    #: Files of Git LFS whose contents were not fetched: what travels is a pointer of three lines.
    pointers: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Return a temporary file with the archive, at its start; it is gone when closed."""
        archive = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
        try:
            self.write(archive)  # type: ignore[arg-type]
            archive.seek(0)
        except BaseException:
            archive.close()
            raise
        return archive  # type: ignore[return-value]

    def write(self, stream: BinaryIO) -> None:
        """Write the archive: the same bytes for the same digest. Raise `Conflict` when a file changed meanwhile."""
        for entry in self.files:
            stream.write(header(entry))
            if entry.kind is Kind.FILE:
                _copy(self.directory / entry.path, entry, stream)
                stream.write(padding(entry.size))
        stream.write(END)


def pack(
    directory: Path,
    *,
    only: Sequence[str] | None = None,
    also: Sequence[str] = (),
    limit_bytes: int = LIMIT_BYTES,
    limit_files: int = LIMIT_FILES,
    surrounding: bool = True,
) -> Packed:
    """Return the snapshot of what is code in `directory`; with `only`, of these files in it and no others.

    What .gitignore names (here, below, and above up to the top of the git repository), `NEVER` and virtual environments
    stay behind, and so do sockets, pipes and devices. `also` names files and directories that are sent whether or not .gitignore
    names them. With `surrounding` false a .gitignore above has no say. Raises `Invalid` for a file that cannot be read or a link
    that leads outside; for a directory without code; and
    for more than `limit_bytes` or `limit_files`, naming the three largest entries.
    """
    if not directory.is_dir():
        raise Invalid(f"{directory} is not a directory.", remedy="Name the directory that holds the code.")
    root = os.fspath(directory)
    skipped: list[str] = []
    rules = Rules.above(directory) if surrounding else Rules()
    walked = _walk(root, "", rules, skipped) if only is None else (_named(root, path) for path in only)
    found = {entry.path: entry for entry in walked}
    for path in also:
        if (directory / path).is_dir():
            found |= {entry.path: entry for entry in _walk(root, f"{path}/", None, skipped)}
        else:
            found[path] = _named(root, path)
    if not found:
        raise Invalid(
            f"There are no files to send in {directory}.",
            remedy="The directory is empty, or a .gitignore in it or above leaves out everything.",
        )
    _check_limits(list(found.values()), limit_bytes, limit_files, whole=only is None)
    pointers: list[str] = []
    files = sorted((_hashed(root, entry, pointers) for entry in found.values()), key=lambda entry: entry.path.encode())
    return Packed(
        digest=manifest_digest(files),
        directory=directory,
        files=tuple(files),
        size=sum(entry.size for entry in files),
        skipped=tuple(sorted(skipped)),
        pointers=tuple(sorted(pointers)),
    )


def never_travels(name: str) -> bool:
    """Tell whether a file or directory of this name never travels."""
    return name in NEVER


def _walk(root: str, prefix: str, rules: Rules | None, skipped: list[str]) -> Iterator[Entry]:
    where = f"{root}/{prefix}" if prefix else root
    try:
        with os.scandir(where) as listing:
            children = list(listing)
    except OSError as error:
        raise _unreadable(prefix or ".", error) from error
    names = {child.name for child in children}
    if VENV_MARK in names and prefix:
        return
    if rules is not None and ".gitignore" in names:
        rules = rules.entering(Path(where), prefix)
    for child in children:
        path = prefix + child.name
        is_directory = child.is_dir(follow_symlinks=False)
        if child.name in NEVER or (rules is not None and rules.ignores(path, is_directory=is_directory)):
            continue
        if is_directory:
            yield from _walk(root, path + "/", rules, skipped)
            continue
        entry = _entry(child, path)
        if entry is None:
            skipped.append(path)
        else:
            yield entry


def _entry(child: os.DirEntry[str], path: str) -> Entry | None:
    """Return what travels of a directory's entry; None for a socket, pipe or device."""
    _check_name(path)
    try:
        status = child.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return Entry(path=path, kind=Kind.LINK, target=check_link(path, os.readlink(child.path)))  # noqa: PTH115 - exactly as written
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return Entry(path=path, executable=bool(status.st_mode & stat.S_IXUSR), size=status.st_size)


def _named(root: str, path: str) -> Entry:
    """Return a file that was named by itself: of a link, what it leads to."""
    _check_name(path)
    try:
        status = os.stat(f"{root}/{path}")  # noqa: PTH116 - as elsewhere here
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise Invalid(f"{path} is neither a file nor a directory, and cannot be sent.", remedy="Name another one.")
    return Entry(path=path, executable=bool(status.st_mode & stat.S_IXUSR), size=status.st_size)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Invalid(f"The name of {os.fsencode(path)!r} is not UTF-8.", remedy="Rename it, or list it in .gitignore.") from None


def _hashed(root: str, entry: Entry, pointers: list[str]) -> Entry:
    if entry.kind is Kind.LINK:
        return entry
    digest, size = hashlib.sha256(), 0
    try:
        with open(f"{root}/{entry.path}", "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                if not size and chunk.startswith(_POINTER):
                    pointers.append(entry.path)
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    return Entry(path=entry.path, executable=entry.executable, size=size, sha256=digest.hexdigest())


def _copy(path: Path, entry: Entry, stream: BinaryIO) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                if size > entry.size:
                    break
                stream.write(chunk)
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    if size != entry.size or digest.hexdigest() != entry.sha256:
        raise Conflict(
            f"{entry.path} changed while it was being packed.",
            remedy="Try again; list files that are written all the time in .gitignore.",
        )


def _unreadable(path: str, error: OSError) -> Invalid:
    return Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Correct its permissions, or list it in .gitignore.")


def _check_limits(found: list[Entry], limit_bytes: int, limit_files: int, *, whole: bool) -> None:
    size = sum(entry.size for entry in found)
    if size > limit_bytes:
        largest = Counter[str]()
        for entry in found:
            largest[_top(entry.path)] += entry.size
        what, shown = (
            f"{_precise(size)}, more than {_precise(limit_bytes)}",
            [f"{name} ({_precise(amount)})" for name, amount in largest.most_common(3)],
        )
    elif len(found) > limit_files:
        counted = Counter(_top(entry.path) for entry in found)
        what, shown = (
            f"{len(found)} files, more than {limit_files}",
            [f"{name} ({n} files)" for name, n in counted.most_common(3)],
        )
    else:
        return
    raise Invalid(
        f"The code has {what}. Largest: {', '.join(shown)}.",
        remedy="List what is not code in .gitignore, and name data under inputs."
        if whole
        else "Name data under inputs in an MLproject file, or keep it where the task runs.",
    )


def _top(path: str) -> str:
    first, slash, _ = path.partition("/")
    return first + slash


def _precise(size: int) -> str:
    return f"{size / GIB:.2f}G" if size >= GIB else format_size(size)

"""Storing outputs: what the patterns name, by content, in the lab's blob store.

Only regular files below the working directory are stored. A link to a file or a directory that lies inside stands for that, and
nothing outside can get in. Runs when every process of the job is gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from carrel.core.domain.job import Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.units import format_size
from carrel.core.spool.disk import full_at, is_full
from carrel.node.runner.output_files import LONGEST, named_files

_CHUNK = 1024**2
_ZEROS = memoryview(bytes(_CHUNK))
#: Bytes of a hole that are hashed at once.
_HOLE = 64 * _CHUNK
#: Characters of a path in a note.
_IN_A_NOTE = 200


@dataclass(slots=True)
class StoredOutputs:
    """What was stored, and what was not."""

    files: list[StoredFile] = field(default_factory=list)
    #: One sentence for each kind of thing that was not stored.
    notes: list[str] = field(default_factory=list)
    #: Why files that should have been stored were not: what makes a failure of a job that succeeded. None when all were.
    failure: Reason | None = None

    #: True when something that is left in the working directory may be stored later.
    left: bool = False


class StoringEnded(Exception):
    """Storing ends before all is stored; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


def store_outputs(
    directory: Path, patterns: Sequence[str], blobs: Path, limit: int, check: Callable[[], object] = lambda: None
) -> StoredOutputs:
    """Store the files below `directory` that `patterns` name (`named_files`), `limit` bytes at most.

    `check` is called before each file and each piece of a large one, and raises `StoringEnded` where no more is to be stored.
    Each file is stored whole or not at all; then, on a full disk and on any other error, that file and what follows stay where
    they are, and `failure` says why.
    """
    result = StoredOutputs()
    left = limit
    too_large: list[tuple[str, int]] = []
    outside: list[str] = []
    unnamed: list[str] = []
    named: set[str] = set()
    try:
        for path, fd in named_files(directory, patterns, check):
            name = shown(path)
            if fd is None:
                (outside if len(name) <= LONGEST else unnamed).append(name[:LONGEST])
                continue
            with open(fd, "rb", buffering=0) as file:
                if name in named or len(name) > LONGEST:
                    unnamed.append(name[:LONGEST])
                    continue
                size = os.fstat(fd).st_size
                if size > left:
                    too_large.append((name, size))
                    continue
                try:
                    stored = _store(file.fileno(), name, blobs, check)
                except OSError as error:
                    raise StoringEnded(_failure(name, size, blobs, error)) from error
            left -= stored.size
            named.add(name)
            result.files.append(stored)
    except StoringEnded as ended:
        result.failure = ended.reason
        result.notes.append(ended.reason.message)
        result.left = True
    if too_large:
        result.left = True
        total = sum(size for _, size in too_large)
        names = ", ".join(f"{path} ({format_size(size)})" for path, size in too_large[:3]) + (", …" if len(too_large) > 3 else "")
        result.notes.append(
            f"{len(too_large)} output files of {format_size(total)} were not kept, the limit is {format_size(limit)}: {names}."
        )
    if unnamed:
        result.left = True
        names = ", ".join(map(_short, unnamed[:3])) + (", …" if len(unnamed) > 3 else "")
        result.notes.append(
            f"{len(unnamed)} outputs were not kept because others read the same (bytes that are no text), or because their names "
            f"are too long: {names}."
        )
    if outside:
        names = ", ".join(map(_short, outside[:3])) + (", …" if len(outside) > 3 else "")
        result.notes.append(
            f"{len(outside)} outputs were not kept because they are no regular files inside the working directory: {names}."
        )
    return result


def _check_room(size: int, blobs: Path) -> None:
    """Raise `OSError` for what cannot fit, rather than fill the disk up to its last byte with the half of it."""
    blobs.mkdir(parents=True, exist_ok=True, mode=0o700)
    room = os.statvfs(blobs)
    if size > room.f_bavail * room.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(blobs))


def _failure(path: str, size: int, blobs: Path, error: OSError) -> Reason:
    """Why `path` and the files after it were not stored."""
    name = f'"{path}" ({format_size(size)}) and what follows'
    if is_full(error):
        return Reason(code="StorageFull", message=f"{full_at(blobs, error, needed=size)} The outputs {name} were not kept.")
    return Reason(code="OutputFailed", message=f"The outputs {name} could not be kept in {blobs}: {error.strerror or error}.")


def store_bytes(data: bytes, blobs: Path) -> str:
    """Keep `data` in the blob store and return its digest ("sha256:…"). Raises `OSError` when the disk is full."""
    with BlobDraft(blobs) as draft:
        draft.write(data)
        return draft.keep()


def _store(source: int, path: str, blobs: Path, check: Callable[[], object]) -> StoredFile:
    """Copy the open file `source` into the blob store, hashing on the way. A hole there is a hole here."""
    about = os.fstat(source)
    size = about.st_size
    _check_room(min(size, about.st_blocks * 512), blobs)
    with BlobDraft(blobs) as draft:
        while draft.size < size:
            check()
            if hole := min(size, _next_data(source, draft.size)) - draft.size:
                draft.skip(min(hole, _HOLE))
                continue
            chunk = os.pread(source, min(size - draft.size, _piece(source, draft.size)), draft.size)
            if not chunk:
                break
            draft.write(chunk)
        return StoredFile(path=path, size=draft.size, digest=draft.keep())


def _next_data(source: int, offset: int) -> int:
    """Where data begins at `offset` or after it: before that is a hole (lseek(2))."""
    try:
        return os.lseek(source, offset, os.SEEK_DATA)
    except OSError as error:
        # There is none, or the file system does not know.
        return max(offset, os.fstat(source).st_size) if error.errno == errno.ENXIO else offset


def _piece(source: int, offset: int) -> int:
    """How many bytes to read at once: no hole is among them."""
    with suppress(OSError):
        return min(_CHUNK, os.lseek(source, offset, os.SEEK_HOLE) - offset) or _CHUNK
    return _CHUNK


def _short(path: str) -> str:
    """A path for a sentence: of a long one, which may have thousands of names, its beginning."""
    return path if len(path) <= _IN_A_NOTE else f"{path[:_IN_A_NOTE]}…"


def shown(path: str) -> str:
    """The path as text: a byte that is none stands there as four characters, such as ``\\xff``."""
    return os.fsencode(path).decode(errors="backslashreplace")


class BlobDraft:
    """A blob while it is written; removed unless it is kept. Nobody takes a draft for a blob: it has another name."""

    def __init__(self, blobs: Path) -> None:
        import hashlib

        self._blobs = blobs
        incoming = blobs / "incoming"
        incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Nodes of a cluster share the store, and have processes of the same number.
        self._path = incoming / f"{os.getpid()}-{os.urandom(8).hex()}"
        self._digest = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> BlobDraft:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Add to it. Raises `OSError` when the disk is full; then nothing was added, and the same may be tried again."""
        if not data.strip(b"\0"):
            return self.skip(len(data))
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
            raise
        self._digest.update(data)
        self.size += len(data)
        return None

    def skip(self, size: int) -> None:
        """Add zeros that take no room on the disk."""
        os.lseek(self._fd, size, os.SEEK_CUR)
        self.size += size
        while size > 0:
            self._digest.update(_ZEROS[:size])
            size -= _CHUNK

    @property
    def digest(self) -> str:
        """The digest of what was written so far ("sha256:…")."""
        return f"sha256:{self._digest.hexdigest()}"

    def keep(self) -> str:
        """Make it a blob, and return its digest. It is on the disk, whole, before it has its name."""
        name = self._digest.hexdigest()
        final = self._blobs / name[:2] / name
        if not self._is_there(final):
            final.parent.mkdir(exist_ok=True, mode=0o700)
            os.ftruncate(self._fd, self.size)  # zeros at the end
            os.fchmod(self._fd, 0o400)
            os.fsync(self._fd)
            self._path.rename(final)
            _sync_directory(final.parent)
        return f"sha256:{name}"

    def _is_there(self, final: Path) -> bool:
        try:
            # It counts as used now: nobody removes it before the journal that names it was read (`carrel.lab.retention`).
            os.utime(final)
            return final.stat().st_size == self.size
        except FileNotFoundError:
            return False


def _sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk (fsync(2))."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep_drafts(blobs: Path, now: float, *, older_than: float = 24 * 3600.0) -> int:
    """Remove drafts whose writers are gone, which nothing has been added to for so many seconds; return how many."""
    removed = 0
    with suppress(FileNotFoundError):
        for draft in list((blobs / "incoming").iterdir()):
            with suppress(OSError):
                if now - draft.stat().st_mtime > older_than:
                    draft.unlink()
                    removed += 1
    return removed

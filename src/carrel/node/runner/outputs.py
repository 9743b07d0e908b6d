"""Storing outputs: what the patterns name, by content, in the lab's blob store.

Only regular files below the working directory are stored. A link to a file or a directory that lies inside stands for that, and
nothing outside can get in. Runs when every process of the job is gone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from carrel.core.domain.job import Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.units import format_size
from carrel.core.spool.disk import full_at, is_full

_CHUNK = 1024**2
_ZEROS = memoryview(bytes(_CHUNK))
#: Characters of the path of an output that the lab's database takes.
_LONGEST = 4096
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


def store_outputs(directory: Path, patterns: Sequence[str], blobs: Path, limit: int) -> StoredOutputs:
    """Store the files below `directory` that `patterns` name, `limit` bytes at most, smaller paths first.

    Patterns are relative globs: ``*`` and ``?`` stay within a name, ``**`` stands for any directories, and a pattern that
    names a directory means everything below it. Each file is stored whole or not at all; on a full disk, and on any other error,
    that file and what follows stay where they are, and `failure` says why.
    """
    result = StoredOutputs()
    left = limit
    too_large: list[tuple[str, int]] = []
    outside: list[str] = []
    unnamed: list[str] = []
    named: set[str] = set()
    for path in sorted(_matches(directory, patterns)):
        name = shown(path)
        if name in named or len(name) > _LONGEST:
            unnamed.append(name[:_LONGEST])
            continue
        fd = _open_inside(directory, path)
        if fd is None:
            outside.append(name)
            continue
        with open(fd, "rb", buffering=0) as file:
            about = os.fstat(fd)
            size = about.st_size
            if size > left:
                too_large.append((name, size))
                continue
            try:
                _check_room(min(size, about.st_blocks * 512), blobs)
                stored = _store(file.fileno(), name, size, blobs)
            except OSError as error:
                result.failure = _failure(name, size, blobs, error)
                result.notes.append(result.failure.message)
                result.left = True
                break
        left -= stored.size
        named.add(name)
        result.files.append(stored)
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


def _store(source: int, path: str, size: int, blobs: Path) -> StoredFile:
    """Copy `size` bytes of the open file `source` into the blob store, hashing on the way. A hole there is a hole here."""
    with BlobDraft(blobs) as draft:
        while draft.size < size:
            draft.skip(min(size, _next_data(source, draft.size)) - draft.size)
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


def _open_inside(directory: Path, path: str) -> int | None:
    """Open a file for reading if it is a regular file that lies in `directory`, also behind links."""
    real, inside = os.path.realpath(directory / path), os.path.realpath(directory) + os.sep
    try:
        place = os.open(real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = Path(f"/proc/self/fd/{place}")
    try:
        # By the descriptor: something else may have been put in the place of a directory on the way meanwhile.
        if not stat.S_ISREG(os.fstat(place).st_mode) or not str(found.readlink()).startswith(inside):
            return None
        try:
            return os.open(found, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            found.chmod(0o600)
            return os.open(found, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)


def _matches(directory: Path, patterns: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if ".." in parts or pattern.startswith("/"):
            continue  # refused when the task was read; here it must only do no harm
        expression = pattern_expression(parts)
        fixed = 0
        while fixed < len(parts) and not re.search(r"[*?\[]", parts[fixed]):
            fixed += 1
        start = "/".join(parts[:fixed])
        # A link that leads elsewhere in the place of the directory that is meant: it is said, for what is there is not kept.
        led_away = {start} if (directory / start).is_symlink() else set[str]()
        found.update(path for path in _walk(directory, start) if path in led_away or expression.fullmatch(path))
    return found


def pattern_expression(parts: Sequence[str]) -> re.Pattern[str]:
    """Return the expression for a glob that was split at its slashes; what lies below a match matches too.

    Patterns and names are a user's, so a name that nearly matches must not take for ever: what lies between two stars is looked
    for once, at the first place where it is, which is enough, because the next star takes the rest.
    """
    sections: list[list[str]] = [[]]
    for part in parts:
        if part != "**":
            sections[-1].append(_name_expression(part))
        elif sections[-1] or len(sections) == 1:
            sections.append([])
    (first, *between), last = sections[:-1] or [[]], sections[-1]
    expression = "".join(f"{name}/" for name in first)
    expression += "".join(f"(?>(?:[^/]+/)*?{'/'.join(names)}/)" for names in between)
    if len(sections) > 1:
        expression += "(?:[^/]+/)*" if last else ".+"
    return re.compile(f"{expression}{'/'.join(last)}(?:/.*)?", re.DOTALL)


def _name_expression(part: str) -> str:
    """The expression for one name of a glob."""
    pieces = [""]
    for token in re.findall(r"\*+|\?|\[!?\]?[^\]/]*\]|.", part):
        if token.startswith("*"):
            pieces.append("")
        elif token == "?":
            pieces[-1] += "[^/]"
        elif len(token) > 2 and token.startswith("["):
            pieces[-1] += _character_class(token)
        else:
            pieces[-1] += re.escape(token)
    (first, *between), last = pieces[:-1] or [""], pieces[-1]
    return first + "".join(f"(?>[^/]*?{piece})" for piece in between) + ("[^/]*" if len(pieces) > 1 else "") + last


def _character_class(token: str) -> str:
    inside = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    expression = f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    try:
        re.compile(expression)
    except re.error:  # such as [z-a]: then it means itself
        return re.escape(token)
    return expression


def _walk(directory: Path, start: str) -> Iterator[str]:
    """Yield everything below `start` that is not a directory; `start` itself when it is none.

    A link to a directory inside `directory` is entered, unless that is found anyway. A link that leads out of `directory`, or to
    one that the link itself lies in, is yielded.
    """
    root = os.path.realpath(directory)
    entered: set[str] = set()
    #: Beside each path the real one, where that is known: to resolve it at each of many levels takes the square of their number.
    todo: list[tuple[str, str | None]] = [(start, None)]
    links: list[tuple[str, str | None]] = []
    while todo or links:
        here, real = todo.pop() if todo else links.pop()
        if real is None:
            place = Path(root, here)
            real = os.path.realpath(place)
            if (
                not _is_directory(place)
                or not _holds(root, real)
                or (place.is_symlink() and _holds(real, os.path.realpath(place.parent)))
            ):
                if os.path.lexists(place):
                    yield here
                continue
        if real in entered:
            continue
        entered.add(real)
        try:
            entries = list(os.scandir(real))
        except OSError:  # closed, or so deep that its path is too long: it is said, for what is there is not kept
            yield here
            continue
        for entry in entries:
            path = f"{here}/{entry.name}" if here else entry.name
            if entry.is_dir(follow_symlinks=False):
                todo.append((path, f"{real}/{entry.name}"))
            elif entry.is_symlink() and _is_directory(entry):
                links.append((path, None))
            else:
                yield path


def _is_directory(place: Path | os.DirEntry[str]) -> bool:
    try:
        return place.is_dir()
    except OSError:  # a chain of links that does not end, or a name that is too long
        return False


def _holds(directory: str, path: str) -> bool:
    """True for the directory itself, and for what lies below it. Both are real paths."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")

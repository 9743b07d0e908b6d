"""The third place of GPU states: a directory on the local disk, for those that host memory has no room for.

A state is one file: a header, and its bytes in chunks that are encrypted and authenticated (AES-256-GCM). Each file has a key of
its own, made of the boot's key, a random salt and the state's name; each chunk is bound to the header and to its place. So what
comes back is what went out, byte for byte and all of it, or it is `StateLost`. A file is there as a whole (written under another
name, fsync(2), rename(2)) or not at all. It is written and read past the page cache where the file system can do that (O_DIRECT):
a state that leaves host memory must not come back there as a cache.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from carrel.core.domain.errors import CarrelError, Unavailable, in_words
from carrel.core.domain.units import MIB, format_size
from carrel.core.spool.disk import is_full
from carrel.node.broker.boot_key import BootKey
from carrel.node.broker.pool import Piece

#: Bytes of a chunk in the file, with its tag; the header has a block of its own.
CHUNK = 4 * MIB
_TAG, _BLOCK = 16, 4096
#: Chunks under way at once: one is read while another is encrypted and a third is written.
_LANES = 4
_MAGIC = b"CARREL STATE 1\n"
_SUFFIX = ".state"
#: Told by the lanes, each for itself, how many more bytes of a state are done.
Progress = Callable[[int], None]


class DiskFull(Unavailable):
    """The disk, or the part of it that states may have, has no room for this one. Nothing was written."""


class StateLost(CarrelError):
    """The state is not on the disk as it was put there: it cannot come back, and its process has to be restarted."""

    code = "conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What a file says of itself. It is not secret, and authenticated with every chunk."""

    name: str
    #: Id of the key: after a boot it is another one.
    key: str
    salt: str
    size: int

    def block(self) -> bytes:
        words = json.dumps(asdict(self), separators=(",", ":")).encode()
        return (_MAGIC + struct.pack("<I", len(words)) + words).ljust(_BLOCK, b"\0")


class StateDisk:
    """GPU states in a directory. Slow calls, for worker threads: any number at once, but one for each name."""

    def __init__(self, directory: Path, *, limit: int, floor: int, key: BootKey) -> None:
        """States take `limit` bytes at most, and `floor` bytes of the disk stay free for everything else.

        The directory is this broker's alone. Raises `Unavailable` when it cannot be made.
        """
        self.limit = limit
        self._directory = directory
        self._floor = floor
        self._key = key
        self._lock = threading.Lock()
        #: Bytes that are being written, by name.
        self._coming: dict[str, int] = {}
        self._closed = threading.Event()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"The directory for GPU states cannot be made: {in_words(error)}.", remedy="Set state_directory to another place."
            ) from error

    def used(self) -> int:
        """Bytes of files and of those that are being written."""
        with self._lock:
            return self._used()

    def left(self) -> int:
        """Bytes of state that there is room for."""
        with self._lock:
            return max(0, self._left() - _BLOCK - CHUNK)

    def close(self) -> None:
        """Give up what is under way: those calls end soon, as if the disk had failed."""
        self._closed.set()

    def write(self, name: str, pieces: Sequence[Piece], size: int, progress: Progress | None = None) -> None:
        """Put the first `size` bytes of `pieces` into the file `name`, a name that is used once.

        Raises `DiskFull` or `Unavailable` when they are not there afterwards; then nothing is.
        """
        needed = _file_size(size)
        with self._lock:
            left = self._left()
            if needed > left:
                raise DiskFull(
                    f"The disk has {format_size(max(0, left))} free for GPU states, {format_size(needed)} are needed.",
                    remedy="Set state_disk higher, or make room on the disk of state_directory.",
                )
            self._coming[name] = needed
        path, temporary = self._path(name), self._path(name).with_suffix(".part")
        try:
            header = _Header(name=name, key=self._key.id, salt=secrets.token_hex(16), size=size)
            self._write(temporary, header, pieces, progress)
            temporary.replace(path)
            _sync(self._directory)
        except OSError as error:
            for left_over in (temporary, path):
                with suppress(OSError):
                    left_over.unlink()
            kind = DiskFull if is_full(error) else Unavailable
            raise kind(f"A GPU state of {format_size(size)} cannot be written to the disk: {in_words(error)}.") from error
        finally:
            with self._lock:
                del self._coming[name]

    def read(self, name: str, pieces: Sequence[Piece], *, most: int | None = None, progress: Progress | None = None) -> int:
        """Bring the state back into `pieces`, or its first `most` bytes, and say how many bytes it has. The file stays.

        Raises `StateLost` when it is not what was put there; what is in `pieces` then means nothing. Raises `Unavailable` when
        the disk fails; the file may be readable later.
        """
        try:
            with _opened(self._path(name), os.O_RDONLY) as file:
                header = self._header(file)
                if header is None or header.name != name:
                    raise StateLost("A GPU state on the disk is not the one that was put there.", remedy=_RESTART)
                size = header.size if most is None else min(most, header.size)
                if size > sum(piece.size for piece in pieces):
                    raise ValueError(f"the state has {size} bytes, more than the pieces")

                def unpack(cipher: AESGCM, number: int, buffer: _Buffer) -> None:
                    _unpack(file, header, cipher, number, buffer, pieces, size)

                self._each(header, size, unpack, progress)
                return header.size
        except FileNotFoundError as error:
            raise StateLost("A GPU state is gone from the disk.", remedy=_RESTART) from error
        except InvalidTag as error:
            raise StateLost("A GPU state on the disk was changed or cut off.", remedy=_RESTART) from error
        except OSError as error:
            raise Unavailable(f"A GPU state cannot be read from the disk: {in_words(error)}.") from error

    def remove(self, name: str) -> None:
        """The state is not needed here any more."""
        self._path(name).unlink(missing_ok=True)

    def clean(self, keep: Collection[str]) -> list[str]:
        """After a start: remove every file but those of the states in `keep`, and say which of these cannot come back.

        That is all of them after a boot: the key is gone. Their files go too.
        """
        lost = []
        for name in keep:
            header = None
            with suppress(OSError), _opened(self._path(name), os.O_RDONLY) as file:
                header = self._header(file)
                if os.fstat(file).st_size < _file_size(header.size if header else 0):
                    header = None
            if header is None or header.name != name:
                lost.append(name)
        good = {self._path(name) for name in keep if name not in lost}
        for path in self._directory.iterdir():
            if path.suffix in (_SUFFIX, ".part") and path not in good:
                path.unlink(missing_ok=True)
        return lost

    # --- files ----------------------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._directory / (hashlib.sha256(name.encode()).hexdigest()[:40] + _SUFFIX)

    def _used(self) -> int:
        sizes = 0
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                sizes += path.stat().st_size
        return sizes + sum(self._coming.values())

    def _left(self) -> int:
        room = os.statvfs(self._directory)
        # What is coming has its room already, or is about to: it is counted twice for a moment rather than not at all.
        free = room.f_bavail * room.f_frsize - self._floor - sum(self._coming.values())
        return min(self.limit - self._used(), free)

    def _write(self, path: Path, header: _Header, pieces: Sequence[Piece], progress: Progress | None) -> None:
        with _opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
            _allocate(file, _file_size(header.size))

            def pack(cipher: AESGCM, number: int, buffer: _Buffer) -> None:
                _pack(file, header, cipher, number, buffer, pieces)

            self._each(header, header.size, pack, progress)
            with mmap.mmap(-1, _BLOCK) as block:
                block[:] = header.block()
                os.pwrite(file, block, 0)
            os.fsync(file)

    def _each(self, header: _Header, size: int, do: Callable[[AESGCM, int, _Buffer], None], progress: Progress | None) -> None:
        """Do something for each chunk of the first `size` bytes, some at once.

        Raises the first error, after all that had begun are done.
        """
        cipher = AESGCM(self._key.derive(bytes.fromhex(header.salt), header.name.encode()))
        numbers = iter(range(_chunks(size)))
        failed = threading.Event()

        def lane() -> None:
            buffer = _Buffer()
            try:
                while not failed.is_set():
                    with self._lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    if self._closed.is_set():
                        raise InterruptedError(errno.ECANCELED, "the broker ends")
                    do(cipher, number, buffer)
                    if progress is not None:
                        progress(min(CHUNK - _TAG, size - number * (CHUNK - _TAG)))
            except BaseException:
                failed.set()
                raise
            finally:
                buffer.close()

        with ThreadPoolExecutor(_LANES, "state disk") as lanes:
            endings = [lanes.submit(lane) for _ in range(min(_LANES, _chunks(size)))]
        for ending in endings:
            ending.result()

    def _header(self, file: int) -> _Header | None:
        """The header of a file, or None when it is none, or of another key."""
        with mmap.mmap(-1, _BLOCK) as block:
            if os.preadv(file, [block], 0) != _BLOCK:
                return None
            data = bytes(block)
        try:
            (length,) = struct.unpack_from("<I", data, len(_MAGIC))
            start = len(_MAGIC) + 4
            header = _Header(**json.loads(data[start : start + length]))
            bytes.fromhex(header.salt)
            if header.block() != data or header.key != self._key.id or header.size <= 0:
                return None
        except (ValueError, TypeError, AttributeError, struct.error):
            return None
        return header


_RESTART = "Restart the kernel and run its cells again."


class _Buffer:
    """Room for one chunk, as it is in the file and as it is in memory. Both begin at a page, as O_DIRECT demands."""

    def __init__(self) -> None:
        self._maps = mmap.mmap(-1, CHUNK), mmap.mmap(-1, CHUNK)
        self.file, self.plain = (memoryview(one) for one in self._maps)

    def close(self) -> None:
        for view, one in zip((self.file, self.plain), self._maps, strict=True):
            view.release()
            one.close()


def _chunks(size: int) -> int:
    return -(-size // (CHUNK - _TAG))


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _file_size(size: int) -> int:
    full, rest = divmod(size, CHUNK - _TAG)
    return _BLOCK + full * CHUNK + (_padded(rest + _TAG) if rest else 0)


def _bounds(header: _Header, number: int) -> tuple[int, int]:
    """Where a chunk begins in the state, and how many of its bytes it has."""
    start = number * (CHUNK - _TAG)
    return start, min(CHUNK - _TAG, header.size - start)


def _bound_to(header: _Header, number: int) -> bytes:
    return hashlib.sha256(header.block()).digest() + number.to_bytes(8, "little")


def _pack(file: int, header: _Header, cipher: AESGCM, number: int, buffer: _Buffer, pieces: Sequence[Piece]) -> None:
    start, size = _bounds(header, number)
    done = 0
    for fd, offset, count in _extents(pieces, start, size):
        if os.preadv(fd, [buffer.plain[done : done + count]], offset) != count:
            raise OSError(errno.EIO, "the host memory of a state is shorter than it was")
        done += count
    cipher.encrypt_into(number.to_bytes(12, "little"), buffer.plain[:size], _bound_to(header, number), buffer.file[: size + _TAG])
    whole = _padded(size + _TAG)
    buffer.file[size + _TAG : whole] = bytes(whole - size - _TAG)
    if os.pwrite(file, buffer.file[:whole], _BLOCK + number * CHUNK) != whole:
        raise OSError(errno.ENOSPC, "the disk took only a part of it")


def _unpack(file: int, header: _Header, cipher: AESGCM, number: int, buffer: _Buffer, pieces: Sequence[Piece], most: int) -> None:
    start, size = _bounds(header, number)
    whole = _padded(size + _TAG)
    if os.preadv(file, [buffer.file[:whole]], _BLOCK + number * CHUNK) < size + _TAG:
        raise InvalidTag
    cipher.decrypt_into(number.to_bytes(12, "little"), buffer.file[: size + _TAG], _bound_to(header, number), buffer.plain[:size])
    done = 0
    for fd, offset, count in _extents(pieces, start, min(size, most - start)):
        if os.pwrite(fd, buffer.plain[done : done + count], offset) != count:
            raise OSError(errno.ENOMEM, "the host memory of a state took only a part of it")
        done += count


def _extents(pieces: Sequence[Piece], start: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Where bytes of a state lie: descriptor, offset and count. A state goes through its pieces in their order."""
    for piece in pieces:
        if size <= 0:
            return
        if start < piece.size:
            count = min(piece.size - start, size)
            yield piece.fd, start, count
            size -= count
            start = 0
        else:
            start -= piece.size
    if size > 0:
        raise OSError(errno.EIO, "the pieces of a state are shorter than the state")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """The file, past the page cache where that can be; else what it leaves there is dropped at the end."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file, direct = os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        file, direct = os.open(path, flags, 0o600), False
    try:
        yield file
    finally:
        if not direct:
            with suppress(OSError):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _allocate(file: int, size: int) -> None:
    """Take the room now: a disk that is full says so before anything is written."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        os.ftruncate(file, size)


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)

"""Which disk a path is on, how much room it has, and a file that keeps some of it for the worst moment."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.storage import Disk
from carrel.core.domain.units import format_size

#: What the system says when a disk or a quota is full (errno(3)).
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: BaseException) -> bool:
    """True for the error of a disk or a quota that is full."""
    return isinstance(error, OSError) and error.errno in FULL


def disk_of(path: str | Path) -> Disk:
    """Return the file system that `path` is on; what is not there yet would be where its parent is. Raises `OSError`."""
    place = _existing(Path(path))
    found = os.statvfs(place)
    block = found.f_frsize or found.f_bsize
    return Disk(
        path=_mount_of(place),
        total=found.f_blocks * block,
        free=found.f_bavail * block,
        # File systems that make inodes as they need them count none.
        takes_files=found.f_files == 0 or found.f_favail > 0,
    )


def full_at(path: str | Path, error: OSError | None = None, *, needed: int | None = None) -> str:
    """Say which disk is full, how much is free on it and how much was needed, as one sentence.

    Never fails: it is called when something has failed already.
    """
    need = "" if needed is None else f", {format_size(needed)} are needed"
    try:
        disk = disk_of(path)
    except OSError:
        return f"No space is left at {path}{need}."
    if error is not None and error.errno == errno.EDQUOT:
        return f"The quota on {disk.describe()}, but not for this user{need}."
    return f"No space is left on {disk.describe()}{need}."


def _existing(path: Path) -> Path:
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _mount_of(path: Path) -> str:
    """Return where the file system of `path` begins: above it is another device (statfs(2) does not say)."""
    place = Path(os.path.realpath(path))
    device = place.stat().st_dev
    while place != place.parent:
        try:
            if place.parent.stat().st_dev != device:
                break
        except OSError:
            break
        place = place.parent
    return str(place)


class Reserve:
    """Room that is set aside in a file, and given back when a disk is full, so that what ends can still be written down."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    @property
    def held(self) -> bool:
        """True while the room is set aside."""
        return self._path.exists()

    def take(self) -> bool:
        """Set the room aside; return whether it is. A disk without the room keeps what it has."""
        if self.held:
            return True
        draft = self._path.with_name(f"{self._path.name}.new")
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._size)
            finally:
                os.close(fd)
            draft.rename(self._path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            return False
        return True

    def release(self) -> bool:
        """Give the room back; return whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

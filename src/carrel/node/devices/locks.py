"""Who on this machine holds which GPU: one locked file per device, shared by all labs on the machine.

A lock (flock(2)) belongs to the open file, so a runner that inherits the descriptor holds the device for as long as it
lives, and the kernel frees it when the runner dies, however it dies. Simulated devices belong to one lab and need no lock.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.node import Device

#: Tried in this order; the same for every user of the machine, with any TMPDIR.
STANDARD_DIRECTORIES = (Path("/var/lock/carrel"), Path("/tmp/carrel-locks"))


class DeviceLocks:
    """The machine's device locks, in `directory` (default: the first of `STANDARD_DIRECTORIES` that is sound)."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._sound: Path | None = None

    def take(self, devices: Sequence[Device]) -> list[int]:
        """Lock every device that is not simulated, and return the descriptors that hold the locks: all or none.

        Raises `Unavailable`, naming the device, when somebody else holds one.
        """
        held: list[int] = []
        try:
            for device in sorted(devices, key=lambda device: device.uuid):
                if device.simulated:
                    continue
                fd = self._open(device.uuid)
                held.append(fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Unavailable(
                        f"GPU {device.index} ({device.name}, {device.uuid}) is held by another lab on this machine.",
                        remedy="The job waits until it is free.",
                        details={"device": device.uuid},
                    ) from None
        except BaseException:
            for fd in held:
                os.close(fd)
            raise
        return held

    def is_held(self, device: Device) -> bool:
        """Return whether anybody holds the device now."""
        if device.simulated:
            return False
        fd = self._open(device.uuid)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _open(self, uuid: str) -> int:
        """Open the lock file of a device; it is never removed, because a removed file would be a second lock."""
        if self._sound is None:
            self._sound = self._find()
        path = self._sound / f"{uuid.replace('/', '_')}.lock"
        with suppress(FileExistsError):
            # Not O_CREAT alone: fs.protected_regular (proc_sys_fs(5)) refuses that for a file of another user's.
            fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
            os.fchmod(fd, 0o444)
            return fd
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise Unavailable(
                f"The device lock {path} cannot be opened: {error.strerror}.", remedy="Remove it; Carrel makes it again."
            ) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Unavailable(f"{path} is not a regular file.", remedy="Remove it; Carrel makes it again.")
        return fd

    def _find(self) -> Path:
        candidates = (self._directory,) if self._directory else STANDARD_DIRECTORIES
        for directory in candidates:
            if _make_shared(directory):
                return directory
        raise Unavailable(
            f"No directory for device locks: {' and '.join(map(str, candidates))} cannot be used.",
            remedy="Make one of them a directory with mode 1777, owned by root.",
        )


def _make_shared(directory: Path) -> bool:
    """Make `directory` for all users (mode 1777) unless it is there; return whether it is what it should be."""
    if not os.path.lexists(directory):
        # Made under another name and renamed, so that nobody ever sees it with another mode and turns to the next candidate.
        try:
            draft = Path(tempfile.mkdtemp(prefix=".carrel-", dir=directory.parent))
        except OSError:
            return False
        try:
            draft.chmod(0o1777)
            draft.rename(directory)
        except OSError:  # somebody else was faster
            draft.rmdir()
    try:
        mode = directory.lstat().st_mode  # lstat: a link that somebody else put there is not followed
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777

"""Room on the disk that is the audit log's before it is needed (fallocate(2), FALLOC_FL_KEEP_SIZE)."""

from __future__ import annotations

import ctypes
import errno
import os

#: Bytes that are kept ahead of what was written, and how few of them are a reason to ask for more.
AHEAD, LOW = 1024 * 1024, 256 * 1024
#: So few of them, and only what frees room is done.
LAST = 64 * 1024
_KEEP_SIZE = 1


def keep(fd: int, start: int, size: int) -> None:
    """Have blocks for `size` bytes from `start` on, without making the file longer. Raises `OSError` where there is no room.

    A file system that cannot do that is asked how much is free instead.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None and call(fd, _KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(size)) == 0:
        return
    number = ctypes.get_errno() if call is not None else errno.ENOSYS
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(number, os.strerror(number))
    free = os.fstatvfs(fd)
    if free.f_bavail * free.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

"""Files in memory (memfd_create(2)) for pieces of the pool: of a size that stays, and touched before anybody needs them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

from carrel.core.domain.units import MIB

_libc = ctypes.CDLL(None)

#: What is written at once when memory is touched. Writing it was measured faster than MADV_POPULATE_WRITE (1.0 against 0.9 GB/s
#: for fresh memory on the machine of this measurement), and needs no mapping and no recent kernel.
_ZEROS = memoryview(bytes(4 * MIB))
#: Linux 5.14 and newer: write-fault a range of a mapping, so that the memory is there.
_POPULATE_WRITE = 23

_GET_SEALS, _ADD_SEALS = 1034, 1033
_SIZE_SEALS = 0x0002 | 0x0004  # F_SEAL_SHRINK, F_SEAL_GROW (fcntl(2))
_SEALS = 0x0001 | _SIZE_SEALS  # F_SEAL_SEAL: and no other seal is added later, such as one against writing


def make_file(size: int) -> int:
    """A new file of so many bytes; nobody can make it larger or smaller. Raises `OSError`; returns its descriptor."""
    fd = os.memfd_create("carrel-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def touch(fd: int, size: int, over: Callable[[], bool]) -> None:
    """Make the memory of the file be there. Raises `OSError`; returns early when it is `over`."""
    for offset in range(0, size, len(_ZEROS)):
        if over():
            return
        os.pwrite(fd, _ZEROS[: size - offset], offset)


def touch_huge(fd: int, size: int, over: Callable[[], bool]) -> None:
    """The same through a mapping, which is how huge pages are asked for; an older kernel makes it as `touch` does."""
    with mmap.mmap(fd, size) as mapping:
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.c_char.from_buffer(mapping)
        try:
            for offset in range(0, size, len(_ZEROS)):
                part = min(len(_ZEROS), size - offset)
                # By ctypes, so that other threads go on meanwhile.
                if over() or _libc.madvise(ctypes.c_void_p(ctypes.addressof(start) + offset), part, _POPULATE_WRITE) != 0:
                    break
        finally:
            del start  # the mapping cannot be closed before
    if os.fstat(fd).st_blocks * 512 < size:
        touch(fd, size, over)


def is_sealed(fd: int) -> bool:
    """True for a file whose size nobody can change."""
    try:
        return fcntl.fcntl(fd, _GET_SEALS) & _SIZE_SEALS == _SIZE_SEALS
    except OSError:
        return False

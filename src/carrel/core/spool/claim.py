"""The claim on an attempt: taken once, by one runner, for ever.

The file is locked (flock(2)) before it gets its name (link(2) fails when the name exists), so nobody can ever see a claim
whose living owner does not hold the lock. The kernel drops the lock when the owner dies, however it dies; therefore
"claimed and not locked" is proof that the runner is gone, where a missing process id would be a guess.

It says in which file it was written, and under which boot of which kernel. A copy of the attempt's directory has another file, so
the copy of a claim is known as one: what it says of processes is true of somebody else's.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Mode of the claim on an attempt whose command may have begun; before that it is 0600.
_BEGUN = 0o400


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a claimed attempt."""

    #: Process that took the claim.
    pid: int
    #: True while that process lives.
    held: bool
    #: True when this is the copy of a claim that was taken in another directory.
    copied: bool = False
    #: True once the command may have begun.
    begun: bool = False
    #: True when it was taken on another machine, or here before the last boot: `pid` is no process of this machine.
    elsewhere: bool = False


def boot_id() -> str:
    """Return what this machine's kernel is called until its next boot (random(4)), "" where it does not say."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def take_claim(path: Path, pid: int) -> int | None:
    """Claim the attempt for process `pid` and return the descriptor that holds it, or None when it was claimed before.

    The claim is held until the descriptor (and every copy of it) is closed. Raises `OSError` when the disk is full.
    """
    draft = path.with_name(f"{path.name}.{pid}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, f"{pid} {os.fstat(fd).st_ino} {boot_id()}\n".encode())
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(draft, path)
    except FileExistsError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    finally:
        draft.unlink()
    return fd


def note_begun(path: Path) -> None:
    """Write down, before the command is started, that it may have begun. A mode takes no room: this works on a full disk."""
    path.chmod(_BEGUN)


def read_claim(path: Path) -> Claim | None:
    """Return who claimed the attempt and whether that process lives, or None when nobody did."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        # Without a boot where the kernel names none; what is damaged is taken for a copy, for which nothing is ended.
        pid, inode, boot, *_ = [*os.read(fd, 256).decode("ascii", "replace").split(), "", "", ""]
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held = True
        else:
            held = False
        return Claim(
            pid=int(pid) if pid.isdigit() else 0,
            held=held,
            copied=inode != str(os.fstat(fd).st_ino),
            begun=stat.S_IMODE(os.fstat(fd).st_mode) == _BEGUN,
            elsewhere=bool(boot) and boot != boot_id(),
        )
    finally:
        os.close(fd)

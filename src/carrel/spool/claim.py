"""The claim on an attempt: taken once, by one runner, for ever.

The file is locked (flock(2)) before it gets its name (link(2) fails when the name exists), so nobody can ever see a claim
whose living owner does not hold the lock. The kernel drops the lock when the owner dies, however it dies; therefore
"claimed and not locked" is proof that the runner is gone, where a missing process id would be a guess.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a claimed attempt."""

    #: Process that took the claim.
    pid: int
    #: True while that process lives.
    held: bool


def take_claim(path: Path, pid: int) -> int | None:
    """Claim the attempt for process `pid` and return the descriptor that holds it, or None when it was claimed before.

    The claim is held until the descriptor (and every copy of it) is closed. Raises `OSError` when the disk is full.
    """
    draft = path.with_name(f"{path.name}.{pid}")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, b"%d\n" % pid)
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


def read_claim(path: Path) -> Claim | None:
    """Return who claimed the attempt and whether that process lives, or None when nobody did."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        text = os.read(fd, 32).strip()
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held = True
        else:
            held = False
        return Claim(pid=int(text) if text.isdigit() else 0, held=held)
    finally:
        os.close(fd)

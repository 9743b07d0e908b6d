"""A deputy's directory: one deputy at a time has it, and removes what nobody needs any more."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from carrel.core.domain.errors import Conflict
from carrel.node.runner.outputs import sweep_drafts

#: Seconds for which an earlier deputy of the same user and lab may still be there.
_PATIENCE = 10.0
#: Code that no job has used for so long goes.
_KEEP_CODE = 30 * 24 * 3600.0


def sweep(root: Path) -> None:
    """Remove what earlier deputies have left, and what nobody has asked for in a long time."""
    now = time.time()
    for archive in (root / "snapshots").iterdir():
        if archive.suffix != ".tar" or now - archive.stat().st_mtime > _KEEP_CODE:
            archive.unlink(missing_ok=True)
    sweep_drafts(root / "blobs", now)
    for blob in (root / "blobs").glob("??/*"):
        if now - blob.stat().st_mtime > _KEEP_CODE:
            blob.unlink(missing_ok=True)


def only_one(path: Path) -> int:
    """Return a lock that no other deputy of this user and lab has. Raises `Conflict` while there is one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise Conflict("An earlier deputy of this user is still there.", remedy="It ends with its lab.") from None
            time.sleep(0.1)
        else:
            return fd

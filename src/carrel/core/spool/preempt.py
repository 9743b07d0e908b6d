"""The file that says that a job is preempted: the engine writes it for the runner, and removes it when the job may go on."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.job import Preemption
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.spool.foreign import parse_json, read_regular

#: What is left of a word that met a full disk: what it has to do with the job can always be done.
_UNREADABLE = Preemption(mode=PreemptMode.REQUEUE, by=0, qos="another", at=0.0, grace=60)


def write_preempt(path: Path, preemption: Preemption) -> None:
    """Leave the word; it is there whole or not at all. On a full disk it says to end and go back to the queue."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):
            os.write(fd, json.dumps(to_plain(preemption)).encode())
        draft.rename(path)
    finally:
        os.close(fd)
        draft.unlink(missing_ok=True)


def read_preempt(path: Path) -> Preemption | None:
    """Return the word, or None when there is none."""
    try:
        return from_plain(Preemption, parse_json(read_regular(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return _UNREADABLE

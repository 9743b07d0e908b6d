"""Attempts whose files belong to a job's owner and not to the lab: read with the owner's rights, and believed no further.

On a cluster where jobs run as their owners (docs/decisions/0017) such files are the owner's to write. So nothing in them says
whose they are: the kernel does (SO_PEERCRED). What they say about GPUs and memory concerns the owner's own job.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import posixpath
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Denied
from carrel.core.spool import AttemptDirectory

#: Longest launch file that is read, in bytes; and the most GPUs and bytes of memory that one may speak of.
_LONGEST, _MOST_GPUS, _MOST_MEMORY = 1024**2, 4096, 2**60
_NOBODY = 65534
_CLAIM, _LAUNCH = AttemptDirectory(Path()).claim.name, AttemptDirectory(Path()).launch.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignJob:
    """What a job's own files say about it."""

    session: bool
    #: It is a session, or a worker of a pool: its processes borrow devices.
    borrows: bool
    #: Devices that a cell or a call gets; and, of a session, whether they are its own.
    gpus: int
    reserve: bool
    #: Positions on the node of the GPUs of which it has a share.
    shares: tuple[int, ...]
    #: Whether it has whole GPUs.
    assigned: tuple[str, ...]
    #: Bytes of host memory.
    memory: int


def read_foreign(path: object, uid: int, *, job: int, attempt: int) -> ForeignJob:
    """What the attempt's directory `path`, named by a process of user `uid`, says. Raises `Denied`."""
    if not isinstance(path, str) or not posixpath.isabs(path) or "\0" in path or len(path) > 4096:
        raise Denied(f"Attempt {attempt} of job {job} is not known here.", remedy="Start the session again.")
    try:
        with rights_of(uid):
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                about = os.fstat(directory)
                held = about.st_uid == uid and _held(directory)
                text = _content(directory)
            finally:
                os.close(directory)
        if not held:
            raise Denied(f"Attempt {attempt} of job {job} does not run.", remedy="Only what runs can borrow GPUs.")
        return _understood(json.loads(text), job, attempt)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Denied(
            f"The files of job {job} cannot be used ({type(error).__name__}).", remedy="Start the session again."
        ) from error


@contextmanager
def rights_of(uid: int) -> Iterator[None]:
    """In this thread, files are opened with the rights of `uid` (setfsuid(2)); who is not root has no other rights anyway."""
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = _NOBODY
    libc = ctypes.CDLL(None)
    libc.setfsgid(gid)
    libc.setfsuid(uid)
    try:
        if libc.setfsuid(-1) != uid:  # it tells what it is, and never that it failed
            raise PermissionError("the rights of another user cannot be taken")
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)


def _held(directory: int) -> bool:
    """True while the attempt's runner lives: it holds the lock on its claim."""
    claim = _open(directory, _CLAIM)
    try:
        fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(claim)
    return False


def _content(directory: int) -> bytes:
    with os.fdopen(_open(directory, _LAUNCH), "rb") as file:
        data = file.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise ValueError("it is too long")
    return data


def _open(directory: int, name: str) -> int:
    """Open a plain file; one that would make us wait is none."""
    found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise ValueError("it is no plain file")
    return found


def _understood(found: Any, job: int, attempt: int) -> ForeignJob:
    if (found["job_id"], found["attempt"]) != (job, attempt):
        raise Denied(f"These are not the files of attempt {attempt} of job {job}.", remedy="Start the session again.")
    session = found["task"].get("session")
    about = {} if session is None else session
    borrowed = _number(found["task"].get("borrows", 0), _MOST_GPUS)
    return ForeignJob(
        session=session is not None,
        borrows=session is not None or borrowed > 0,
        gpus=_number(about.get("gpus", borrowed), _MOST_GPUS),
        reserve=about.get("reserve") is True,
        shares=tuple(_number(item, _MOST_GPUS) for item in found.get("shares", ())[:_MOST_GPUS]),
        assigned=tuple(str(device["uuid"]) for device in found.get("devices", ())[:_MOST_GPUS]),
        memory=_number(found["resources"]["memory"], _MOST_MEMORY),
    )


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("it is no number that can be")
    return value

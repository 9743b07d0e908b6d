"""What a job, or its own user, could have written: how it is opened, and what may stand in it.

A job can put a link, a pipe, a device or a file without end in the place of anything in its directories. So what lies there is
opened by descriptor, without following a link and without waiting, and has to be of the right kind.

On a cluster a job runs as its owner, so its journal, and what its owner's deputy says of it, are the owner's words. A record that
says more than a runner can say is damaged: it costs its own job, and nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from carrel.core.domain.job import ENDED
from carrel.core.domain.launch import (
    Advised,
    Continued,
    Ended,
    EnvironmentReady,
    InputsReady,
    JournalRecord,
    Preparing,
    Resumed,
    Sampled,
    Started,
    StoredFile,
    Usage,
)
from carrel.core.domain.units import LATEST

#: Seconds for which a job may have been stopped: ten years.
LONGEST = 10 * 366 * 86400
#: Percent, bytes and joules, whichever it is: an exabyte.
_MOST_OF_A_DEVICE = 2.0**60
#: What an exit code and a signal may be (wait(2)).
_CODES, _SIGNALS = range(256), range(1, 128)
#: Characters of a message, of a path (PATH_MAX, limits.h(0p)) and of a name that the lab's tables have columns for.
LONGEST_MESSAGE, _LONGEST_PATH, _LONGEST_NAME = 65_536, 4096, 64
#: Entries of a mapping: files of inputs, and all others.
_MOST_INPUTS, _MOST = 1_000_000, 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: Bytes of a word that is a file of its own.
_SHORT = 64 * 1024
#: What `open_regular` says where nothing is there, or a link, a pipe, a socket, a device or a directory.
NOT_THERE = frozenset({errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.ENXIO})
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: Path) -> BinaryIO:
    """Open a file that a job's owner may have put another thing in the place of: a link, a pipe, a device.

    Does not wait, whatever is there. Raises `OSError` where it is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(fd, "rb", buffering=0)


def read_regular(path: Path, longest: int = _SHORT) -> bytes:
    """Return what is in such a file. Raises `OSError` where it is no regular file, or longer."""
    with open_regular(path) as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise OSError(errno.EFBIG, f"longer than {longest} bytes", str(path))
    return data


def read_last(path: Path, most: int) -> bytes:
    """Return the end of such a file, `most` bytes. Raises `OSError` where it is no regular file."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most)


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says that a job could have written. Raises `ValueError` for what is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def socket_at(path: str | Path) -> Iterator[str]:
    """Yield a path at which to connect to the socket that a job listens on; good until the end of the block.

    It leads to the socket that was looked at, whatever is at `path` by then. Raises `OSError` unless that is a socket, and it and
    its directory belong to this user, with no link in the place of either.
    """
    place = Path(path)
    directory = os.open(place.parent, _LOOK | os.O_DIRECTORY)
    try:
        found = os.open(place.name, _LOOK, dir_fd=directory)
        try:
            about = os.fstat(found)
            if not stat.S_ISSOCK(about.st_mode):
                raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), str(place))
            if {about.st_uid, os.fstat(directory).st_uid} != {os.geteuid()}:
                raise PermissionError(errno.EACCES, "belongs to another user", str(place))
            yield f"/proc/self/fd/{found}"
        finally:
            os.close(found)
    finally:
        os.close(directory)


def is_digest(text: str) -> bool:
    """True of the SHA-256 of a content as Carrel writes it: never of a path, whatever it says."""
    return _DIGEST.fullmatch(text) is not None


def check_record(at: float, record: JournalRecord) -> None:
    """Raise `ValueError` where a record of the moment `at` (Unix seconds) says what no runner says."""
    if not 0 <= at <= LATEST:
        raise ValueError(f"the moment {at:g}")
    match record:
        case Ended():
            if record.state not in ENDED:
                raise ValueError(f"an end in the state {record.state}")
            if record.exit_code is not None and record.exit_code not in _CODES:
                raise ValueError(f"exit code {record.exit_code}")
            if record.signal is not None and record.signal not in _SIGNALS:
                raise ValueError(f"signal {record.signal}")
            _check_texts((record.reason.message,))
            _check_usage(record.usage)
            check_files(record.outputs)
        case Preparing() | Advised():
            _check_texts((record.message,))
        case EnvironmentReady():
            if record.lock and not is_digest(record.lock):
                raise ValueError("a lock that is no digest")
            _check_texts((record.python,), longest=_LONGEST_NAME)
            _check_texts((record.digest,), longest=len("sha256:") + 64)
        case InputsReady():
            _check_mapping(record.digests, most=_MOST_INPUTS)
            _check_mapping(record.sources, most=_MOST_INPUTS)
        case Started():
            _check_mapping(record.hardware)
            _check_mapping(record.seeds)
        case Sampled():
            _check_usage(record.usage)
        case Resumed() | Continued():
            if not 0 <= record.seconds <= LONGEST:
                raise ValueError(f"{record.seconds:g} seconds")
        case _:
            pass


def check_files(files: Sequence[StoredFile]) -> None:
    """Raise `ValueError` where an output has another name than a digest, a path outside its directory or no size."""
    for file in files:
        path = PurePosixPath(file.path)
        if not is_digest(file.digest):
            raise ValueError("an output that is no digest")
        if not path.parts or path.is_absolute() or ".." in path.parts:
            raise ValueError("an output outside its directory")
        _check_texts((file.path,), longest=_LONGEST_PATH)
        if file.size < 0:
            raise ValueError(f"an output of {file.size} bytes")


def _check_usage(usage: Usage) -> None:
    by_device: Mapping[str, float]
    for by_device in (usage.gpu_utilization, usage.gpu_memory, usage.gpu_mean, usage.gpu_sm, usage.gpu_sm_mean,
                      usage.gpu_memory_peak, usage.gpu_energy):  # fmt: skip
        if len(by_device) > _MOST:
            raise ValueError(f"the use of {len(by_device)} devices")
        if not all(0 <= value < _MOST_OF_A_DEVICE for value in by_device.values()):
            raise ValueError("a use that no device has")
        _check_texts(by_device, longest=_LONGEST_PATH)


def _check_mapping(texts: Mapping[str, str], most: int = _MOST) -> None:
    if len(texts) > most:
        raise ValueError(f"a mapping of {len(texts)} entries")
    _check_texts(texts, longest=_LONGEST_PATH)
    _check_texts(texts.values())


def _check_texts(texts: Iterable[str], longest: int = LONGEST_MESSAGE) -> None:
    for text in texts:
        if len(text) > longest:
            raise ValueError(f"a text of {len(text)} characters")

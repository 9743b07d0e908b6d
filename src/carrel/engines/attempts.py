"""One watched attempt: what its files say, and what that proves."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.launch import Claimed, Ended, EnvironmentReady, InputsReady, Journaled, Launch, Observation, Preparing
from carrel.core.domain.serial import to_plain
from carrel.core.spool import AttemptDirectory, read_claim, read_entries
from carrel.core.spool.disk import full_at, is_full
from carrel.core.spool.foreign import read_regular
from carrel.core.spool.seal import SignedOrder
from carrel.node.runner.prepare import remove_temporary
from carrel.node.runner.walls import remove_private

_log = logging.getLogger(__name__)

#: Looks at a journal that its disk does not let be read, before a runner that is gone counts as gone without an end.
_LOOKS = 20

Key = tuple[int, int]


@dataclass(slots=True)
class Watched:
    """What the engine remembers of an attempt. Once it is watched, only the observer's thread changes it."""

    launch: Launch
    token: str
    directory: AttemptDirectory
    #: What the lab has signed of it; None where nobody asks for that.
    order: SignedOrder | None = None
    #: Bytes of the journal that were delivered.
    offset: int = 0
    log_size: int = 0
    #: Refers to the runner, -1 while it is not known.
    pidfd: int = -1
    #: Times that a runner was asked for.
    asked: int = 0
    #: True while the nursery has not answered.
    in_flight: bool = False
    #: True when the runner is known to be gone.
    dead: bool = False
    #: True when an end or the absence of the runner was delivered.
    over: bool = False
    #: Times in a row that the disk did not let the journal be read.
    unreadable: int = 0
    #: True when there is a message for the runner that it may not have got: somebody wants its end, or its place.
    wanted: bool = False

    @property
    def key(self) -> Key:
        """Job and attempt."""
        return self.launch.job_id, self.launch.attempt

    def news(self) -> Observation | None:
        """Return what the files say that was not delivered yet, or None. Nothing counts as delivered before `delivered`."""
        entries: tuple[Journaled, ...] = ()
        offset, gone = self.offset, self.dead
        try:
            entries, offset = read_entries(self.directory.journal, self.offset, over=self.dead)
            self.unreadable = 0
        except OSError as error:
            if self.unreadable == 0:
                _log.error("the journal of job %d, attempt %d, cannot be read: %s", *self.key, error)
            self.unreadable += 1
            gone = self.dead and self.unreadable > _LOOKS  # the disk may come back, and the end may be in there
        try:
            size = self.directory.log.lstat().st_size
        except OSError:
            size = self.log_size
        gone = gone and not any(isinstance(entry.record, Ended) for entry in entries)
        if not entries and size == self.log_size and not gone:
            return None
        return Observation(
            job_id=self.launch.job_id,
            attempt=self.launch.attempt,
            entries=entries,
            offset=offset,
            log_size=size if size != self.log_size else None,
            gone=gone,
            unbegun=gone and self._unbegun(),
        )

    def _unbegun(self) -> bool:
        """Return whether the runner, which is gone, had not begun to start the command."""
        claim = read_claim(self.directory.claim)
        if claim is None or claim.begun or claim.copied:
            return False
        try:
            entries, _ = read_entries(self.directory.journal)
        except OSError:
            return False
        # After a power cut the mark may be gone, and the journal be there.
        return all(isinstance(entry.record, (Claimed, Preparing, EnvironmentReady, InputsReady)) for entry in entries)

    def ended(self) -> bool:
        """Return whether the journal holds its end, delivered or not."""
        news = self.news()
        return self.over or (news is not None and any(isinstance(entry.record, Ended) for entry in news.entries))

    def delivered(self, observation: Observation) -> None:
        """The observer's client has taken `observation`."""
        self.offset = observation.offset
        if observation.log_size is not None:
            self.log_size = observation.log_size
        self.over = self.over or observation.gone or any(isinstance(entry.record, Ended) for entry in observation.entries)

    def attach(self, pidfd: int) -> None:
        """Watch the runner that `pidfd` refers to; tell it of word that came before it was known."""
        self.pidfd = pidfd
        if self.wanted:
            self.alert()

    def tell(self) -> None:
        """Make the runner look at what was left for it, now or as soon as it is known."""
        self.wanted = True
        self.alert()

    def alert(self) -> None:
        """Make the runner look at what was left for it."""
        if self.pidfd >= 0:
            with suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def let_go(self) -> None:
        """Close the pidfd."""
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


def write_launch(watched: Watched) -> None:
    """Write what a runner needs, private to the lab. Raises `StorageFull` or `Unavailable`; then nothing is there."""
    directory = watched.directory
    try:
        directory.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.path.mkdir(mode=0o700, exist_ok=True)
        _write(directory.token, watched.token.encode())
        if watched.order is not None:
            _write(directory.order, watched.order.dump())
        _write(directory.launch, _json(watched.launch))
    except OSError as error:
        discard_launch(directory)
        if is_full(error):
            raise StorageFull(full_at(directory.path, error), remedy="Free space; nothing was started.") from error
        raise Unavailable(f"The spool cannot be written: {error}.", remedy="Nothing was started.") from error


def is_written(watched: Watched) -> bool:
    """Return whether what a runner needs is there, with the order that the lab would sign now: keys change."""
    directory, order = watched.directory, watched.order
    if not directory.launch.exists():
        return False
    with suppress(OSError):
        return order is None or read_regular(directory.order, len(order.dump())) == order.dump()
    return False


def discard_launch(directory: AttemptDirectory) -> None:
    """Take back what `write_launch` wrote: no runner was asked for."""
    for path in (directory.token, directory.order, directory.launch):
        with suppress(OSError):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.path.rmdir()


def write_cancel(directory: AttemptDirectory, by: str) -> None:
    """Leave word for the runner who asked for the end; the first one stays. On a full disk the word is left without a name.

    The word may come before the attempt's other files: nobody has started it yet.
    """
    directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = directory.path / f"cancel.{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):
            os.write(fd, " ".join(by.split()).encode() + b"\n")
        with suppress(FileExistsError):
            os.link(draft, directory.cancel)
    finally:
        os.close(fd)
        draft.unlink(missing_ok=True)


def clear(directory: AttemptDirectory) -> None:
    """Remove what only a running job needs. Journal, log and claim stay, and what the runner left in the working directory."""
    with suppress(OSError):
        directory.token.unlink(missing_ok=True)
        directory.group.unlink(missing_ok=True)  # the token is in it, among the variables
        directory.preempt.unlink(missing_ok=True)
        directory.cgroup.unlink(missing_ok=True)
        directory.session_address.unlink(missing_ok=True)
        remove_temporary(directory)
        remove_private(directory)


class ClaimState(Enum):
    """What the claim on an attempt proves."""

    #: No runner ever took it.
    UNCLAIMED = "unclaimed"
    #: Its runner lives.
    ALIVE = "alive"
    #: Its runner existed and does not any more.
    DEAD = "dead"
    #: Its runner lives on another machine that has the same files: what it does is in the journal, and it ends by itself.
    ELSEWHERE = "elsewhere"


def find_runner(watched: Watched) -> ClaimState:
    """Return whether the attempt has a runner, and attach to it when it lives."""
    while True:
        claim = read_claim(watched.directory.claim)
        if claim is None:
            # A journal, or a runner that was asked for, without the files that were there before it: the job removed its own
            # directory. That must not make it run again.
            removed = watched.asked > 0 and not watched.directory.launch.exists()
            return ClaimState.DEAD if watched.offset or watched.over or removed else ClaimState.UNCLAIMED
        if not claim.held:
            return ClaimState.DEAD
        if claim.elsewhere:
            return ClaimState.ELSEWHERE
        try:
            pidfd = os.pidfd_open(claim.pid)
        except ProcessLookupError:
            continue  # it died just now
        # The lock is still held by that process, so the number was not given to another one in between.
        again = read_claim(watched.directory.claim)
        if again is not None and again.held:
            watched.attach(pidfd)
            return ClaimState.ALIVE
        os.close(pidfd)


def _write(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 that is there whole or not at all."""
    # Two threads may write the same file, and both are right.
    draft = path.with_name(f"{path.name}.{threading.get_native_id()}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _json(launch: Launch) -> bytes:
    return json.dumps(to_plain(launch), separators=(",", ":")).encode()

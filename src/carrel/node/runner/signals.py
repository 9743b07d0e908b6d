"""Signals of a runner: SIGTERM means "look what others want", SIGCHLD wakes the loop, SIGHUP and SIGINT mean nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from carrel.core.domain.job import Preemption
from carrel.core.spool import read_preempt


class Cancelled(BaseException):
    """Somebody asked for the end of the job; raised out of anything that the runner is doing."""


class Preempted(BaseException):
    """The job is preempted; raised out of anything that the runner is doing."""


class PreparationTimeout(BaseException):
    """Preparing took longer than the lab allows."""


class Signals:
    """Installs the handlers of this process; one per process."""

    def __init__(self, cancel: Path, preempt: Path) -> None:
        self._cancel = cancel
        self._preempt = preempt
        self._interruptible = False
        #: Becomes readable when a signal has come.
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGTERM, self._on_term)
        # The nursery forks with SIGTERM blocked, so that none is lost or deadly before the handler is there.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def cancelled_by(self) -> str | None:
        """Return who asked for the end, or None. The file is written before the signal, so it can be asked at any time."""
        try:
            return self._cancel.read_text().strip() or "somebody"
        except FileNotFoundError:
            return None
        except OSError:
            return "somebody"

    def preemption(self) -> Preemption | None:
        """Return how the job is preempted now, or None. Its file, too, is written before the signal."""
        return read_preempt(self._preempt)

    def wanted_elsewhere(self) -> bool:
        """True when somebody asked for the end, or for the job's place."""
        return self._cancel.exists() or self._preempt.exists()

    def check(self) -> None:
        """Raise `Cancelled` or `Preempted` when somebody wants that."""
        if self._cancel.exists():
            raise Cancelled
        if self._preempt.exists():
            raise Preempted

    def drain(self) -> None:
        """Forget the signals that have come."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 512):
                pass

    @contextmanager
    def interruptible(self, seconds: float) -> Iterator[None]:
        """Inside, at any point, a cancellation raises `Cancelled`, a preemption `Preempted`, and `seconds` from now
        `PreparationTimeout` is raised."""
        self._interruptible = True
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
        try:
            self.check()
            yield
        finally:
            self._interruptible = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        if self._interruptible and self.wanted_elsewhere():
            self._interruptible = False
            self.check()

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._interruptible:
            self._interruptible = False
            raise PreparationTimeout


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Only the wake-up counts (a signal that is ignored would not give one)."""

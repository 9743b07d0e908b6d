"""What people saw of start times, and how that turned out: written down, so that a restart does not forget it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carrel.core.domain.expectation import ShownRange
from carrel.core.domain.placement import Wait
from carrel.core.policy.calibration import Calibration


class StartRangeStore(Protocol):
    """Remembers ranges that people saw."""

    def load(self) -> Sequence[ShownRange]:
        """Return the newest starts in their order, then the ranges of jobs that wait.

        What an earlier server had not written down of a start is taken from the attempts.
        """

    def write(self, shown: Sequence[ShownRange], over: Sequence[int]) -> None:
        """Write down ranges that were shown, or their starts; forget those of jobs that are over without a start.

        Doing it twice does no harm. The newest starts are kept.
        """


class Unwritten:
    """A store for a lab that is over when its process is."""

    def load(self) -> Sequence[ShownRange]:
        """Nothing."""
        return ()

    def write(self, shown: Sequence[ShownRange], over: Sequence[int]) -> None:
        """Nothing is kept."""


class StartRanges:
    """Tells the calibration, and the store at the end of each cycle. Used by the loop's thread."""

    def __init__(self, store: StartRangeStore) -> None:
        self.calibration = Calibration()
        self._store = store
        #: What is not written down yet, by job.
        self._fresh: dict[int, list[ShownRange]] = {}
        self._over: list[int] = []

    def recover(self) -> None:
        """Take up what an earlier server wrote down. Before any job is taken up."""
        self.calibration.restore(self._store.load())

    def told(self, wait: Wait, now: float) -> None:
        """The owner of a job that waits saw this."""
        self._keep(self.calibration.told(wait, now))

    def started(self, job_id: int, now: float) -> None:
        """A job has started, or goes on."""
        self._keep(self.calibration.started(job_id, now))

    def forget(self, job_id: int) -> None:
        """A job is over that may never have started."""
        if self.calibration.forget(job_id):
            self._over.append(job_id)

    def write(self) -> None:
        """Write down what is new. Raises `Unavailable`; then it is tried again by the next call."""
        if not self._fresh and not self._over:
            return
        self._store.write([one for of_job in self._fresh.values() for one in of_job], self._over)
        self._fresh.clear()
        self._over.clear()

    def _keep(self, shown: ShownRange | None) -> None:
        if shown is None:
            return
        known = self._fresh.setdefault(shown.job_id, [])
        if known and known[-1].shown_at == shown.shown_at:
            known[-1] = shown  # it has started before it was written down
        else:
            known.append(shown)

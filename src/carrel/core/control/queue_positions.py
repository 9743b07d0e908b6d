"""The events that say where jobs stand in the queue."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.control.event_ports import EventLog
from carrel.core.control.news import queue_event
from carrel.core.control.queue import Queue
from carrel.core.control.queue_report import QueueReport
from carrel.core.control.start_ranges import StartRanges

#: Seconds between two messages about a position in the queue.
_TELL_SECONDS = 1.0
#: How many jobs at the head of the queue have an event when their position changes; the others learn it when they ask.
_TOLD = 25


class QueuePositions:
    """Tells owners where their jobs stand, and remembers what they were told."""

    def __init__(self, events: EventLog, queue: Queue, start_ranges: StartRanges) -> None:
        self._events = events
        self._queue = queue
        self._start_ranges = start_ranges
        self._told_at = 0.0
        #: When to tell those whose position has changed but who had an event a moment ago.
        self.again_at: float | None = None
        #: What the owners at the head of the queue saw last.
        self._told: dict[int, tuple[int, str]] = {}

    def forget(self, job_id: int) -> None:
        """The job waits no more: what was told of it counts no more."""
        self._told.pop(job_id, None)

    def tell(self, report: QueueReport, newcomers: Sequence[int], now: float) -> None:
        """Say where they stand to newcomers at once, and to those at the head of the queue when some time has passed."""
        soon = now < self._told_at + _TELL_SECONDS
        self.again_at = self._told_at + _TELL_SECONDS if soon and self._queue.waiting else None
        if not self._queue.waiting or (soon and not newcomers):
            return
        quick = report.quick
        pending = [hold for job_id in newcomers[:_TOLD] if (hold := quick.wait_of(job_id)) is not None]
        for hold in pending:
            self._start_ranges.told(hold, now)
        if not soon:
            pending += quick.pending[:_TOLD]
            self._told_at = now
        news = []
        for hold in pending:
            job, told = self._queue.job(hold.job_id), (hold.position, hold.reason.code)
            if job is not None and self._told.get(hold.job_id) != told:
                self._told[hold.job_id] = told
                news.append(queue_event(job, hold))
        if news:
            self._events.append(news, now=now)

"""Which jobs wait for a job that they have submitted, and what is said where that one has no place.

Used by any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import progress_event
from carrel.core.control.queue import Queue, can_stop
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind

#: Seconds for which a job waits before its parent says so: most get their place by then.
SAID_AFTER = 10.0
#: Seconds for which a parent waits before other jobs than the one that it waits for may have its GPUs: many take less.
GIVES_AFTER = 60.0
_Pair = tuple[int, int]


class WaitingParents:
    """Known for as long as a parent is connected and says that it waits; one that was cut off says it again."""

    def __init__(self, queue: Queue, why: Callable[[int], str] = lambda _job_id: "") -> None:
        """`why` says of a job in line what it waits for."""
        self._queue = queue
        self._why = why
        self._guard = threading.Lock()
        #: By child and parent: how many connections say so, and since when.
        self._waits: Counter[_Pair] = Counter()
        self._since: dict[_Pair, float] = {}
        #: The same of jobs that wait for one that they did not submit, and give it nothing.
        self._others: Counter[_Pair] = Counter()
        #: Pairs of which the loop's thread has told the parent.
        self._told: set[_Pair] = set()

    @contextmanager
    def waits(self, parent: int, child: int, now: float) -> Iterator[None]:
        """Within, the job `parent` waits for its `child`."""
        pair = (child, parent)
        with self._guard:
            self._waits[pair] += 1
            self._since.setdefault(pair, now)
        try:
            yield
        finally:
            with self._guard:
                self._waits[pair] -= 1
                if not self._waits[pair]:
                    del self._waits[pair], self._since[pair]

    @contextmanager
    def waits_for_another(self, job: int, other: int) -> Iterator[None]:
        """Within, `job` waits for one that it did not submit."""
        with self._guard:
            self._others[other, job] += 1
        try:
            yield
        finally:
            with self._guard:
                self._others[other, job] -= 1
                self._others += Counter()  # without those that are over

    def waits_already(self, job: int, other: int) -> bool:
        """True when `job` waits for `other`, or for one that does, and so on."""
        with self._guard:
            pairs = [*self._waits, *self._others]
        found, more = {job}, True
        while more:
            further = {target for target, waiter in pairs if waiter in found} - found
            found, more = found | further, bool(further)
        return other in found

    def of(self, child: int) -> int | None:
        """The job that waits for `child`, or None."""
        with self._guard:
            return next((parent for one, parent in self._waits if one == child), None)

    def children(self) -> frozenset[int]:
        """The jobs that are waited for."""
        with self._guard:
            return frozenset(child for child, _ in self._waits)

    def child_of(self, parent: int) -> int | None:
        """The job that `parent` waits for, the first of several; or None."""
        with self._guard:
            return min((child for child, one in self._waits if one == parent), default=None)

    def idle(self, now: float) -> frozenset[int]:
        """The jobs that hold GPUs and have waited for so long that any other may have these."""
        found = {parent for (_, parent), since in self._pairs().items() if now >= since + GIVES_AFTER}
        return frozenset(number for number in found if (job := self._queue.job(number)) is not None and job.devices)

    def next_at(self, now: float) -> float | None:
        """When there may be something to tell or to give, or None."""
        moments = (since + after for since in self._pairs().values() for after in (SAID_AFTER, GIVES_AFTER))
        return min((moment for moment in moments if moment > now), default=None)

    # ---- what is said where a child has no place

    def news(self, now: float) -> Sequence[NewEvent]:
        """Return what is new: for the logs of the parents."""
        since = self._pairs()
        self._told.intersection_update(since)
        stuck = [(pair, found) for pair in since if pair not in self._told and (found := self._stuck(pair, since[pair], now))]
        self._told.update(pair for pair, _ in stuck)
        return [progress_event(replace(parent, reason=self._for_parent(parent, child))) for _, (parent, child) in stuck]

    def explain(self, job_id: int, reason: Reason, now: float) -> Reason:
        """Return the reason of a job, with what there is to say of its parent or its child."""
        for pair, since in self._pairs().items():
            if job_id in pair and (found := self._stuck(pair, since, now)) is not None:
                parent, child = found
                if job_id == parent.id:
                    return self._for_parent(parent, child)
                return replace(reason, message=f"{_sentence(reason.message)} {_for_child(parent, child)}".rstrip())
        return reason

    def _pairs(self) -> dict[_Pair, float]:
        with self._guard:
            return dict(self._since)

    def _stuck(self, pair: _Pair, since: float, now: float) -> tuple[Job, Job] | None:
        """The parent, which runs, and the child, which has no place yet; or None."""
        child, parent = (self._queue.job(job_id) for job_id in pair)
        if child is None or parent is None or parent.state is not JobState.RUNNING or now < since + SAID_AFTER:
            return None
        return (parent, child) if self._has_no_place(child) else None

    def _for_parent(self, parent: Job, child: Job) -> Reason:
        if _beside(parent, child) and (why := why_it_keeps_its_place(parent)):
            said = f"It waits for job {child.id}, which has no place yet, and keeps its own meanwhile: {why}. {_remedy(parent)}"
        else:
            why = _sentence(self._why(child.id) or child.reason.message)
            gives = " This job gives it all that it holds but its memory." if _beside(parent, child) else ""
            said = f"It waits for job {child.id}, which has no place yet: {why}{gives}"
        return Reason(code="WaitsForJob", message=said)

    def _has_no_place(self, job: Job) -> bool:
        if job.handed_over:  # it has one when its runner has said the first word
            return job.state is JobState.CONFIGURING and not self._queue.known(job.id).offset
        return job.state is JobState.PENDING


def why_it_keeps_its_place(parent: Job) -> str:
    """Why a job cannot give its place to one that it waits for; "" where it can, or holds none."""
    if parent.state is not JobState.RUNNING:
        return ""
    if parent.handed_over:
        return "a job on a cluster cannot give its place away"
    if parent.kind is not JobKind.TASK:
        return "a session cannot be stopped"
    if not parent.preemptible:
        return "it was submitted with --no-preempt"
    if not can_stop(parent):
        return "a job on several nodes, or with a real GPU, cannot be stopped"
    return ""


def _beside(parent: Job, child: Job) -> bool:
    """True where the one has what the other one needs."""
    return parent.partition == child.partition or (parent.handed_over and child.handed_over)


def _for_child(parent: Job, child: Job) -> str:
    if not _beside(parent, child):
        return ""
    waits = f"Job {parent.id}, which submitted it, waits for it"
    if why := why_it_keeps_its_place(parent):
        return f"{waits} and keeps its own place meanwhile: {why}. {_remedy(parent)}"
    return f"{waits} and gives it all that it holds but its memory."


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."


def _remedy(parent: Job) -> str:
    return f"If there is no room for both, cancel job {parent.id}, and give it less, or another partition than its children."

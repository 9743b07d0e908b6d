"""Which jobs wait for a job that they have submitted, and what is said where such a job keeps the place that the other one needs.

Used by any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import progress_event
from carrel.core.control.queue import Queue, can_stop
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind

#: Seconds for which a job waits before it is said that its parent keeps its place: most get theirs by then.
SAID_AFTER = 10.0
_Pair = tuple[int, int]


class WaitingParents:
    """Known for as long as a parent is connected and says that it waits; one that was cut off says it again."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._guard = threading.Lock()
        #: By child and parent: how many connections say so, and since when.
        self._waits: Counter[_Pair] = Counter()
        self._since: dict[_Pair, float] = {}
        #: Whom the loop's thread has told that a parent keeps its place.
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

    def of(self, child: int) -> int | None:
        """The job that waits for `child`, or None."""
        with self._guard:
            return next((parent for one, parent in self._waits if one == child), None)

    def children(self) -> frozenset[int]:
        """The jobs that are waited for."""
        with self._guard:
            return frozenset(child for child, _ in self._waits)

    # ---- where a child has no place, and its parent cannot give it its own

    def next_at(self, now: float) -> float | None:
        """When there may be something to tell, or None."""
        return min((moment for since in self._pairs().values() if (moment := since + SAID_AFTER) > now), default=None)

    def news(self, now: float) -> Sequence[NewEvent]:
        """Return what is new: for the logs of the parents."""
        since = self._pairs()
        self._told.intersection_update(since)
        stuck = [(pair, found) for pair in since if pair not in self._told and (found := self._stuck(pair, since[pair], now))]
        self._told.update(pair for pair, _ in stuck)
        return [progress_event(replace(parent, reason=_for_parent(parent, child, why))) for _, (parent, child, why) in stuck]

    def explain(self, job_id: int, reason: Reason, now: float) -> Reason:
        """Return the reason of a job, with what there is to say of its parent or its child."""
        for pair, since in self._pairs().items():
            if job_id in pair and (found := self._stuck(pair, since, now)) is not None:
                parent, child, why = found
                if job_id == parent.id:
                    return _for_parent(parent, child, why)
                return replace(reason, message=f"{reason.message} {_for_child(parent, why)}")
        return reason

    def _pairs(self) -> dict[_Pair, float]:
        with self._guard:
            return dict(self._since)

    def _stuck(self, pair: _Pair, since: float, now: float) -> tuple[Job, Job, str] | None:
        """The parent, the child, and why the one keeps the place that the other one needs; None: it does not."""
        child, parent = (self._queue.job(job_id) for job_id in pair)
        if child is None or parent is None or now < since + SAID_AFTER or not self._has_no_place(child):
            return None
        beside = parent.partition == child.partition or (parent.handed_over and child.handed_over)
        why = why_it_keeps_its_place(parent)
        return (parent, child, why) if beside and why else None

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


def _for_parent(parent: Job, child: Job, why: str) -> Reason:
    said = f"It waits for job {child.id}, which has no place yet, and keeps its own meanwhile: {why}."
    return Reason(code="WaitsForJob", message=f"{said} {_remedy(parent)}")


def _for_child(parent: Job, why: str) -> str:
    return f"Job {parent.id}, which submitted it, waits for it and keeps its own place meanwhile: {why}. {_remedy(parent)}"


def _remedy(parent: Job) -> str:
    return f"If there is no room for both, cancel job {parent.id}, and give it less, or another partition than its children."

"""The one thing that a user may want to change, by the tasks of their last seven days and the rules of `--dry-run`."""

from __future__ import annotations

import threading
from collections import defaultdict

from carrel.core.control.history import of_name
from carrel.core.control.ports import JobFilter, JobStore
from carrel.core.domain.job import ENDED, Job
from carrel.core.domain.qos import JobKind
from carrel.core.gpu_use.habits import habits

_DAY = 86400.0
_WEEK = 7 * _DAY
#: Jobs of a user that are looked at, and names among them: those with most GPU time.
_JOBS, _NAMES = 500, 5
#: A task without GPUs counts as so many, for its time is somebody's too.
_WITHOUT = 0.01
#: Users of whom is remembered what they were told.
_USERS = 1000


class Weekly:
    """Worked out once a day for each user. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, str]] = {}

    def of(self, owner: str, jobs: JobStore, now: float) -> str:
        """One sentence or two; "" where nothing is worth a word."""
        with self._lock:
            at, words = self._told.get(owner, (0.0, ""))
        if not 0 <= now - at < _DAY:
            words = worth_changing(owner, jobs, now)
            with self._lock:
                self._told.pop(owner, None)
                self._told[owner] = (now, words)
                if len(self._told) > _USERS:
                    del self._told[next(iter(self._told))]
        return words


def worth_changing(owner: str, jobs: JobStore, now: float) -> str:
    """Of the names that took most, the first of which there is something to say."""
    by_name: dict[str, list[Job]] = defaultdict(list)
    for job in jobs.list(JobFilter(owner=owner, kind=JobKind.TASK, states=ENDED), before=None, limit=_JOBS):
        if job.ended_at is not None and job.ended_at >= now - _WEEK:
            by_name[job.name].append(job)
    seconds = {name: sum(map(_gpu_seconds, those)) for name, those in by_name.items()}
    for name in sorted(by_name, key=lambda one: (-seconds[one], one))[:_NAMES]:
        those = by_name[name]
        if words := _words(owner, those[0], jobs):
            count = f"{len(those)} jobs" if len(those) > 1 else "one job"
            took = f", {seconds[name] / 3600:.1f} GPU-hours" if seconds[name] >= 360 and those[0].resources.gpus else ""
            return f"{name} ({count} in 7 days{took}): {words}"
    return ""


def _words(owner: str, newest: Job, jobs: JobStore) -> str:
    row = jobs.attempt(newest.id, newest.attempt) if newest.attempt else None
    if row is not None and row.advice:
        return f"of job {newest.id}: {row.advice}"
    return next(iter(habits(of_name(jobs, owner, newest.name), newest.resources)), "")


def _gpu_seconds(job: Job) -> float:
    if job.started_at is None or job.ended_at is None:
        return 0.0
    ran = max(0.0, job.ended_at - job.started_at - job.suspended_seconds)
    return ran * (job.resources.gpus * job.resources.nodes or _WITHOUT)

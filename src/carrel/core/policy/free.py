"""What is free for one user now, for how long, and when one more is: tried by the walk itself, with everybody else in line."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from carrel.core.domain.placement import FreeGpus, Placement, Waiting
from carrel.core.policy.alternatives import TIMES
from carrel.core.policy.placer import Placer
from carrel.core.policy.situation import Outcome

#: GPUs of a type that are tried; of more "at least so many" are free.
_MOST = 64


class Free:
    """What is free at the end of one placement. Not safe to ask from several threads at once."""

    def __init__(self, outcome: Outcome, now: float, explained: Callable[[Outcome], Placement]) -> None:
        """`now` may be later than the placement, after which nothing has changed; `explained` says why those wait who wait."""
        picture = outcome.picture
        self._now, self._blocked, self._idle = now, picture.blocked, picture.idle
        self._explained = explained
        self._counts = Counter(device.type for node in picture.nodes for device in node.devices)
        self._placer = Placer.of(picture, outcome.order)

    def of(self, job: Waiting) -> Iterator[FreeGpus]:
        """Yield what is free of each type for tasks like `job`, each of one GPU. Its walltime is the longest that is tried."""
        longest = job.resources.time
        times = [*(time for time in TIMES if time < longest), longest]
        for kind, count in sorted(self._counts.items()):
            one = replace(job, resources=replace(job.resources, gpus=1, gpu_type=kind, time=times[0]))
            tried = [replace(one, id=job.id + number) for number in range(min(count, _MOST))]
            started, why, start = self._started(tried)
            found = FreeGpus(type=kind, count=count, now=started, why_no_more=why, start=start)
            if started:
                found = self._for_how_long(found, one, times)
            if 0 < started < len(tried):  # the others are there for longer than the shortest walltime
                beside = [_lasting(other, found.time) for other in tried[:started]]
                _, why, start = self._started([*beside, tried[started]])
                found = replace(found, why_no_more=why, start=start)
            yield found

    def _for_how_long(self, found: FreeGpus, job: Waiting, times: list[int]) -> FreeGpus:
        waits = bisect_right(times, 0, key=lambda time: 0 if self._started([_lasting(job, time)])[0] else 1)
        why = "" if waits == len(times) else self._started([_lasting(job, times[waits])])[1]
        return replace(found, time=times[waits - 1], why_no_longer=why)

    def _started(self, jobs: list[Waiting]) -> tuple[int, str, float | None]:
        """How many of these jobs would start; and of the first that would not, why, and when it should."""
        for job in jobs:
            self._placer.wait(job)
        try:
            outcome = self._placer.look(self._now, blocked=self._blocked, idle=self._idle)
        finally:
            for job in jobs:
                self._placer.forget(job.id)
        starts = {start.job_id for start in outcome.starts}
        waits = next((job for job in jobs if job.id not in starts), None)
        wait = None if waits is None else self._explained(outcome).wait_of(waits.id)
        if wait is None:
            return len(jobs), "", None
        return sum(job.id in starts for job in jobs), wait.reason.message, wait.estimated_start


def _lasting(job: Waiting, time: int) -> Waiting:
    return replace(job, resources=replace(job.resources, time=time))

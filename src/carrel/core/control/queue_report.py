"""Why those wait who wait, and for how long: worked out from what was decided when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import overload

from carrel.core.control.days import days_between
from carrel.core.domain.expectation import Corrections, Expect
from carrel.core.domain.job import Reason
from carrel.core.domain.placement import Alternative, FreeGpus, Placement, Wait, Waiting
from carrel.core.policy.alternatives import Alternatives
from carrel.core.policy.explain import NO_CORRECTIONS, explain
from carrel.core.policy.free import Free
from carrel.core.policy.placer import Placer
from carrel.core.policy.situation import Outcome, Situation

#: Jobs in line and on nodes up to which what is known about run times is played into the future, and changes are tried that would
#: make a job start sooner: for those who ask, and for the loop itself, which has no time. In a larger lab estimates are those of
#: walltimes.
FORESEEN, FORESEEN_BY_LOOP = 300, 64
#: Answers that are kept until the next cycle compares them with what happens.
ANSWERS = 1000


class QueueReport:
    """The queue as the end of a cycle left it. Safe to ask from several threads."""

    def __init__(
        self,
        outcome: Outcome | None,
        now: float,
        expect: Expect | None = None,
        *,
        corrections: Corrections = NO_CORRECTIONS,
        halt: Reason | None = None,
    ) -> None:
        """`corrections`: of what is foreseen; `halt`: why nothing at all starts."""
        #: When this was looked at, in Unix seconds, and what was answered of it that names a range.
        self.now = now
        self.answered: deque[Wait] = deque(maxlen=ANSWERS)
        self._corrections = corrections
        self._halt = halt
        self._outcome = outcome
        self._expect = expect
        self._alternatives_of: dict[int, Sequence[Alternative]] = {}
        self._trying = Lock()

    @cached_property
    def placement(self) -> Placement:
        """What is decided about everybody."""
        # Two threads may both work it out: the answers are equal.
        return self._look(FORESEEN)

    @cached_property
    def quick(self) -> Placement:
        """The same for somebody in a hurry."""
        return self.placement if self._size <= FORESEEN_BY_LOOP else self._look(0)

    def wait_of(self, job_id: int) -> Wait | None:
        """Where one job stands, or None when it does not wait."""
        wait = self.placement.wait_of(job_id)
        if wait is not None and wait.estimated_range is not None:
            self.answered.append(wait)
        return wait

    def preview(self, job: Waiting) -> Wait | None:
        """Where a job would stand that is not in line yet, with alternatives that would start it sooner; None: it would start."""
        if self._outcome is None:
            return None
        picture = self._outcome.picture
        placer = Placer.of(picture, self._outcome.order)
        placer.wait(job)
        outcome = placer.look(self.now, blocked=picture.blocked, idle=picture.idle)
        wait = self._explained(outcome, FORESEEN).wait_of(job.id)
        if wait is None or self._halt is not None or self._size > FORESEEN:
            return wait
        return replace(wait, alternatives=tuple(Alternatives(outcome).of(job.id, wait.estimated_start)))

    def alternatives_of(self, job_id: int) -> Sequence[Alternative]:
        """Return with which changes one job would start sooner; none in a lab where too many wait, or where nothing starts."""
        if self._outcome is None or self._halt is not None or self._size > FORESEEN:
            return ()
        with self._trying:
            if job_id not in self._alternatives_of:
                wait = self.placement.wait_of(job_id)
                estimate = None if wait is None else wait.estimated_start
                self._alternatives_of[job_id] = self._alternatives.of(job_id, estimate)
            return self._alternatives_of[job_id]

    def free_for(self, job: Waiting, now: float) -> Sequence[FreeGpus]:
        """Return what is free of each type of GPU for tasks like `job`; nothing where too many wait, or where nothing starts."""
        if self._outcome is None or self._halt is not None or self._size > FORESEEN:
            return ()
        return tuple(Free(self._outcome, now, lambda outcome: self._explained(outcome, FORESEEN)).of(job))

    @cached_property
    def kept_devices(self) -> Mapping[str, int]:
        """The waiting job for which a free device is kept, by the device: another job has it only if it ends in time."""
        kept: dict[str, int] = {}
        if self._outcome is not None and (promises := self._outcome.promises.made):
            rooms = Situation.of(self._outcome).rooms
            for job, room in ((promise.job, rooms[index]) for promise in promises for index in promise.indexes):
                for gpu_type, number in room.choose(job.resources):
                    free = [uuid for uuid in room.free.get(gpu_type, ()) if uuid not in kept]
                    kept.update(dict.fromkeys(free[:number], job.id))
        return kept

    @cached_property
    def _alternatives(self) -> Alternatives:
        assert self._outcome is not None
        return Alternatives(self._outcome)

    @property
    def _size(self) -> int:
        return 0 if self._outcome is None else len(self._outcome.picture.waiting) + len(self._outcome.picture.holding)

    def _look(self, most: int) -> Placement:
        return Placement() if self._outcome is None else self._explained(self._outcome, most)

    def _explained(self, outcome: Outcome, most: int) -> Placement:
        expect = self._expect if self._size <= most else None
        found = explain(outcome, expect, self._corrections, days_between)
        return found if self._halt is None else Placement(pending=_Halted(found, self._halt))


class _Halted(Sequence[Wait]):
    """Everybody waits for the same: what would start, and behind it those who would wait in any case."""

    def __init__(self, placement: Placement, reason: Reason) -> None:
        self._placement = placement
        self._reason = reason
        self._first = {start.job_id: place for place, start in enumerate(placement.starts, start=1)}

    def of(self, job_id: int) -> Wait | None:
        """The hold of one job, or None."""
        if (place := self._first.get(job_id)) is not None:
            return Wait(job_id=job_id, reason=self._reason, position=place)
        wait = self._placement.wait_of(job_id)
        return None if wait is None else self._behind(wait)

    def _behind(self, wait: Wait) -> Wait:
        return Wait(job_id=wait.job_id, reason=self._reason, position=wait.position + len(self._first))

    def __len__(self) -> int:
        return len(self._first) + len(self._placement.pending)

    @overload
    def __getitem__(self, index: int) -> Wait: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Wait]: ...

    def __getitem__(self, index: int | slice) -> Wait | Sequence[Wait]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        starts = self._placement.starts
        if index < len(starts):
            return Wait(job_id=starts[index].job_id, reason=self._reason, position=index + 1)
        return self._behind(self._placement.pending[index - len(starts)])

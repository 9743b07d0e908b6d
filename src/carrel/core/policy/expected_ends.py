"""When jobs should be over, as backfill takes it where it may go by what is expected and not by walltimes.

D. Tsafrir, Y. Etsion and D. Feitelson, "Backfilling Using System-Generated Predictions Rather Than User Runtime Estimates",
IEEE TPDS 2007: a walltime says when a job is killed, a prediction says how the others are planned; a prediction that is overrun
is put right at once.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from math import ceil

from carrel.core.domain.expectation import Expect
from carrel.core.domain.placement import Holding, Waiting


class ExpectedEnds:
    """What is expected of the jobs of a queue. A guess is made once: when a job comes into line, and again when it starts."""

    def __init__(self, expect: Expect) -> None:
        self._expect = expect
        #: Seconds that a job in line should run, or None, by its id.
        self._waiting: dict[int, int | None] = {}
        #: What was guessed last of each job that holds something, and from when on it counts: seconds, Unix seconds.
        self._guesses: dict[int, tuple[float, float]] = {}
        self._held: dict[int, Holding] = {}
        self._line: list[tuple[float, int]] = []

    def of_waiting(self, job: Waiting) -> Waiting:
        """Return `job` with what is expected of it; as it is where nothing is known."""
        if job.id not in self._waiting:
            expected = self._expect(job.owner, job.name, job.resources.time, 0.0)
            self._waiting[job.id] = None if expected is None else max(1, ceil(expected.high))
        return replace(job, expected=self._waiting[job.id])

    def of_holding(self, held: Holding, now: float) -> Holding:
        """Return `held` with the moment at which it should be over; as it is where nothing is known.

        It is the 90 % quantile of what is known of such jobs, so that nine in ten are over by then.
        """
        self._waiting.pop(held.id, None)
        known = self._held.get(held.id)
        begin = now if held.started_at is None else held.started_at
        if known is not None and (known.started_at, known.ends_by, known.shares) == (held.started_at, held.ends_by, held.shares):
            return known
        expected = None if held.open_ended else self._expect(held.owner, held.name, held.resources.time, 0.0)
        if expected is None:
            self._held[held.id] = held
            return held
        return self._guess(held, max(1.0, expected.high), begin)

    def overdue(self, now: float) -> list[Holding]:
        """Return those that should be over and are not, with another guess: twice as long, and its walltime at the latest."""
        late = []
        while self._line and self._line[0][0] <= now:
            due, job_id = heappop(self._line)
            held = self._held.get(job_id)
            if held is None or held.due != due:
                continue
            seconds, begin = self._guesses[job_id]
            while begin + seconds <= now and begin + seconds < held.ends_by:
                seconds *= 2
            late.append(self._guess(held, seconds, begin))
        return late

    def forget(self, job_id: int) -> None:
        """The job is over, or comes into line again."""
        self._waiting.pop(job_id, None)
        self._guesses.pop(job_id, None)
        self._held.pop(job_id, None)

    def _guess(self, held: Holding, seconds: float, begin: float) -> Holding:
        due = begin + seconds
        self._guesses[held.id] = (seconds, begin)
        found = self._held[held.id] = replace(held, due=due if due < held.ends_by else None)
        if found.due is not None:
            heappush(self._line, (found.due, held.id))
        return found

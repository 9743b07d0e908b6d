"""Least attained service in discrete queues, after Tiresias (Gu et al., NSDI'19): nobody knows how long a job will run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import ceil

from baselines.pieces import Course
from baselines.preemptive import preemptive
from baselines.waiting import Turn
from carrel.simulate.trace import Cluster, Run

#: GPU-seconds with which a job leaves a queue for the one below it.
THRESHOLDS = (3250.0, 7200.0)
#: Seconds by which floating point may come too late to a threshold.
ROUNDING = 1e-6


def tiresias(courses: Sequence[Course], cluster: Cluster) -> Iterator[Run]:
    """Run the jobs that have had the least GPU time, by queues; first fit inside a queue.

    What reproduces the published simulator to the second, beyond the paper: that a running job crosses a threshold is an event
    of its own, at the first whole second of its run time at which it has; and inside a queue those that run stay in front of
    those that wait. Jobs are never promoted.
    """
    return preemptive(courses, cluster, _Queues(courses))


class _Queues:
    """Each queue is what runs, then what waits, then what came down just now.

    The three parts have levels of their own in a job's turn; inside a part jobs go by a place that is given when they enter it.
    """

    _RUNS, _WAITS, _FELL, _PARTS = 0, 1, 2, 3

    def __init__(self, courses: Sequence[Course]) -> None:
        self._courses = courses
        self._turns: dict[int, Turn] = {}
        # When a running job that is not in the last queue has had what its queue gives, and when that is noticed at the latest.
        self._spent: dict[int, float] = {}
        self._noticed: dict[int, float] = {}
        self._front = 0
        self._back = 0

    def enter(self, index: int) -> Turn:
        return self._turn(0, self._WAITS, index)

    def rank(self, running: Collection[int], now: float) -> list[Turn]:
        for index in sorted([index for index, spent in self._spent.items() if spent <= now]):
            queue, _ = self._split(self._turns[index])
            self._turns[index] = self._turn(queue + 1, self._FELL, index)
        return sorted([self._turns[index] for index in running])

    def keep(self, on: Sequence[Turn], now: float) -> None:
        runs = {queue * self._PARTS + self._RUNS for queue in range(len(THRESHOLDS) + 1)}
        for turn in [turn for turn in on if turn[0] not in runs]:
            queue, index = self._split(turn)[0], turn[2]
            self._turns[index] = self._turn(queue, self._RUNS, index)
            self.leave(index)
            if queue < len(THRESHOLDS):
                course = self._courses[index]
                needed = THRESHOLDS[queue] / course.job.gpus
                self._spent[index] = now + needed - course.ran_by(now) - ROUNDING
                self._noticed[index] = now + ceil(needed) - course.ran_by(now)

    def put_back(self, off: Sequence[Turn]) -> Sequence[Turn]:
        """Those that ran go in front of those that wait, those that had just come down go behind them."""
        behind = [turn for turn in off if self._split(turn)[1] == self._FELL]
        ahead = [turn for turn in off if self._split(turn)[1] == self._RUNS]
        turns = [self._turn(self._split(turn)[0], self._WAITS, turn[2]) for turn in behind]
        for turn in reversed(ahead):
            self._front -= 1
            turns.append((turn[0] - self._RUNS + self._WAITS, self._front, turn[2]))
        for turn in turns:
            self.leave(turn[2])
        return turns

    def leave(self, index: int) -> None:
        self._spent.pop(index, None)
        self._noticed.pop(index, None)

    def next_change(self) -> float:
        return min(self._noticed.values(), default=float("inf"))

    def _turn(self, queue: int, part: int, index: int) -> Turn:
        """Return a turn at the end of a part of a queue."""
        self._back += 1
        return (queue * self._PARTS + part, self._back, index)

    def _split(self, turn: Turn) -> tuple[int, int]:
        """Return queue and part."""
        return divmod(int(turn[0]), self._PARTS)

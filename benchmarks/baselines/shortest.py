"""Shortest first: SRTF by remaining time, SRSF by remaining time multiplied by GPUs. Both know how long a job will run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from baselines.pieces import Course
from baselines.preemptive import preemptive
from baselines.waiting import Turn
from carrel.simulate.trace import Cluster, Run


def shortest_time(courses: Sequence[Course], cluster: Cluster) -> Iterator[Run]:
    """Run the jobs with the least time left."""
    return preemptive(courses, cluster, _Shortest(courses, [1] * len(courses)))


def shortest_service(courses: Sequence[Course], cluster: Cluster) -> Iterator[Run]:
    """Run the jobs with the least GPU time left."""
    return preemptive(courses, cluster, _Shortest(courses, [course.job.gpus for course in courses]))


class _Shortest:
    """By what is left of a job, times its weight; equals in the order of the trace."""

    def __init__(self, courses: Sequence[Course], weights: Sequence[int]) -> None:
        self._courses = courses
        self._weights = weights

    def enter(self, index: int) -> Turn:
        return (self._courses[index].left * self._weights[index], index, index)

    def rank(self, running: Collection[int], now: float) -> list[Turn]:
        courses, weights = self._courses, self._weights
        return sorted([((courses[index].ends - now) * weights[index], index, index) for index in running])

    def keep(self, on: Sequence[Turn], now: float) -> None:
        pass

    def put_back(self, off: Sequence[Turn]) -> Sequence[Turn]:
        return off

    def leave(self, index: int) -> None:
        pass

    def next_change(self) -> float:
        return float("inf")

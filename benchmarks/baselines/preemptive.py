"""Policies that may stop a job at any moment: all jobs are packed again from empty whenever something changes.

Stopping and going on costs nothing here and loses no work, as in the reference results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from baselines.packing import Nodes
from baselines.pieces import Course
from baselines.waiting import Turn, Waiting, walk
from carrel.simulate.trace import Cluster, Run


class Order(Protocol):
    """Whose turn it is. Jobs are known by their place in the trace."""

    def enter(self, index: int) -> Turn:
        """Return the turn of a job that has just been submitted."""

    def rank(self, running: Collection[int], now: float) -> list[Turn]:
        """Return the turns of the running jobs, first in line first."""

    def keep(self, on: Sequence[Turn], now: float) -> None:
        """Learn which jobs have GPUs from now on, in the order of the walk."""

    def put_back(self, off: Sequence[Turn]) -> Sequence[Turn]:
        """Return the turns, as jobs that wait, of running jobs which had to stop."""

    def leave(self, index: int) -> None:
        """Learn that a job has ended."""

    def next_change(self) -> float:
        """Return when running jobs change places without any arrival or end; infinite for never."""


def preemptive(courses: Sequence[Course], cluster: Cluster, order: Order) -> Iterator[Run]:
    """Run jobs, which are in the order of submission and each small enough for the cluster; yield how it went as they end."""
    nodes, waiting = Nodes(cluster), Waiting()
    gpus = [course.job.gpus for course in courses]
    running: set[int] = set()
    arrived, now = 0, 0.0
    while running or arrived < len(courses):
        change = min((courses[index].ends for index in running), default=float("inf"))
        if arrived < len(courses):
            change = min(change, courses[arrived].job.submitted)
        now = max(now, min(change, order.next_change()))
        for index in sorted(index for index in running if courses[index].ends <= now):
            running.discard(index)
            order.leave(index)
            yield courses[index].finish(now)
        while arrived < len(courses) and courses[arrived].job.submitted <= now:
            waiting.put(order.enter(arrived), gpus[arrived])
            arrived += 1
        nodes.clear()
        on, _, off = walk(nodes, waiting, gpus, running=order.rank(running, now))
        for turn in order.put_back(off):
            courses[turn[2]].stop(now)
            running.discard(turn[2])
            waiting.put(turn, gpus[turn[2]])
        for turn in on:
            if turn[2] not in running:
                courses[turn[2]].start(now)
                running.add(turn[2])
        order.keep(on, now)

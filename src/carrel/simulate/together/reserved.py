"""Notebooks that hold their GPUs from their opening to their end, before a queue of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from heapq import heappop, heappush

from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.together.line import Line
from carrel.simulate.together.result import Together
from carrel.simulate.together.usage_records import ActiveSession, Assigned, UsageRecords
from carrel.simulate.trace import TraceJob


class _Event(IntEnum):
    TASK_END = 0
    CELL_END = 1
    CLOSE = 2
    READY = 3


class ReservedRun:
    """One run; `result` carries it out."""

    def __init__(
        self, sessions: Sequence[NotebookSession], tasks: Iterable[TraceJob], gpus: int, mode: str, until: float
    ) -> None:
        devices = tuple(f"gpu{number:05d}" for number in range(gpus))
        self._books = UsageRecords(sessions, gpus, until)
        self._line = Line(tasks, devices)
        self._mode, self._until = mode, until
        self._devices: dict[int, tuple[str, ...]] = {}
        self._events: list[tuple[float, _Event, int]] = []

    def result(self) -> Together:
        """Run to the end, or as far as is asked for."""
        for number, active in enumerate(self._books.active_sessions):
            heappush(self._events, (active.session.opens, _Event.READY, number))
        now = 0.0
        self._start(now)
        while self._events and self._events[0][0] <= self._until:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, event, number = heappop(self._events)
                self._happen(event, number, now)
            self._start(now)
        self._close_books()
        return self._books.result(self._mode)

    def _happen(self, event: _Event, number: int, now: float) -> None:
        if event is _Event.TASK_END:
            one = self._books.assigned[number]
            self._computed(one, number, now)
            self._books.task_over(number, now)
            self._line.end(number)
            return
        active = self._books.active_sessions[number]
        if event is _Event.CELL_END:
            assert active.began is not None
            self._books.compute(active.name, self._devices[-1 - number], active.began, now)
            more, after = self._books.cell_over(active, now)
            heappush(self._events, (now + after, _Event.READY if more else _Event.CLOSE, number))
        elif event is _Event.CLOSE:
            self._line.end(-1 - number)
            del self._devices[-1 - number]
        else:
            self._books.ask(active, now)
            if -1 - number in self._devices:
                self._begin(active, number, now)
            else:
                self._line.add_session(number, active.session.gpus, now)

    def _computed(self, one: Assigned, number: int, now: float) -> None:
        now = min(now, self._until)
        self._books.compute(one.name, self._devices[number], one.placed, now)
        one.ran = now - one.placed

    def _begin(self, active: ActiveSession, number: int, now: float) -> None:
        active.began = now
        heappush(self._events, (now + active.session.cells[active.at].duration, _Event.CELL_END, number))

    def _start(self, now: float) -> None:
        for start in self._line.starts(now, frozenset(), {}, {}):
            job = start.job_id
            self._devices[job] = start.devices
            if job < 0:
                self._begin(self._books.active_sessions[-1 - job], -1 - job, now)
            else:
                task = self._line.traced.pop(job)
                self._books.assigned[job] = Assigned(task, f"t{job:08d}", now)
                heappush(self._events, (now + task.duration, _Event.TASK_END, job))

    def _close_books(self) -> None:
        """What still computes has computed until now."""
        for number, one in self._books.assigned.items():
            self._computed(one, number, self._until)
        for number, active in enumerate(self._books.active_sessions):
            if active.busy and active.began is not None:
                self._books.compute(active.name, self._devices[-1 - number], active.began, self._until)

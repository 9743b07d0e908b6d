"""One week of notebooks on a pool of equal GPUs, first come, first served: a discrete-event simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from heapq import heappop, heappush

from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.notebooks.mode import IdleState, PoolMode
from carrel.simulate.notebooks.result import CellRun, Held, ModeResult, Start


class _Event(IntEnum):
    """In the order in which those of one moment happen: who gives back comes before who asks."""

    END = 0
    RELEASE = 1
    CLOSE = 2
    READY = 3


class _Where(Enum):
    """Where a session's GPU state is."""

    NONE = auto()
    DEVICE = auto()
    HOST = auto()
    LOST = auto()


@dataclass(slots=True)
class _Seat:
    """One session at work. Mutable, and known only inside one run."""

    session: NotebookSession
    thinks: Sequence[float]
    #: Which cell is the next, or the present one.
    at: int = 0
    #: When its user wanted that cell.
    ready: float = 0.0
    #: Since when it holds its GPUs; None while it holds none.
    since: float | None = None
    where: _Where = _Where.NONE
    cells: list[CellRun] = field(default_factory=list)


class PoolRun:
    """One run; `result` carries it out."""

    def __init__(self, sessions: Sequence[NotebookSession], mode: PoolMode, gpus: int, swap_seconds: float) -> None:
        """The caller has checked that every session fits into `gpus`."""
        self._mode = mode
        self._gpus = gpus
        self._swap_seconds = swap_seconds
        self._seats = [_Seat(session, session.thinks) for session in sessions]
        #: GPUs that nobody holds, idle state on them or not.
        self._free = gpus
        #: Sessions whose state is on GPUs that they do not hold, with their number of GPUs, least recently used first.
        self._idle: dict[int, int] = {}
        self._idle_gpus = 0
        self._line: deque[int] = deque()
        self._events: list[tuple[float, _Event, int]] = []
        self._held: list[Held] = []
        self._lost = self._evictions = 0

    def result(self) -> ModeResult:
        """Run the week to its end."""
        for number, seat in enumerate(self._seats):
            heappush(self._events, (seat.session.opens, _Event.READY, number))
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, event, number = heappop(self._events)
                self._happen(event, number, now)
            self._serve(now)
        assert not self._line, "nobody waits for ever"
        return ModeResult(
            mode=self._mode.name,
            gpus=self._gpus,
            cells=tuple(cell for seat in self._seats for cell in seat.cells),
            held=tuple(self._held),
            gpu_hours_of_cells=sum(cell.duration * seat.session.gpus for seat in self._seats for cell in seat.session.cells)
            / 3600,
            lost_states=self._lost,
            evictions=self._evictions,
        )

    def _happen(self, event: _Event, number: int, now: float) -> None:
        seat = self._seats[number]
        if event is _Event.END:
            self._end(number, seat, now)
        elif event is _Event.RELEASE:
            self._release(number, seat, now)
        elif event is _Event.CLOSE:
            self._close(number, seat, now)
        else:
            seat.ready = now
            if seat.since is None:
                self._line.append(number)
            else:
                self._begin(number, seat, now, Start.WARM, 0.0, asked=False)

    def _serve(self, now: float) -> None:
        """Lend to those first in line."""
        while self._line and self._seats[self._line[0]].session.gpus <= self._free:
            number = self._line.popleft()
            self._grant(number, self._seats[number], now)

    def _grant(self, number: int, seat: _Seat, now: float) -> None:
        gpus = seat.session.gpus
        moved = self._make_room(number, gpus)
        self._free -= gpus
        seat.since = now
        if seat.where is _Where.DEVICE:
            start = Start.WARM
        elif seat.where is _Where.NONE:
            start = Start.FRESH
        else:
            start = Start.COLD
        if seat.where is _Where.HOST:
            moved = gpus
        self._begin(number, seat, now, start, moved * self._swap_seconds, asked=True)

    def _make_room(self, number: int, gpus: int) -> int:
        """Move idle states away as far as `gpus` are needed; return how many of these GPUs had to be cleared."""
        own = self._idle.pop(number, 0)
        self._idle_gpus -= own
        short = max(0, gpus - (self._free - self._idle_gpus))
        while gpus > self._free - self._idle_gpus:
            victim = next(iter(self._idle))
            self._idle_gpus -= self._idle.pop(victim)
            self._seats[victim].where = _Where.HOST
            self._evictions += 1
        return short

    def _begin(self, number: int, seat: _Seat, now: float, start: Start, swap: float, *, asked: bool) -> None:
        cell = seat.session.cells[seat.at]
        end = now + swap + cell.duration
        seat.where = _Where.DEVICE
        seat.cells.append(CellRun(seat.session.id, cell.id, seat.ready, now, swap, end, start, asked))
        heappush(self._events, (end, _Event.END, number))

    def _end(self, number: int, seat: _Seat, now: float) -> None:
        seat.at += 1
        if seat.at < len(seat.thinks):
            think = seat.thinks[seat.at]
            heappush(self._events, (now + think, _Event.READY, number))
        else:
            think = seat.session.linger
            heappush(self._events, (now + think, _Event.CLOSE, number))
        if self._mode.keep == 0:
            self._release(number, seat, now)
        elif self._mode.keep <= think:
            heappush(self._events, (now + self._mode.keep, _Event.RELEASE, number))

    def _release(self, number: int, seat: _Seat, now: float) -> None:
        """The GPUs go back; what becomes of the state is up to the mode."""
        self._give_back(seat, now)
        if self._mode.fate is IdleState.STAYS:
            self._idle[number] = seat.session.gpus
            self._idle_gpus += seat.session.gpus
        elif self._mode.fate is IdleState.MOVED:
            seat.where = _Where.HOST
        else:
            seat.where = _Where.LOST
            if seat.at < len(seat.thinks):
                self._lost += 1

    def _close(self, number: int, seat: _Seat, now: float) -> None:
        """The session is shut down: nothing of it is left."""
        if seat.since is not None:
            self._give_back(seat, now)
        self._idle_gpus -= self._idle.pop(number, 0)
        seat.where = _Where.NONE

    def _give_back(self, seat: _Seat, now: float) -> None:
        assert seat.since is not None
        self._held.append(Held(seat.session.id, seat.session.gpus, seat.since, now))
        self._free += seat.session.gpus
        seat.since = None

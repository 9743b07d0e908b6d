"""One week of notebooks on one node whose GPUs the broker's own policy lends: a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush

from carrel.core.domain.lease import (
    DeviceRoom,
    LeaseState,
    Lending,
    LendingSnapshot,
    Lent,
    Request,
    Residency,
    Suspend,
    Tenant,
)
from carrel.core.policy.lend import lend
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.notebooks.mode import PolicyMode
from carrel.simulate.notebooks.result import CellRun, Held, ModeResult, Start

#: Bytes of memory of each GPU; only shares of it matter.
_MEMORY = 80 * 1024**3


class _Event(IntEnum):
    """In the order in which those of one moment happen."""

    #: State has been brought back: the cell computes.
    MOVED = 0
    END = 1
    CLOSE = 2
    READY = 3
    #: The policy said that time alone is a reason to ask again.
    AGAIN = 4


@dataclass(slots=True)
class _Seat:
    """One session at work. Mutable, and known only inside one run."""

    session: NotebookSession
    thinks: Sequence[float]
    name: str
    at: int = 0
    ready: float = 0.0
    #: When the present cell first got GPUs; None while it waits for them.
    granted: float | None = None
    start: Start = Start.FRESH
    swap: float = 0.0
    paused: float = 0.0
    #: Seconds that the present cell still computes.
    left: float = 0.0
    #: Seconds that it has computed, and that cells of this session took so far.
    computed: float = 0.0
    typical: float | None = None
    #: Since when it holds its GPUs, and from when on it computes.
    since: float = 0.0
    computes: float = 0.0
    #: Since when the present cell is suspended in mid-flight.
    paused_at: float = 0.0
    #: Grows with each pause: news of the time before it means nothing.
    turn: int = 0
    cells: list[CellRun] = field(default_factory=list)


class PolicyRun:
    """One run; `result` carries it out.

    Moving state away is taken to be instantaneous, and the whole price of a swap is paid when a cell begins or goes on, as in
    the pool. Seconds of the trace stand for the policy's Unix seconds.
    """

    def __init__(self, sessions: Sequence[NotebookSession], mode: PolicyMode, gpus: int, swap_seconds: float) -> None:
        """The caller has checked that every session fits into `gpus`."""
        self._mode = mode
        self._swap_seconds = swap_seconds
        self._state = int(_MEMORY * mode.state_share)
        self._seats = [_Seat(session, session.thinks, f"{number:08d}") for number, session in enumerate(sessions)]
        self._devices = [DeviceRoom(uuid=f"gpu{number:05d}", memory=_MEMORY) for number in range(gpus)]
        #: By name, which is the number of the seat: sessions that are open, who waits, and who has a lease (paused or not).
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[str, Request] = {}
        self._leases: dict[str, Lent] = {}
        #: GPUs of each request that were cleared of others' states for it.
        self._cleared: dict[str, set[str]] = {}
        self._events: list[tuple[float, _Event, int, int]] = []
        self._again_at: float | None = None
        self._held: list[Held] = []
        self._evictions = self._pauses = 0

    def result(self) -> ModeResult:
        """Run the week to its end."""
        for number, seat in enumerate(self._seats):
            heappush(self._events, (seat.session.opens, _Event.READY, number, 0))
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, event, number, turn = heappop(self._events)
                self._happen(event, number, turn, now)
            self._serve(now)
        assert not self._requests, "nobody waits for ever"
        return ModeResult(
            mode=self._mode.name,
            gpus=len(self._devices),
            cells=tuple(cell for seat in self._seats for cell in seat.cells),
            held=tuple(self._held),
            gpu_hours_of_cells=sum(cell.duration * seat.session.gpus for seat in self._seats for cell in seat.session.cells)
            / 3600,
            evictions=self._evictions,
            pauses=self._pauses,
        )

    def _happen(self, event: _Event, number: int, turn: int, now: float) -> None:
        seat = self._seats[number]
        if event is _Event.READY:
            self._ask(seat, now)
        elif event is _Event.CLOSE:
            del self._tenants[seat.name]
        elif event is _Event.AGAIN:
            self._again_at = None
        elif turn != seat.turn:
            return
        elif event is _Event.MOVED:
            self._tenants[seat.name] = replace(self._tenants[seat.name], residency=Residency.RESIDENT)
        else:
            self._end(number, seat, now)

    def _ask(self, seat: _Seat, now: float) -> None:
        if seat.name not in self._tenants:
            self._tenants[seat.name] = Tenant(id=seat.name, owner=seat.name, room=self._state, portable=self._mode.homes_move)
        seat.ready, seat.granted, seat.swap, seat.paused = now, None, 0.0, 0.0
        seat.left, seat.computed = seat.session.cells[seat.at].duration, 0.0
        self._requests[seat.name] = Request(id=seat.name, tenant=seat.name, gpus=seat.session.gpus, asked_at=now)

    def _serve(self, now: float) -> None:
        """Ask the policy until it has nothing more to do."""
        while self._requests:
            answer = lend(self._snapshot(), now)
            for one in answer.suspends:
                self._suspend(one, now)
            for lent in answer.lends:
                self._lend(lent.request, lent.devices, now)
            if not answer.suspends:
                self._remind(answer)
                return

    def _snapshot(self) -> LendingSnapshot:
        return LendingSnapshot(
            devices=self._devices,
            tenants=self._tenants,
            requests=tuple(self._requests.values()),
            leases=tuple(self._leases.values()),
            host_used=self._host_used(),
            rules=self._mode.rules,
        )

    def _host_used(self) -> int:
        if self._mode.rules.host_memory is None:
            return 0
        return sum(len(one.home) * self._state for one in self._tenants.values() if one.residency is Residency.SUSPENDED)

    def _remind(self, answer: Lending) -> None:
        at = answer.again_at
        if at is not None and (self._again_at is None or at < self._again_at):
            self._again_at = at
            heappush(self._events, (at, _Event.AGAIN, 0, 0))

    def _suspend(self, decision: Suspend, now: float) -> None:
        victim = self._tenants[decision.tenant]
        self._cleared.setdefault(decision.request, set()).update(victim.home)
        self._tenants[victim.id] = replace(victim, residency=Residency.SUSPENDED)
        if decision.pauses is None:
            self._evictions += 1
            return
        self._pauses += 1
        seat = self._seats[int(victim.id)]
        seat.turn += 1
        seat.left -= now - seat.computes
        seat.computed += now - seat.computes
        seat.paused_at = now
        self._held.append(Held(seat.session.id, seat.session.gpus, seat.since, now))
        self._leases[victim.id] = replace(self._leases[victim.id], state=LeaseState.PAUSED, computed=seat.computed)
        self._requests[victim.id] = Request(
            id=victim.id, tenant=victim.id, gpus=len(victim.home), asked_at=now, resumes=victim.id
        )

    def _lend(self, request: str, devices: tuple[str, ...], now: float) -> None:
        del self._requests[request]
        number = int(request)
        seat, tenant = self._seats[number], self._tenants[request]
        cleared = self._cleared.pop(request, set()).intersection(devices)
        moved = len(devices) if tenant.residency is Residency.SUSPENDED else len(cleared)
        swap = moved * self._swap_seconds
        if seat.granted is None:
            seat.granted = now
            seat.start = _START[tenant.residency]
        else:
            seat.paused += now - seat.paused_at
        seat.swap += swap
        seat.since, seat.computes = now, now + swap
        # A state that is being brought back cannot be suspended, and its time slice begins after that: it always gets on.
        self._tenants[request] = replace(
            tenant,
            residency=Residency.RESUMING if swap else Residency.RESIDENT,
            home=devices,
            state=dict.fromkeys(devices, self._state),
            room=0,
        )
        self._leases[request] = Lent(
            id=request,
            tenant=request,
            devices=devices,
            state=LeaseState.ACTIVE,
            since=seat.computes,
            computed=seat.computed,
        )
        if swap:
            heappush(self._events, (seat.computes, _Event.MOVED, number, seat.turn))
        heappush(self._events, (seat.computes + seat.left, _Event.END, number, seat.turn))

    def _end(self, number: int, seat: _Seat, now: float) -> None:
        cell = seat.session.cells[seat.at]
        assert seat.granted is not None
        seat.cells.append(
            CellRun(seat.session.id, cell.id, seat.ready, seat.granted, seat.swap, now, seat.start, True, seat.paused)
        )
        self._held.append(Held(seat.session.id, seat.session.gpus, seat.since, now))
        del self._leases[seat.name]
        # As the broker remembers it.
        seat.typical = cell.duration if seat.typical is None else (seat.typical + cell.duration) / 2
        self._tenants[seat.name] = replace(
            self._tenants[seat.name], residency=Residency.RESIDENT, last_used=now, typical=seat.typical
        )
        seat.at += 1
        more = seat.at < len(seat.thinks)
        after = seat.thinks[seat.at] if more else seat.session.linger
        heappush(self._events, (now + after, _Event.READY if more else _Event.CLOSE, number, seat.turn))


_START = {Residency.NONE: Start.FRESH, Residency.RESIDENT: Start.WARM, Residency.SUSPENDED: Start.COLD}

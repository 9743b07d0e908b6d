"""Notebooks on one node whose GPUs the broker's own policy lends: a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import (
    DeviceRoom,
    LeaseState,
    Lending,
    LendingRules,
    LendingSnapshot,
    Lent,
    Request,
    Residency,
    Suspend,
    Tenant,
)
from carrel.core.policy.lend import lend
from carrel.simulate.measures import percentile
from carrel.simulate.notebooks.cells import NotebookSession

#: Bytes of memory of each GPU, which a state fills.
_MEMORY = 80 * 1024**3
#: Seconds in which the state of one GPU is brought back; moving the state that was in its way is included.
SWAP_SECONDS = 4.0


class CellRun(NamedTuple):
    """How it went for one cell. Times are seconds after the beginning of the record."""

    session: str
    #: Its place in its session.
    number: int
    #: When its user would have run it: its think time after the cell before it.
    ready: float
    #: When it got its GPUs; moving state comes after that.
    granted: float
    #: Where its state was: nowhere yet, on the GPUs, or in host memory.
    found: Residency
    #: Seconds for which state was moved before it computed, and each time that it went on.
    swap: float
    end: float
    #: Seconds for which it was suspended in mid-flight, or waited to go on.
    paused: float

    @property
    def wait(self) -> float:
        """Seconds in line, without the moving of state."""
        return self.granted - self.ready


class Held(NamedTuple):
    """GPUs that a cell held without a break. Seconds after the beginning of the record."""

    session: str
    gpus: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """How it went for all sessions."""

    gpus: int
    #: In the order of the sessions, and of the cells in them.
    cells: Sequence[CellRun]
    #: In the order in which they ended.
    held: Sequence[Held]
    #: How often a state was moved to host memory because a request needed the room.
    evictions: int
    #: How often cells were suspended in mid-flight.
    pauses: int

    def p95_wait(self) -> float:
        """Seconds that 95 of 100 cells wait at most."""
        return percentile([cell.wait for cell in self.cells], 0.95)


def simulate(
    sessions: Sequence[NotebookSession],
    gpus: int,
    *,
    rules: LendingRules | None = None,
    homes_move: bool = False,
    swap_seconds: float = SWAP_SECONDS,
) -> Week:
    """Run `sessions` on one node of `gpus` GPUs, which the broker's own policy (`carrel.core.policy.lend`) lends by `rules`.

    Each session has an owner of its own, and its state fills its GPUs. A state comes back to the GPUs that it came from; with
    `homes_move` from host memory to any that are free. Users are a closed loop: each runs a cell their recorded think time after
    the one before it has ended, so a cell that is late makes the rest of its session late. A cell whose state is brought back, or
    whose GPUs have to be cleared of others' states, begins `swap_seconds` later for each such GPU; the GPUs are held meanwhile.

    Raises `Invalid` when there are no sessions, and when one needs more than `gpus`.
    """
    check(sessions, gpus)
    return _Run(sessions, gpus, rules or LendingRules(), swap_seconds, homes_move=homes_move).week()


def gpus_needed(
    sessions: Sequence[NotebookSession], *, p95_wait: float, homes_move: bool = False, near: int | None = None
) -> int:
    """Return a number of GPUs with which 95 of 100 cells wait for at most `p95_wait` seconds, and with one less they wait longer.

    The search begins `near` a number, else near as many as 95 of 100 cells would find in use if none ever waited, and goes on by
    ones: far too few GPUs mean very many pauses, which take minutes. Lists of work that need several GPUs at once may do worse
    with more of them (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969), and so may time slices.
    """
    check(sessions, least := max((session.gpus for session in sessions), default=0))

    def suffice(gpus: int) -> bool:
        return simulate(sessions, gpus, homes_move=homes_move).p95_wait() <= p95_wait

    gpus = max(least, near or _in_use(sessions))
    while gpus > least and suffice(gpus - 1):
        gpus -= 1
    while not suffice(gpus):
        gpus += 1
    return gpus


def _in_use(sessions: Sequence[NotebookSession]) -> int:
    """GPUs on which cells compute when a cell begins, if none ever waits: 95 of 100 cells find no more, with their own."""
    changes: list[tuple[float, int]] = []
    for session in sessions:
        at = session.opens
        for think, computes in zip(session.thinks, session.computes, strict=True):
            changes += [(at + think, session.gpus), (at + think + computes, -session.gpus)]
            at += think + computes
    changes.sort()
    used = accumulate(change for _, change in changes)
    return int(percentile([here for here, (_, change) in zip(used, changes, strict=True) if change > 0], 0.95))


def check(sessions: Sequence[NotebookSession], gpus: int) -> None:
    """Raise `Invalid` for what cannot be simulated."""
    if not sessions:
        raise Invalid("There are no sessions.", remedy="Give one or more.")
    widest = max(sessions, key=lambda session: session.gpus)
    if widest.gpus > gpus:
        raise Invalid(
            f"Session {widest.name} needs {widest.gpus} GPUs at once and there are {gpus}.",
            remedy=f"Give {widest.gpus} or more, or leave the session out.",
        )


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
    name: str
    at: int = 0
    ready: float = 0.0
    #: When the present cell first got GPUs; None while it waits for them.
    granted: float | None = None
    found: Residency = Residency.NONE
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


class _Run:
    """One run; `week` carries it out.

    Moving state away is taken to be instantaneous, and the whole price of a swap is paid when a cell begins or goes on. Seconds
    of the record stand for the policy's Unix seconds.
    """

    def __init__(
        self, sessions: Sequence[NotebookSession], gpus: int, rules: LendingRules, swap_seconds: float, *, homes_move: bool
    ) -> None:
        self._rules = rules
        self._homes_move = homes_move
        self._swap_seconds = swap_seconds
        self._seats = [_Seat(session, f"{number:08d}") for number, session in enumerate(sessions)]
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

    def week(self) -> Week:
        """Run the sessions to their end."""
        for number, seat in enumerate(self._seats):
            heappush(self._events, (seat.session.opens, _Event.READY, number, 0))
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, event, number, turn = heappop(self._events)
                self._happen(event, number, turn, now)
            self._serve(now)
        assert not self._requests, "nobody waits for ever"
        return Week(
            gpus=len(self._devices),
            cells=[cell for seat in self._seats for cell in seat.cells],
            held=self._held,
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
            self._tenants[seat.name] = Tenant(id=seat.name, owner=seat.name, room=_MEMORY, portable=self._homes_move)
        seat.ready, seat.granted, seat.swap, seat.paused = now, None, 0.0, 0.0
        seat.left, seat.computed = seat.session.computes[seat.at], 0.0
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
            rules=self._rules,
        )

    def _host_used(self) -> int:
        if self._rules.host_memory is None:
            return 0
        return sum(len(one.home) * _MEMORY for one in self._tenants.values() if one.residency is Residency.SUSPENDED)

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
        self._held.append(Held(seat.session.name, seat.session.gpus, seat.since, now))
        self._leases[victim.id] = replace(self._leases[victim.id], state=LeaseState.PAUSED, used=seat.computed)
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
            seat.found = tenant.residency
        else:
            seat.paused += now - seat.paused_at
        seat.swap += swap
        seat.since, seat.computes = now, now + swap
        # A state that is being brought back cannot be suspended, and its time slice begins after that: it always gets on.
        self._tenants[request] = replace(
            tenant,
            residency=Residency.RESUMING if swap else Residency.RESIDENT,
            home=devices,
            state=dict.fromkeys(devices, _MEMORY),
            room=0,
        )
        self._leases[request] = Lent(
            id=request,
            tenant=request,
            devices=devices,
            state=LeaseState.ACTIVE,
            since=seat.computes,
            used=seat.computed,
        )
        if swap:
            heappush(self._events, (seat.computes, _Event.MOVED, number, seat.turn))
        heappush(self._events, (seat.computes + seat.left, _Event.END, number, seat.turn))

    def _end(self, number: int, seat: _Seat, now: float) -> None:
        computed = seat.session.computes[seat.at]
        assert seat.granted is not None
        seat.cells.append(CellRun(seat.session.name, seat.at, seat.ready, seat.granted, seat.found, seat.swap, now, seat.paused))
        self._held.append(Held(seat.session.name, seat.session.gpus, seat.since, now))
        del self._leases[seat.name]
        # As the broker remembers it.
        seat.typical = computed if seat.typical is None else (seat.typical + computed) / 2
        self._tenants[seat.name] = replace(
            self._tenants[seat.name], residency=Residency.RESIDENT, last_used=now, typical=seat.typical
        )
        seat.at += 1
        more = seat.at < len(seat.session.thinks)
        after = seat.session.thinks[seat.at] if more else seat.session.linger
        heappush(self._events, (now + after, _Event.READY if more else _Event.CLOSE, number, seat.turn))

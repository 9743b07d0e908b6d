"""Notebooks and tasks on one node whose GPUs the broker's own policy lends: a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heappop, heappush
from random import Random

from carrel.core.domain.lease import (
    DeviceRoom,
    LeaseState,
    Lending,
    LendingSnapshot,
    Request,
    Residency,
    Suspend,
    Tenant,
)
from carrel.core.domain.lease import Lent as Lease
from carrel.core.policy.lend import lend
from carrel.core.policy.lend_tasks import owed_from
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.together.line import Line
from carrel.simulate.together.mode import MEMORY, Lent, States
from carrel.simulate.together.result import Together
from carrel.simulate.together.usage_records import ActiveSession, Assigned, UsageRecords
from carrel.simulate.trace import TraceJob

#: Seconds after its last cell for which a session's GPUs are given to no new task, as in the server.
LINGER = 60.0
_NEVER = float("inf")


class _Event(IntEnum):
    """In the order in which those of one moment happen."""

    #: A state has left its devices, or a process has stopped where it is; a state is back.
    OUT = 0
    BACK = 1
    END = 2
    CLOSE = 3
    READY = 4
    #: Time alone is a reason to ask the policy, or placement, again.
    AGAIN = 5
    PLACE = 6


@dataclass(slots=True)
class _Work:
    """A cell or a task that wants GPUs or has them."""

    gpus: int
    #: Bytes of its state on each GPU.
    size: int
    #: Seconds that it still computes, and that it has computed.
    left: float = 0.0
    computed: float = 0.0
    #: From when on it computes; None while it does not.
    since: float | None = None
    #: Grows with each pause: news of the time before it means nothing.
    turn: int = 0


class LentRun:
    """One run; `result` carries it out. Seconds of the trace stand for the policy's Unix seconds."""

    def __init__(
        self,
        sessions: Sequence[NotebookSession],
        tasks: Iterable[TraceJob],
        mode: Lent,
        gpus: int,
        states: States,
        seed: int,
        until: float,
    ) -> None:
        self._mode, self._way, self._states, self._until = mode, mode.way, states, until
        self._rules = replace(mode.rules, move_rate=mode.way.rate, pause_in_place=mode.tasks_lend and mode.way.in_place)
        uuids = tuple(f"gpu{number:05d}" for number in range(gpus))
        self._rooms = [DeviceRoom(uuid=uuid, memory=MEMORY) for uuid in uuids]
        self._books = UsageRecords(sessions, gpus, until)
        self._line = Line(tasks, uuids)
        self._seed = seed
        random = Random(seed)
        self._works = {
            active.name: _Work(active.session.gpus, random.choice(states.cells)) for active in self._books.active_sessions
        }
        #: By name, `c…` and `t…`: who is there, who waits, and who has a lease (paused or not).
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[str, Request] = {}
        self._leases: dict[str, Lease] = {}
        self._typical: dict[str, float] = {}
        self._events: list[tuple[float, _Event, str, int]] = []
        self._again_at: float | None = None
        #: What the waiting cells wait for, by the policy's last answer.
        self._wanted: frozenset[str] = frozenset()
        #: Seconds for which each task that has GPUs was paused; of those that are, since when.
        self._paused: dict[int, float] = {}
        self._paused_since: dict[int, float] = {}

    def result(self) -> Together:
        """Run to the end, or as far as is asked for."""
        for active in self._books.active_sessions:
            heappush(self._events, (active.session.opens, _Event.READY, active.name, 0))
        heappush(self._events, (0.0, _Event.PLACE, "", 0))
        while self._events and self._events[0][0] <= self._until:
            now = self._events[0][0]
            news = False
            while self._events and self._events[0][0] == now:
                _, event, name, turn = heappop(self._events)
                news = self._happen(event, name, turn, now) or news
            if news:
                self._serve(now)
            if self._place(now):
                self._serve(now)
        for name, work in self._works.items():
            if work.since is not None:
                self._stop(name, work, self._until)
        return self._books.result(self._mode.name)

    def _happen(self, event: _Event, name: str, turn: int, now: float) -> bool:
        """True when it is news for the lending policy."""
        if event is _Event.AGAIN:
            if now != self._again_at:
                return False
            self._again_at = None
        elif event is _Event.PLACE:
            return False
        elif event is _Event.READY:
            self._ask(self._seat(name), now)
        elif event is _Event.CLOSE:
            del self._tenants[name]
        elif name not in self._works or turn != self._works[name].turn:
            return False
        elif event is _Event.OUT:
            self._out(name, now)
        elif event is _Event.BACK:
            self._tenants[name] = replace(self._tenants[name], residency=Residency.RESIDENT)
        else:
            self._end(name, now)
        return True

    def _seat(self, name: str) -> ActiveSession:
        return self._books.active_sessions[int(name[1:])]

    # --- cells and tasks ----------------------------------------------------------------------------------------------------

    def _ask(self, active: ActiveSession, now: float) -> None:
        work = self._works[active.name]
        if active.name not in self._tenants:
            self._tenants[active.name] = Tenant(id=active.name, owner=active.name, room=work.size, portable=self._mode.homes_move)
        self._books.ask(active, now)
        work.left, work.computed = active.session.cells[active.at].duration, 0.0
        self._requests[active.name] = Request(id=active.name, tenant=active.name, gpus=work.gpus, asked_at=now)

    def _place(self, now: float) -> bool:
        """Give free GPUs to tasks of the queue; True when one of them asks for its lease now."""
        if not self._line.has_free:
            return False
        cells = [lease for lease in self._leases.values() if not lease.exclusive and lease.state is not LeaseState.PAUSED]
        kept = {uuid for lease in cells for uuid in lease.devices} | self._wanted
        moves: dict[str, int] = {}
        for tenant in self._tenants.values():
            if tenant.residency in _THERE and tenant.id[0] == "c":
                if tenant.last_used and now - tenant.last_used < LINGER:
                    kept.update(tenant.home)
                for uuid, size in tenant.state.items():
                    moves[uuid] = moves.get(uuid, 0) + size
        if not self._line.may_start(kept):
            return False
        paused = {
            job: seconds + (now - self._paused_since[job] if job in self._paused_since else 0.0)
            for job, seconds in self._paused.items()
        }
        found = self._line.starts(now, frozenset(kept), moves, paused)
        for start in found:
            self._assign(start.job_id, start.devices, now)
        return bool(found)

    def _assign(self, job: int, devices: tuple[str, ...], now: float) -> None:
        task, name = self._line.traced.pop(job), f"t{job:08d}"
        size = Random(f"{self._seed} {job}").choice(self._states.tasks)
        self._works[name] = _Work(task.gpus, size, left=task.duration)
        self._books.assigned[job] = Assigned(task, name, now)
        self._paused[job] = 0.0
        elastic = self._rules.pause_in_place
        self._tenants[name] = Tenant(id=name, owner=task.user, elastic=elastic)
        self._requests[name] = Request(id=name, tenant=name, gpus=task.gpus, devices=devices, asked_at=now, exclusive=True)

    def _end(self, name: str, now: float) -> None:
        work = self._works[name]
        self._stop(name, work, now)
        del self._leases[name]
        if name[0] == "t":
            job = int(name[1:])
            self._books.task_over(job, now)
            self._line.end(job)
            del self._works[name], self._tenants[name], self._paused[job]
            return
        active = self._seat(name)
        before = self._tenants[name].typical
        took = active.session.cells[active.at].duration
        # As the broker remembers it.
        typical = took if before is None else (before + took) / 2
        self._tenants[name] = replace(self._tenants[name], residency=Residency.RESIDENT, last_used=now, typical=typical)
        more, after = self._books.cell_over(active, now)
        heappush(self._events, (now + after, _Event.READY if more else _Event.CLOSE, name, work.turn))
        heappush(self._events, (now + LINGER, _Event.PLACE, "", 0))

    # --- what the policy says -----------------------------------------------------------------------------------------------

    def _serve(self, now: float) -> None:
        """Ask the policy who gets what, and do it."""
        requests = self._asking(now)
        if not requests:
            self._wanted = frozenset()
            return
        snapshot = LendingSnapshot(
            devices=self._rooms,
            tenants=self._tenants,
            requests=requests,
            leases=tuple(self._leases.values()),
            rules=self._rules,
        )
        answer = lend(snapshot, now)
        for one in answer.suspends:
            self._suspend(one, now)
        for lent in answer.lends:
            self._lend(lent.request, lent.devices, now)
        if answer.again_at is not None:
            self._remind(answer.again_at)
        self._wanted = self._kept(answer)

    def _kept(self, answer: Lending) -> frozenset[str]:
        """Devices that waiting cells want, as the server keeps them from placement."""
        kept = {uuid for lease in self._leases.values() if not lease.exclusive for uuid in lease.devices}
        free = [room.uuid for room in self._rooms if room.uuid not in kept]
        for queued in answer.queue:
            request = self._requests[queued.request]
            if request.exclusive:
                continue
            home = self._tenants[request.tenant].home
            if home:
                kept.update(home)
                continue
            wanted = [uuid for uuid in free if uuid not in kept][: request.gpus]
            kept.update(wanted)
        return frozenset(kept)

    def _asking(self, now: float) -> tuple[Request, ...]:
        """Whom to ask the policy about.

        A task that has had its share stands behind everybody else: while a cell computes on one of its devices the policy would
        only tell it to wait. There are many of these, so they are left out until that has changed.
        """
        leases = self._leases
        busy = {uuid for lease in leases.values() if lease.state is not LeaseState.PAUSED for uuid in lease.devices}
        asking = []
        for name, request in self._requests.items():
            if request.resumes is not None and request.exclusive and not busy.isdisjoint(request.devices):
                owed = owed_from(leases[name], self._rules)
                if owed > now:
                    self._remind(owed)
                    continue
            asking.append(request)
        return tuple(asking)

    def _remind(self, at: float) -> None:
        """Ask again then. Where another moment comes before, that one asks for what comes after it."""
        if at < _NEVER and (self._again_at is None or at < self._again_at):
            self._again_at = at
            heappush(self._events, (at, _Event.AGAIN, "", 0))

    def _suspend(self, decision: Suspend, now: float) -> None:
        tenant, work = self._tenants[decision.tenant], self._works[decision.tenant]
        if decision.pauses is not None:
            self._stop(tenant.id, work, now)
            if tenant.id[0] == "t":
                self._books.task_pauses += 1
                job = int(tenant.id[1:])
                self._books.assigned[job].pauses += 1
                self._paused_since[job] = now
            else:
                self._books.cell_pauses += 1
        work.turn += 1
        if decision.in_place:
            assert decision.pauses is not None
            self._leases[tenant.id] = replace(self._leases[tenant.id], pausing=True)
            seconds = self._way.fixed_out
        else:
            self._tenants[tenant.id] = replace(tenant, residency=Residency.SUSPENDING)
            seconds = self._way.leaves(work.size)
        self._books.move(work.gpus, now, seconds)
        heappush(self._events, (now + seconds, _Event.OUT, tenant.id, work.turn))

    def _stop(self, name: str, work: _Work, now: float) -> None:
        """It computes no longer."""
        if work.since is None:
            return
        end = max(work.since, min(now, self._until))
        took = end - work.since
        self._books.compute(name, self._leases[name].devices, work.since, end)
        work.left -= took
        work.computed += took
        if name[0] == "t":
            self._books.assigned[int(name[1:])].ran += took
        work.since = None

    def _out(self, name: str, now: float) -> None:
        """Its state has left its devices, or it was stopped where it is."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return
        if tenant.residency is Residency.SUSPENDING:
            self._tenants[name] = replace(tenant, residency=Residency.SUSPENDED)
        lease = self._leases.get(name)
        if lease is None or lease.state is LeaseState.PAUSED:
            return
        self._leases[name] = replace(lease, state=LeaseState.PAUSED, pausing=False, computed=self._works[name].computed)
        self._requests[name] = Request(
            id=name,
            tenant=name,
            gpus=len(lease.devices),
            devices=lease.devices if lease.exclusive else (),
            asked_at=now,
            exclusive=lease.exclusive,
            resumes=name,
        )

    def _lend(self, name: str, devices: tuple[str, ...], now: float) -> None:
        request = self._requests.pop(name)
        work, tenant = self._works[name], self._tenants[name]
        back = self._way.returns(work.size) if tenant.residency is Residency.SUSPENDED else 0.0
        self._books.move(len(devices), now, back)
        work.since = now + back
        if name[0] == "t":
            job = int(name[1:])
            if job in self._paused_since:
                self._paused[job] += work.since - self._paused_since.pop(job)
        elif (active := self._seat(name)).began is None:
            active.began = work.since
        # A task that does not lend ends with its processes: what it has on its devices is nobody's business.
        tracked = not request.exclusive or self._mode.tasks_lend
        if tracked:
            residency = Residency.RESUMING if back else Residency.RESIDENT
            state = dict.fromkeys(devices, work.size)
            self._tenants[name] = replace(tenant, residency=residency, home=devices, state=state, room=0)
        before = self._leases.get(name)
        self._leases[name] = Lease(
            id=name,
            tenant=name,
            devices=devices,
            state=LeaseState.ACTIVE,
            since=work.since,
            exclusive=request.exclusive,
            lends=request.exclusive and self._mode.tasks_lend,
            began=now if before is None else before.began,
            computed=work.computed,
        )
        if back:
            heappush(self._events, (work.since, _Event.BACK, name, work.turn))
        heappush(self._events, (work.since + work.left, _Event.END, name, work.turn))


_THERE = (Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING)

"""A node for tests of lending: tenants that ask, compute and stop; decisions carried out as a broker would, and checked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from carrel.core.domain.lease import (
    DeviceRoom,
    LeaseState,
    Lending,
    LendingRules,
    LendingSnapshot,
    Lent,
    Request,
    Residency,
    Tenant,
)
from carrel.core.policy.lend import lend
from carrel.core.policy.lend_room import Rooms
from carrel.core.policy.lend_tasks import back_by
from carrel.core.policy.lend_times import MoveTimes

GIB = 1024**3
MEMORY = 16 * GIB


def device(number: int, **more: object) -> DeviceRoom:
    return DeviceRoom(uuid=f"gpu{number}", memory=MEMORY, **more)


def tenant(name: str, owner: str = "", **more: object) -> Tenant:
    return Tenant(id=name, owner=owner or name, **more)


def resident(name: str, home: str = "gpu0", size: int = 2, owner: str = "", **more: object) -> Tenant:
    return tenant(name, owner, residency=Residency.RESIDENT, home=(home,), state={home: size * GIB}, **more)


def suspended(name: str, home: str = "gpu0", size: int = 2, owner: str = "", **more: object) -> Tenant:
    return tenant(name, owner, residency=Residency.SUSPENDED, home=(home,), state={home: size * GIB}, **more)


def request(name: str, asked_at: float = 0.0, gpus: int = 1, **more: object) -> Request:
    return Request(id=f"r-{name}", tenant=name, gpus=gpus, asked_at=asked_at, **more)


def lease(name: str, *devices: str, since: float = 0.0, state: LeaseState = LeaseState.ACTIVE, **more: object) -> Lent:
    return Lent(id=f"l-{name}", tenant=name, devices=devices, state=state, since=since, **more)


def snapshot(
    devices: int | list[DeviceRoom],
    tenants: list[Tenant],
    requests: Sequence[Request] = (),
    leases: Sequence[Lent] = (),
    **more: object,
) -> LendingSnapshot:
    given = [device(number) for number in range(devices)] if isinstance(devices, int) else devices
    return LendingSnapshot(devices=given, tenants={one.id: one for one in tenants}, requests=requests, leases=leases, **more)


def check(snap: LendingSnapshot, lending: Lending, now: float) -> None:
    """Everything that must hold of any answer."""
    occupied = {uuid for one in snap.leases if one.state is not LeaseState.PAUSED for uuid in one.devices}
    devices = {one.uuid: one for one in snap.devices}
    requests = {one.id: one for one in snap.requests}
    leases = {one.id: one for one in snap.leases}
    answered = [one.request for part in (lending.lends, lending.queue, lending.gives_up) for one in part]
    assert sorted(answered) == sorted(requests), "every request is lent to, waits or gives up, once"
    for given_up in lending.gives_up:
        until = requests[given_up.request].until
        assert until <= now
    assert [one.position for one in lending.queue] == list(range(1, len(lending.queue) + 1))
    for one in lending.lends:
        asked = requests[one.request]
        who = snap.tenants[asked.tenant]
        assert occupied.isdisjoint(one.devices), "a device is in one lease"
        occupied |= set(one.devices)
        assert len(set(one.devices)) == len(one.devices)
        if asked.devices:
            assert set(one.devices) == set(asked.devices)
        elif who.home and set(one.devices) != set(who.home):
            assert who.portable
            assert who.residency in (Residency.SUSPENDED, Residency.SPILLED), "only what is in host memory changes its home"
            kinds = [[(devices[uuid].type, devices[uuid].memory) for uuid in home] for home in (who.home, one.devices)]
            assert kinds[0] == kinds[1], "each state comes back on a device like its own"
            who = who.at(one.devices)
        elif who.home:
            assert set(one.devices) == set(who.home)
        else:
            assert len(one.devices) == asked.gpus
        assert all(devices[uuid].withheld is None for uuid in one.devices)
        assert who.residency in (Residency.NONE, Residency.RESIDENT, Residency.SUSPENDED, Residency.SPILLED)
        _check_room(snap, asked, who, one.devices)
    named = [one.tenant for one in lending.suspends]
    assert len(set(named)) == len(named), "nobody is suspended twice"
    moved = [one.tenant for one in lending.suspends if not one.in_place]
    _check_places(snap, lending, moved)
    waiting = {one.request for one in lending.queue}
    for trim in lending.trims:
        who = snap.tenants[trim.tenant]
        assert who.residency is Residency.RESIDENT
        assert sum(who.cache.values()) > 0
        assert not who.trimming
        assert who.id not in moved, "who is suspended gives its caches back anyway"
        assert all(one.tenant != who.id or one.state is LeaseState.PAUSED for one in snap.leases), "it computes nothing"
        assert trim.request in waiting
    for one in lending.suspends:
        who = snap.tenants[one.tenant]
        assert who.residency is Residency.RESIDENT
        assert who.suspendable
        assert one.request in waiting
        busy = [held for held in snap.leases if held.tenant == who.id and held.state is not LeaseState.PAUSED]
        if one.pauses is None:
            assert not busy, "who computes is not suspended as if idle"
            assert requests[one.request].tenant != who.id
        else:
            (paused,) = busy
            assert paused.id == one.pauses
            assert paused.state is LeaseState.ACTIVE
            if paused.exclusive:
                assert paused.lends
                assert not requests[one.request].exclusive, "a task gives way to cells only"
                assert now - paused.since >= snap.rules.task_turn, "its turn is over"
                if requests[one.request].resumes is not None:
                    lent = paused.since - paused.began - paused.used
                    assert lent <= (1 - snap.rules.task_share) * (now - paused.began) + 1e-6, "it keeps its share"
            elif not _must_be_back(snap, requests[one.request], now):
                assert now - paused.since >= snap.rules.time_slice > 0, "its slice is over"
                if (task := leases.get(requests[one.request].resumes or "")) is not None and task.lends:
                    assert task.used <= snap.rules.task_share * (now - task.began) + 1e-6, "no more than its share"
        if one.in_place:
            assert one.pauses is not None
            assert not leases[one.pauses].pausing, "once is enough"
            assert snap.rules.pause_in_place
    for one in lending.expires:
        held = leases[one.lease]
        assert held.state is LeaseState.HELD
        assert held.held_until <= now or (held.by_choice and _must_be_back(snap, requests[one.request], now))
        assert one.request in waiting
    if lending.again_at is not None:
        assert lending.again_at > now
    if lending.queue:
        _check_homes(snap, lending, requests[lending.queue[0].request], now)


def _check_homes(snap: LendingSnapshot, lending: Lending, first: Request, now: float) -> None:
    """Whoever is first of those that wait does not wait while its state could come back to a free device like its own."""
    who = snap.tenants[first.tenant]
    known = {room.uuid: room for room in snap.devices}
    if first.devices or not who.portable or who.residency is not Residency.SUSPENDED or len(who.home) != 1 or lending.lends:
        return
    if lending.suspends or lending.trims or lending.expires:
        return  # room is being made
    rooms, own = Rooms(snap, now), known[who.home[0]]
    lease = rooms.leases.get(own.uuid)
    if lease is not None and lease.exclusive and lease.lends:
        return  # a task that gives way soon
    for uuid, room in known.items():
        if uuid not in rooms.leases and room.withheld is None and (room.type, room.memory) == (own.type, own.memory):
            assert not rooms.plan(first, who.at((uuid,)), (uuid,)).ready


def _must_be_back(snap: LendingSnapshot, asked: Request, now: float) -> bool:
    """True for a task whose walltime runs on, and which has been paused for as long as it may (or will be, when it is back)."""
    task = next((one for one in snap.leases if one.id == asked.resumes and one.lends), None)
    return task is not None and back_by(task, snap.rules, MoveTimes(Rooms(snap, now), snap.rules).return_takes(task)) <= now


def _check_places(snap: LendingSnapshot, lending: Lending, moved: list[str]) -> None:
    """What is moved has room where it goes."""
    straight = {one.tenant for one in lending.suspends if one.straight}
    host, disk = snap.host_used, snap.disk_used
    for who in snap.tenants.values():
        if who.id in straight:
            disk += _to_host(snap, who)
        elif who.id in moved or (who.residency is Residency.SUSPENDING and not who.straight):
            host += _to_host(snap, who)
    spilled = [snap.tenants[one.tenant] for one in lending.spills]
    assert len({one.id for one in spilled}) == len(spilled), "nobody is spilled twice"
    for who in spilled:
        assert who.residency is Residency.SUSPENDED
        assert who.spillable
        disk += who.moved
    lent = {request.tenant for request in snap.requests for one in lending.lends if one.request == request.id}
    back = [who for who in snap.tenants.values() if who.id in lent and who.residency is Residency.SPILLED]
    assert lent.isdisjoint(who.id for who in spilled)
    if not snap.rules.past_host:
        assert not straight
        host += sum(who.moved for who in back)
    if snap.rules.host_memory is not None and (moved or (back and not snap.rules.past_host)):
        assert host <= snap.rules.host_memory or set(moved) == straight, "host memory holds what is moved there"
    if spilled or straight:
        assert disk <= snap.rules.state_disk, "and so does the disk"
        assert all(snap.tenants[name].spillable for name in straight)


def _to_host(snap: LendingSnapshot, who: Tenant) -> int:
    """Bytes that go to host memory with a tenant: in the middle of a cell its caches, too."""
    computes = any(one.tenant == who.id and one.state is LeaseState.ACTIVE for one in snap.leases)
    return sum(who.state.values()) if computes and who.residency is Residency.RESIDENT else who.moved


def _check_room(snap: LendingSnapshot, asked: Request, who: Tenant, devices: tuple[str, ...]) -> None:
    on_device = (Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING)
    for room in snap.devices:
        if room.uuid not in devices:
            continue
        others = [
            one for one in snap.tenants.values() if one.id != who.id and one.residency in on_device and room.uuid in one.home
        ]
        if asked.exclusive and asked.resumes is None:
            assert not others, "a task has its devices to itself"
        elif asked.exclusive and not who.elastic:
            host = snap.rules.host_memory
            assert not others or host is not None or any(not one.suspendable for one in others), "what can move goes first"
        free = room.memory - room.foreign - sum(one.state.get(room.uuid, 0) for one in others)
        size = who.state.get(room.uuid, 0)
        if who.residency in (Residency.SUSPENDED, Residency.SPILLED):
            assert free >= min(size + snap.rules.margin, room.memory), "a state comes back only where there is a margin"
        elif who.residency is Residency.NONE and not asked.exclusive:
            least = int(room.memory * snap.rules.least_room)
            wanted = who.needs or min(who.room or least, least)  # of a notebook whose cells took less before, less
            assert free >= min(wanted, room.memory - room.foreign)


@dataclass
class Node:
    """Carries out what lending decides, as a broker would; `step` is one move of a process or of time."""

    devices: list[DeviceRoom]
    rules: LendingRules = field(default_factory=LendingRules)
    now: float = 1000.0
    tenants: dict[str, Tenant] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    leases: dict[str, Lent] = field(default_factory=dict)
    #: Seconds that each waiting or paused cell still computes, and how long each tenant's state gets.
    todo: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    #: Moves under way: tenant -> lease that is paused by it, or None.
    moving: dict[str, str | None] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=itertools.count)
    served: int = 0
    #: How long nothing may help a request before it gives up; and those that did.
    hold_time: float | None = None
    gave_up: list[str] = field(default_factory=list)
    #: Bytes of each tenant's state that it only keeps in reserve after a cell.
    caches: dict[str, int] = field(default_factory=dict)
    #: Who has its state on the disk, or it comes from there.
    on_disk: set[str] = field(default_factory=set)
    #: Tasks that give way to cells.
    lending: set[str] = field(default_factory=set)
    #: When a cell or a task computed last, or nobody waited.
    went_on: float = 1000.0

    def join(self, name: str, owner: str, size: int, cache: int = 0, portable: bool = False) -> None:
        spillable = self.rules.state_disk > 0
        self.tenants[name] = Tenant(id=name, owner=owner, needs=size, spillable=spillable, portable=portable)
        self.sizes[name], self.caches[name] = size, cache

    def ask(
        self,
        name: str,
        gpus: int,
        seconds: float,
        *,
        exclusive: bool = False,
        devices: tuple[str, ...] = (),
        elsewhere: bool = False,
        lends: bool = False,
    ) -> None:
        number = f"{next(self.ids):06d}"
        self.requests[number] = Request(
            id=number,
            tenant=name,
            gpus=gpus,
            devices=devices,
            asked_at=self.now,
            exclusive=exclusive,
            elsewhere=elsewhere,
        )
        if lends:
            self.lending.add(name)
        self.todo[number] = seconds
        self.settle()

    def snapshot(self) -> LendingSnapshot:
        gone = (Residency.SUSPENDED, Residency.SPILLING, Residency.RESUMING)
        there, past = self.tenants.values(), self.rules.past_host
        in_host = [one for one in there if one.residency in gone and not one.straight and not (past and one.id in self.on_disk)]
        on_disk = [one for one in there if one.id in self.on_disk or one.residency is Residency.SPILLING or one.straight]
        return LendingSnapshot(
            devices=self.devices,
            tenants=self.tenants,
            requests=list(self.requests.values()),
            leases=list(self.leases.values()),
            host_used=sum(sum(one.state.values()) for one in in_host),
            disk_used=sum(sum(one.state.values()) for one in on_disk),
            rules=self.rules,
            typical_lease=5.0,
        )

    def settle(self) -> Lending:
        snap = self.snapshot()
        answer = lend(snap, self.now)
        check(snap, answer, self.now)
        for lends in answer.lends:
            self._lend(self.requests.pop(lends.request), lends.devices)
        for moves in answer.suspends:
            if moves.in_place and moves.pauses is not None:
                self.leases[moves.pauses] = replace(self.leases[moves.pauses], pausing=True)
                continue
            who = self.tenants[moves.tenant]
            self.tenants[who.id] = replace(who, residency=Residency.SUSPENDING, straight=moves.straight)
            self.moving[moves.tenant] = moves.pauses
        for spill in answer.spills:
            self.tenants[spill.tenant] = replace(self.tenants[spill.tenant], residency=Residency.SPILLING)
            self.moving[spill.tenant] = None
        for trim in answer.trims:
            self.tenants[trim.tenant] = replace(self.tenants[trim.tenant], trimming=True)
        for given_up in answer.gives_up:
            del self.requests[given_up.request]
            self.gave_up.append(given_up.request)
        for queued in answer.queue:
            asked = self.requests[queued.request]
            ends = queued.stuck and not asked.exclusive and asked.resumes is None and self.hold_time is not None
            until = (asked.until or self.now + (self.hold_time or 0.0)) if ends else None
            self.requests[asked.id] = replace(asked, until=until)
        for ends in answer.expires:
            del self.leases[ends.lease]
        if answer.expires:
            self.settle()
        return answer

    def _lend(self, asked: Request, devices: tuple[str, ...]) -> None:
        who = self.tenants[asked.tenant]
        name = asked.resumes or f"lease-{asked.id}"
        computed = self.leases[name].used if name in self.leases else 0.0
        self.waited[asked.id] = self.now - asked.asked_at
        self.leases[name] = Lent(
            id=name,
            tenant=who.id,
            devices=devices,
            state=LeaseState.ACTIVE,
            since=self.now,
            exclusive=asked.exclusive,
            lends=who.id in self.lending,
            began=self.leases[name].began if name in self.leases else self.now,
            used=computed,
        )
        self.todo[name] = self.todo.pop(asked.id)
        if who.residency in (Residency.SUSPENDED, Residency.SPILLED):
            who = who if set(devices) == set(who.home) else who.at(devices)
            self.tenants[who.id] = replace(who, residency=Residency.RESUMING)
            self.moving[who.id] = name
        elif who.residency is Residency.NONE and (not asked.exclusive or who.id in self.lending):
            state = dict.fromkeys(devices, self.sizes[who.id])
            self.tenants[who.id] = replace(who, residency=Residency.RESIDENT, home=devices, state=state, needs=0)

    def finish_move(self, name: str) -> None:
        pauses = self.moving.pop(name)
        who = self.tenants[name]
        if who.residency is Residency.RESUMING:
            self.tenants[name] = replace(who, residency=Residency.RESIDENT)
            self.on_disk.discard(name)
        elif who.residency is Residency.SPILLING:
            self.tenants[name] = replace(who, residency=Residency.SPILLED, straight=False)
            self.on_disk.add(name)
        else:
            state = who.state if pauses is not None else {uuid: size - who.cache.get(uuid, 0) for uuid, size in who.state.items()}
            where = Residency.SPILLING if who.straight else Residency.SUSPENDED
            self.tenants[name] = replace(who, residency=where, state=state, cache={}, trimming=False)
            if who.straight:
                self.moving[name] = None
            if pauses is not None and pauses in self.leases:
                self._pause(pauses)
        self.settle()

    def _pause(self, name: str) -> None:
        lent = self.leases[name]
        computed = lent.used + self.now - lent.since
        self.leases[name] = replace(lent, state=LeaseState.PAUSED, pausing=False, used=computed)
        number = f"{next(self.ids):06d}"
        self.requests[number] = Request(
            id=number,
            tenant=lent.tenant,
            gpus=len(lent.devices),
            devices=lent.devices if lent.exclusive else (),
            asked_at=self.now,
            exclusive=lent.exclusive,
            resumes=name,
        )
        self.todo[number] = self.todo.pop(name)

    def pass_time(self, seconds: float) -> None:
        """Time goes by: cells compute, moves end, finished leases are given back."""
        self.now += seconds
        for name in list(self.moving):
            self.finish_move(name)
        for name in [name for name, held in self.leases.items() if held.pausing]:
            self._pause(name)
            self.settle()
        for name, who in list(self.tenants.items()):
            if who.trimming and who.residency is Residency.RESIDENT:
                self.finish_trim(name)
        for name, held in list(self.leases.items()):
            if held.state is LeaseState.ACTIVE and self.tenants[held.tenant].residency is not Residency.RESUMING:
                self.todo[name] -= seconds
                if self.todo[name] <= 0 and held.tenant not in self.moving:
                    self.end(name)
        self.settle()

    def end(self, name: str) -> None:
        held = self.leases.pop(name)
        took = self.now - held.since + held.used
        who, reserve = self.tenants[held.tenant], self.caches.get(held.tenant, 0)
        cache = {uuid: min(reserve, size) for uuid, size in who.state.items()} if reserve else {}
        if held.exclusive:  # its processes end with it
            self.tenants[who.id] = replace(who, residency=Residency.NONE, home=(), state={}, cache={}, trimming=False)
        else:
            self.tenants[who.id] = replace(who, last_used=self.now, typical=took, cache=cache, trimming=False)
        self.served += 1

    def finish_trim(self, name: str) -> None:
        who = self.tenants[name]
        state = {uuid: size - who.cache.get(uuid, 0) for uuid, size in who.state.items()}
        self.tenants[name] = replace(who, state=state, cache={}, trimming=False)
        self.settle()

    def watch(self) -> float:
        """For how long nobody has computed although the same request waits: of several that give up each has its own time."""
        computing = any(
            one.state is LeaseState.ACTIVE and self.tenants[one.tenant].residency in (Residency.RESIDENT, Residency.NONE)
            for one in self.leases.values()
        )
        first = min((one.asked_at for one in self.requests.values()), default=self.now)
        self.went_on = self.now if computing else max(self.went_on, first)
        return self.now - self.went_on

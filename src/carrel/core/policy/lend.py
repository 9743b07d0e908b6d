"""Who may use which GPU of a node now: the lending policy. Pure; the broker carries out what it says.

One walk through the line (`lend_order`). A request whose devices are free and have room (`lend_room`) gets them. One whose
devices are free but full has the least recently used states moved out of its way. One whose devices are in use waits for
them: it is *first in line* for them, so they are kept for it, and cells whose time slice is over are suspended for it in
mid-flight. A request further back that wants the same devices waits behind it; one that wants others does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carrel.core.domain.lease import (
    Checkpoint,
    ContextPlace,
    Exchange,
    Expire,
    GiveUp,
    LeaseState,
    Lend,
    Lending,
    LendingSnapshot,
    Lent,
    Queued,
    Request,
    Residency,
    Spill,
    Suspend,
    Tenant,
    Trim,
)
from carrel.core.policy import lend_reasons as reasons
from carrel.core.policy.device_free_times import DeviceFreeTimes
from carrel.core.policy.lend_homes import alone_at, homes_like, is_free_to_go
from carrel.core.policy.lend_order import InLine, held_by_owner, in_line, patience
from carrel.core.policy.lend_places import Places
from carrel.core.policy.lend_plan import Obstacle, Plan
from carrel.core.policy.lend_room import Rooms
from carrel.core.policy.lend_tasks import can_take_back, goes_first_from, stands_back
from carrel.core.policy.lend_times import MoveTimes
from carrel.core.policy.lend_turns import Turns, quantum

_MOVING = (Residency.SUSPENDING, Residency.SPILLING, Residency.RESUMING)
_NEVER = float("inf")


def lend(snapshot: LendingSnapshot, now: float) -> Lending:
    """Return who gets devices, whose state moves, which held leases end, and why the others wait, at `now` (Unix seconds).

    The same snapshot gives the same answer, with its sequences in any order.
    """
    walk = _Walk(snapshot, now)
    for place in walk.line():
        walk.consider(place)
    return Lending(
        lends=tuple(walk.lends),
        suspends=tuple(walk.suspends),
        exchanges=tuple(walk.exchanges),
        checkpoints=tuple(walk.checkpoints),
        spills=tuple(walk.spills),
        trims=tuple(walk.trims),
        expires=tuple(walk.expires),
        queue=tuple(walk.queue),
        gives_up=tuple(walk.gives_up),
        again_at=walk.again_at if walk.again_at < _NEVER else None,
    )


class _Walk:
    """One walk through the line."""

    def __init__(self, snapshot: LendingSnapshot, now: float) -> None:
        self.lends: list[Lend] = []
        self.suspends: list[Suspend] = []
        self.exchanges: list[Exchange] = []
        self.checkpoints: list[Checkpoint] = []
        self.spills: list[Spill] = []
        self.trims: list[Trim] = []
        self.expires: list[Expire] = []
        self.queue: list[Queued] = []
        self.gives_up: list[GiveUp] = []
        self.again_at = _NEVER
        self.held = held_by_owner(snapshot)
        #: A tenant that comes back elsewhere has its new home here from then on.
        self._tenants = dict(snapshot.tenants)
        self._snapshot = snapshot = replace(snapshot, tenants=self._tenants)
        self._now = now
        self._rooms = Rooms(snapshot, now)
        self._outlook = DeviceFreeTimes(snapshot, self._rooms.leases, now)
        self._patience = patience(snapshot)
        #: Devices that are lent in this walk, or for which somebody further ahead is first in line.
        self._claimed: set[str] = set()
        #: Tasks that are paused because they lent their devices, by their lease.
        self._lent = {lease.id: lease for lease in snapshot.leases if lease.lends and lease.state is LeaseState.PAUSED}
        self._times = MoveTimes(self._rooms, snapshot.rules)
        self._turns = Turns(snapshot, self._rooms, self._times, self.held, self._lent, now)

    def line(self) -> list[InLine]:
        """Everybody who waits, first in line first; behind them the tasks that lent their devices and have had their share."""
        line = in_line(self._snapshot, self.held)
        if self._lent:
            line.sort(key=self._rank)
        return line

    def _rank(self, place: InLine) -> int:
        rules, lease = self._snapshot.rules, self._lent.get(place.request.resumes or "")
        if lease is None:
            return 1
        cells = (self._snapshot.tenants[asked.tenant] for asked in self._snapshot.requests if not asked.exclusive)
        near = [cell for cell in cells if not cell.home or set(cell.home) & set(lease.devices)]
        visit = max((self._times.visit_takes(cell, lease.devices) for cell in near), default=0.0)
        first = goes_first_from(lease, rules, visit + self._times.return_takes(lease))
        if first <= self._now or not all(can_take_back(lease, cell, rules, self._now) for cell in near):
            return 0
        self.again_at = min(self.again_at, first)
        return 2 if stands_back(place.request, lease, rules, self._now) else 1

    def consider(self, place: InLine) -> None:
        """Lend to this request, or make room for it, or let it wait."""
        request = place.request
        tenant = self._snapshot.tenants[request.tenant]
        if any(spill.tenant == tenant.id for spill in self.spills):
            tenant = replace(tenant, residency=Residency.SPILLING)
        if (there := self._roaming(place, tenant)) is not None:
            self._tenants[tenant.id] = there
            if there.context and tenant.context_at is ContextPlace.DEVICE and self._rooms.leases.keys().isdisjoint(there.home):
                self._claim(there.home)
                self._rooms.places.keep(tenant)
                if tenant.id not in {one.tenant for one in self.checkpoints}:
                    self._rooms.context_leaves(tenant)
                    self.checkpoints.append(Checkpoint(tenant=tenant.id, request=request.id))
                self._wait(place, there.home, reasons.MOVING, "its own GPU state is being moved")
            else:
                self._fixed(place, there, there.home)
        elif request.devices or tenant.home:
            self._fixed(place, tenant, request.devices or tenant.home)
        else:
            self._any(place, tenant)

    # --- which devices ------------------------------------------------------------------------------------------------------

    def _fixed(self, place: InLine, tenant: Tenant, devices: Sequence[str]) -> None:
        rooms, request = self._rooms.devices, place.request
        away = [uuid for uuid in devices if uuid not in rooms or rooms[uuid].withheld is not None]
        if away:
            why = rooms[away[0]].withheld if away[0] in rooms else "it is not there any more"
            self._wait(place, devices, reasons.WITHHELD, f"its GPU is not lent out now: {why}", stuck=True)
        elif not self._claimed.isdisjoint(devices):
            # A job that could begin elsewhere waits for nobody who is ahead of it here.
            stuck = self._is_free_elsewhere(request, tenant, devices)
            self._wait(place, () if stuck else devices, reasons.KEPT, "others are ahead", stuck=stuck)
        elif any(uuid in self._rooms.leases for uuid in devices):
            self._take_turn(place, tenant, devices)
        else:
            self._enter(place, tenant, devices, self._rooms.plan(request, tenant, devices))

    def _roaming(self, place: InLine, tenant: Tenant) -> Tenant | None:
        """A tenant that need not go home, at the devices where it computes soonest; None: at home, or nowhere else.

        Only portable states make way for it, idle or in the middle of a cell: they need not wait for these devices either.
        """
        request, leases = place.request, self._rooms.leases
        if request.devices or not is_free_to_go(self._rooms, tenant) or any(self._is_soon_lent(place, u) for u in tenant.home):
            return None
        vacant: dict[str, Plan] = {}
        leased: list[str] = []
        for uuid, device in self._rooms.devices.items():
            if device.withheld is not None or uuid in self._claimed:
                continue
            if uuid in leases:
                if uuid in tenant.home or self._is_passed_round(leases[uuid]):
                    leased.append(uuid)
                continue
            plan = self._rooms.plan(request, alone_at(tenant, uuid), (uuid,))
            if plan.obstacle is None and (uuid in tenant.home or all(self._gives_place(one) for one in plan.victims)):
                vacant[uuid] = plan
        best = sorted(vacant, key=lambda uuid: (not vacant[uuid].ready, uuid not in tenant.home, *self._cost(uuid, vacant[uuid])))
        home = homes_like(self._rooms, tenant.home, best)
        if not home:
            soonest = sorted(leased, key=lambda uuid: self._clearing_rank(place, uuid))
            home = homes_like(self._rooms, tenant.home, [*best, *soonest])
        if home in ((), tenant.home):
            return None
        # An exchange brings a state to the devices that it has left.
        there = replace(tenant.at(home), in_pieces=False)
        # Room on each of several devices is not yet room on all.
        alone = leases.keys().isdisjoint(home)
        return None if alone and self._rooms.plan(request, there, home).obstacle is not None else there

    def _gives_place(self, victim: Tenant) -> bool:
        """True where an idle state waits for nothing when its devices are somebody else's: it comes back on others."""
        return victim.portable and not self._rooms.asks(victim.id)

    def _is_passed_round(self, lease: Lent) -> bool:
        """True where a cell computes that goes on elsewhere if it is paused."""
        return lease.state is LeaseState.ACTIVE and not lease.exclusive and self._tenants[lease.tenant].portable

    def _is_soon_lent(self, place: InLine, uuid: str) -> bool:
        """True where a task has the device and gives it up soon: sessions stay spread, and do not gather where no task is."""
        lease = self._rooms.leases.get(uuid)
        if lease is None or not (lease.exclusive and lease.lends):
            return False
        return self._gives_way(place, lease, within=self._patience)

    def _any(self, place: InLine, tenant: Tenant) -> None:
        request = place.request
        lendable = sorted(uuid for uuid, device in self._rooms.devices.items() if device.withheld is None)
        if len(lendable) < request.gpus:
            cause = f"{len(lendable)} of {len(self._rooms.devices)} GPUs are lent out now"
            self._wait(place, lendable, reasons.WITHHELD, cause, stuck=True)
            return
        unclaimed = [uuid for uuid in lendable if uuid not in self._claimed]
        if len(unclaimed) < request.gpus:
            earliest = self._outlook.earliest(lendable, request.gpus, self._quantum(place))
            self._wait(place, earliest, reasons.KEPT, "others are ahead")
            return
        vacant = [uuid for uuid in unclaimed if uuid not in self._rooms.leases]
        plans = {uuid: self._rooms.plan(request, tenant, (uuid,)) for uuid in vacant}
        good = sorted((uuid for uuid in vacant if plans[uuid].obstacle is None), key=lambda uuid: self._cost(uuid, plans[uuid]))
        leased = [uuid for uuid in unclaimed if uuid in self._rooms.leases]
        if len(good) >= request.gpus:
            devices = self._least_crowded(place, good, leased)
            if any(uuid in self._rooms.leases for uuid in devices):
                self._take_turn(place, tenant, devices)
                return
            plan = plans[devices[0]] if len(devices) == 1 else self._rooms.plan(request, tenant, devices)
            self._enter(place, tenant, devices, plan)
            return
        if len(good) + len(leased) < request.gpus:
            uuid, obstacle = next((uuid, plan.obstacle) for uuid, plan in plans.items() if plan.obstacle is not None)
            self._wait(place, (), *self._turns.obstacle(obstacle, (uuid,)), stuck=True)
            return
        ranked = sorted(leased, key=lambda uuid: self._clearing_rank(place, uuid))
        self._take_turn(place, tenant, (*good, *ranked[: request.gpus - len(good)]))

    def _least_crowded(self, place: InLine, good: Sequence[str], leased: Sequence[str]) -> tuple[str, ...]:
        """Which of the `good` devices, the best first, or of those that tasks give up now.

        A session comes back to the devices of its first cell. To begin at once where others come back to, and to wait for them
        each time, is worse than to pause a task that is there alone.
        """
        number = place.request.gpus
        rooms = self._rooms
        if place.request.exclusive or all(rooms.homes(uuid) == 0 for uuid in good[:number]):
            return tuple(good[:number])
        ready = [uuid for uuid in leased if (lease := rooms.leases[uuid]).lends and self._gives_way(place, lease)]
        ranked = sorted(ready, key=lambda uuid: self._clearing_rank(place, uuid))
        return tuple(sorted((*good, *ranked), key=rooms.homes)[:number])

    def _gives_way(self, place: InLine, lease: Lent, within: float = 0.0) -> bool:
        """True when the lease ends by itself or for this request, in so many seconds at most."""
        return lease.pausing or self._rooms.is_leaving(lease.tenant) or self._turns.due(place, lease) <= self._now + within

    def _cost(self, uuid: str, plan: Plan) -> tuple[int, int, int, str]:
        """Prefer what is ready, then what moves the least, then the device that the fewest call home."""
        moved = sum(victim.moved for victim in plan.victims)
        return (0 if plan.ready else 1, moved, self._rooms.homes(uuid), uuid)

    def _clearing_rank(self, place: InLine, uuid: str) -> tuple[float, int, float, float, str]:
        """Which leased device comes free first: by when it can be cleared, then by when it should end by itself."""
        lease = self._rooms.leases[uuid]
        if self._rooms.is_leaving(lease.tenant) or lease.pausing:
            return (-_NEVER, 0, 0.0, 0.0, uuid)
        due = self._turns.due(place, lease)
        # Of tasks that lend, one whose device few sessions come back to, and that gives up the fewest devices for it.
        homes, wide = (self._rooms.homes(uuid), float(len(lease.devices))) if lease.exclusive else (0, 0.0)
        clears = self._outlook.clears(uuid, self._quantum(place))
        return (max(due, self._now), homes, wide, clears, f"{lease.since:020.6f}{uuid}")

    # --- free devices -------------------------------------------------------------------------------------------------------

    def _enter(self, place: InLine, tenant: Tenant, devices: Sequence[str], plan: Plan) -> None:
        """The devices are in no lease: lend them, or make room on them."""
        if tenant.residency in _MOVING or tenant.context_at is ContextPlace.LEAVING:
            self._claim(devices)
            self._wait(place, devices, reasons.MOVING, "its own GPU state is being moved")
        elif plan.obstacle is not None:
            # Nothing that could be done now would help: it stands in nobody's way until something changes.
            self._wait(place, (), *self._turns.obstacle(plan.obstacle, devices), stuck=True)
        elif plan.ready:
            self._claim(devices)
            self._rooms.places = plan.places or self._rooms.places
            self._rooms.places.keep(tenant)
            self._outlook.give(devices, 0.0, place.expected)
            self.lends.append(Lend(request=place.request.id, devices=tuple(devices)))
        else:
            self._claim(devices)
            seconds = self._times.seconds(tenant, plan, devices)
            for caching in plan.trims:
                self._rooms.trim(caching)
                self.trims.append(Trim(tenant=caching.id, request=place.request.id))
            for one in plan.contexts:
                self._rooms.context_leaves(one)
                self.checkpoints.append(Checkpoint(tenant=one.id, request=place.request.id))
            self._make_places(place, plan.places)
            self._exchange(place, tenant, devices)
            for victim in plan.victims:
                if plan.places is None or victim.id in plan.places.now:
                    self._rooms.leave(victim)
                    straight = plan.places is not None and victim.id in plan.places.straight
                    self.suspends.append(Suspend(tenant=victim.id, request=place.request.id, straight=straight))
            self._wait(place, devices, reasons.MOVING, "GPU state is being moved to make room", least=seconds)

    def _make_places(self, place: InLine, places: Places | None) -> None:
        """From now on the room counts as taken that a plan takes in host memory and on the disk; what has to make way, does."""
        if places is not None:
            self._rooms.places = places
            self.spills.extend(Spill(tenant=one.id, request=place.request.id) for one in places.spills)

    def _exchange(self, place: InLine, tenant: Tenant, devices: Sequence[str]) -> None:
        """Where all who have to leave the devices do so now, piece by piece, the tenant's state comes in meanwhile."""
        if self._rooms.can_exchange(place.request, tenant, devices):
            self.exchanges.append(Exchange(tenant=tenant.id, request=place.request.id))

    # --- devices in use -----------------------------------------------------------------------------------------------------

    def _take_turn(self, place: InLine, tenant: Tenant, devices: Sequence[str]) -> None:
        """Some of the devices are in use: be first in line for them, and end what is due when that clears all of them."""
        if any(self._is_hopeless(place, tenant, uuid) for uuid in devices):
            # As where the GPU is free and cannot be cleared: it stands in nobody's way until something changes.
            self._wait(place, (), *self._turns.obstacle(Obstacle.HOST), stuck=True)
            return
        leases = self._rooms.leases
        clearing = self._turns.clearing(place, [leases[uuid] for uuid in devices if uuid in leases])
        if clearing.due > self._now and not clearing.leaving and self._is_free_elsewhere(place.request, tenant, devices):
            self._wait(place, (), clearing.code, clearing.cause, stuck=True)
            return
        # A task that takes its devices back from cells can do so only once all of these have had their slice.
        too_early = clearing.due > self._now and place.request.resumes in self._lent
        if clearing.task or too_early:
            # Nobody knows when a task ends early: what is free meanwhile is not kept idle for hours.
            self._claim([uuid for uuid in devices if uuid in leases])
        else:
            self._claim(devices)
        if clearing.due <= self._now:
            self._make_places(place, clearing.places)
            for suspend in clearing.suspends:
                if suspend.in_place:
                    self._turns.ending.add(suspend.pauses or "")
                elif suspend.tenant not in clearing.places.now:
                    continue  # once there is room for it in host memory
                else:
                    self._rooms.leave(self._snapshot.tenants[suspend.tenant])
                self.suspends.append(suspend)
            for expire in clearing.expires:
                self._turns.ending.add(expire.lease)
                self.expires.append(expire)
        elif clearing.due < _NEVER:
            self.again_at = min(self.again_at, clearing.due)
        if tenant.residency in _MOVING:
            self._wait(place, devices, reasons.MOVING, "its own GPU state is being moved")
        else:
            self._exchange(place, tenant, devices)
            moves = self._times.exchange_takes(tenant, devices)
            self._wait(place, devices, clearing.code, clearing.cause, moves=moves)

    def _is_free_elsewhere(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> bool:
        """True for a job that could have other devices, as many and as large: nobody uses them or asks for them."""
        if not request.elsewhere:
            return False
        asked = {uuid for other in self._snapshot.requests if other.id != request.id for uuid in other.devices}
        rooms = self._rooms.devices
        free = (
            uuid
            for uuid, room in rooms.items()
            if room.withheld is None
            and uuid not in self._rooms.leases
            and uuid not in self._claimed | asked
            and room.memory == rooms[devices[0]].memory
            and self._rooms.plan(request, tenant, (uuid,)).obstacle is None
        )
        return sum(1 for _ in free) >= len(devices)

    def _is_hopeless(self, place: InLine, tenant: Tenant, uuid: str) -> bool:
        """True when not even the end of the cell that computes there would make the room: its state has nowhere to go."""
        lease = self._rooms.leases.get(uuid)
        if lease is None or lease.exclusive or lease.state is LeaseState.HELD or place.request.exclusive:
            return False
        holder = self._snapshot.tenants[lease.tenant]
        return holder.id != tenant.id and self._rooms.is_shut_in(holder, tenant, uuid)

    # --- bookkeeping --------------------------------------------------------------------------------------------------------

    def _claim(self, devices: Sequence[str]) -> None:
        self._claimed.update(devices)

    def _quantum(self, place: InLine) -> float:
        return quantum(place, self._snapshot.rules.time_slice)

    def _wait(
        self,
        place: InLine,
        devices: Sequence[str],
        code: str,
        cause: str,
        *,
        stuck: bool = False,
        least: float = 0.0,
        moves: float = 0.0,
    ) -> None:
        """The request waits, for `least` seconds at least, and for `moves` more once its devices are free; `stuck`: for nothing
        that happens, so not for ever.
        """
        until = place.request.until if stuck else None
        if until is not None:
            if until <= self._now:
                self.gives_up.append(GiveUp(request=place.request.id, code=code, cause=cause))
                return
            self.again_at = min(self.again_at, until)
            cause = reasons.bounded(code, cause, self._now, place.request.stuck_since, until)
        estimate = None if stuck else self._outlook.start(devices, self._quantum(place))
        if estimate is not None:
            estimate = max(estimate, least) + moves
            self._outlook.give(devices, estimate, place.expected)
        position, request = len(self.queue) + 1, place.request
        gpus = len(devices) or request.gpus
        reason = reasons.waiting(code, gpus, position, estimate, cause)
        queued = Queued(request=request.id, position=position, reason=reason, estimate=estimate, stuck=stuck, cause=cause)
        self.queue.append(queued)

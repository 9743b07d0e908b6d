"""How much room there is on each device, how much a tenant needs, and whose state has to go to make it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from carrel.core.domain.lease import ContextPlace, DeviceRoom, LeaseState, LendingSnapshot, Lent, Request, Residency, Tenant
from carrel.core.domain.units import format_size
from carrel.core.policy.lend_contexts import Relief, comes_with, relief
from carrel.core.policy.lend_places import Places
from carrel.core.policy.lend_plan import Obstacle, Plan

_ON_DEVICE = frozenset({Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING})
_OFF_DEVICE = frozenset({Residency.SUSPENDED, Residency.SPILLED})


class Rooms:
    """The devices during one walk through the queue."""

    def __init__(self, snapshot: LendingSnapshot, now: float) -> None:
        self._rules = snapshot.rules
        self._now = now
        self.devices: dict[str, DeviceRoom] = {device.uuid: device for device in snapshot.devices}
        #: The lease that occupies each device; a paused lease occupies none.
        self.leases: dict[str, Lent] = {}
        self._busy: set[str] = set()
        for lease in snapshot.leases:
            if lease.state is not LeaseState.PAUSED:
                self._busy.add(lease.tenant)
                for uuid in lease.devices:
                    self.leases[uuid] = lease
        #: Those in host memory in the middle of a cell.
        self.paused = [one for lease in snapshot.leases if _is_away(one := snapshot.tenants[lease.tenant], lease)]
        #: Those that ask themselves are suspended last.
        self._asking = {request.tenant for request in snapshot.requests}
        #: Whose state is on each device, or comes to it or leaves it.
        self.residents: dict[str, list[Tenant]] = {uuid: [] for uuid in self.devices}
        self._homes: dict[str, int] = {}
        #: Whose state is on its way off its devices, or is going to be.
        self.leaving: set[str] = set()
        self._trimming = {tenant.id for tenant in snapshot.tenants.values() if tenant.trimming}
        #: Who has a context on devices that its state has left, and bytes that count as free of such contexts in a plan.
        self._away = {one.id: one for one in snapshot.tenants.values() if one.context and one.residency in _OFF_DEVICE}
        self._relief: Mapping[str, int] = {}
        self.places = Places.of(snapshot)
        tasks = {lease.tenant for lease in snapshot.leases if lease.exclusive}
        for tenant in sorted(snapshot.tenants.values(), key=lambda tenant: tenant.id):
            for uuid in tenant.home if tenant.id not in tasks else ():
                self._homes[uuid] = self._homes.get(uuid, 0) + 1
            if tenant.residency in _ON_DEVICE:
                for uuid in tenant.home:
                    if uuid in self.residents:
                        self.residents[uuid].append(tenant)
                if tenant.residency is Residency.SUSPENDING:
                    self.leave(tenant)
                    self.places.take(tenant, self.size(tenant))

    def size(self, tenant: Tenant) -> int:
        """Bytes that leave the device with it. Nobody asks a cell that computes to empty its caches."""
        return sum(tenant.state.values()) if tenant.id in self._busy else tenant.moved

    def leave(self, tenant: Tenant) -> None:
        """From now on `tenant`'s state counts as on its way off the device; `places` has room for it."""
        self.leaving.add(tenant.id)

    def trim(self, tenant: Tenant) -> None:
        """From now on `tenant` counts as giving its caches back."""
        self._trimming.add(tenant.id)

    def context_leaves(self, tenant: Tenant) -> None:
        """From now on `tenant`'s context counts as on its way off its devices."""
        self._away[tenant.id] = replace(tenant, context_at=ContextPlace.LEAVING)

    def asks(self, tenant: str) -> bool:
        """True when the tenant waits for a lease."""
        return tenant in self._asking

    def is_leaving(self, tenant: str) -> bool:
        """True when the tenant's state is on its way to host memory, or is going to be."""
        return tenant in self.leaving

    def homes(self, uuid: str) -> int:
        """How many sessions come back to the device, also those whose state is in host memory now."""
        return self._homes.get(uuid, 0)

    def free(self, uuid: str) -> int:
        """Bytes of the device that nobody takes now."""
        taken = sum(tenant.state.get(uuid, 0) for tenant in self.residents[uuid])
        return self._possible(uuid) - taken

    def _possible(self, uuid: str) -> int:
        """Bytes of the device that states could have in all."""
        device = self.devices[uuid]
        return device.memory - max(0, device.foreign - self._relief.get(uuid, 0))

    def wanted(self, tenant: Tenant, uuid: str) -> int:
        """Bytes that the cell of a tenant without a state should have on the device."""
        return tenant.needs or tenant.room or int(self.devices[uuid].memory * self._rules.unknown_room)

    def shortage(self, tenant: Tenant, uuid: str, *, least: bool = False) -> int | None:
        """Bytes that are missing on the device for the tenant's next lease; None: programs without a lease fill it.

        What a cell may allocate is asked for only as far as the device could ever have it: with `least`, no more of it than the
        cell cannot do without. What a state needs to come back is not negotiable, except that nobody can leave a margin on a
        device that the state and its own context fill.
        """
        device, possible = self.devices[uuid], self._possible(uuid)
        size = comes_with(tenant, uuid)
        room = tenant.needs if least else max(tenant.room, tenant.needs)
        if tenant.residency is Residency.NONE:
            few = int(device.memory * self._rules.least_room)
            wanted = min((tenant.needs or few) if least else self.wanted(tenant, uuid), possible)
        elif tenant.residency in (Residency.SUSPENDED, Residency.SPILLED):
            wanted = size + self._margin(tenant, uuid, size)
            if wanted > possible:
                return None
            wanted = min(wanted + room, possible)
        else:
            # What it has in reserve is there for its own next cell.
            wanted = min(room, possible - size) - tenant.cache.get(uuid, 0)
        return wanted - self.free(uuid) if wanted > 0 else 0

    def _margin(self, tenant: Tenant, uuid: str, size: int) -> int:
        """Bytes that stay free on the device beside a state of `size` that comes back: no more than contexts leave.

        Who has a state there will leave a context, which cannot be asked to go before the state is away.
        """
        away = (one for one in self._away.values() if one.context_at is not ContextPlace.AWAY)
        there = {one.id: one for one in (*self.residents[uuid], *away, tenant)}
        contexts = sum(one.context.get(uuid, 0) for one in there.values())
        return min(self._rules.margin, max(0, self.devices[uuid].memory - size - contexts))

    def plan(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> Plan:
        """How `request` gets room on `devices`, none of which is in a lease: as much as it should have, else what it needs."""
        plan = self._without_contexts(request, tenant, devices) or self._plan(request, tenant, devices)
        # Who comes in while others leave is in nobody's way for long.
        return Plan(leaving=True) if plan.obstacle is not None and self._is_coming(tenant, devices) else plan

    def _without_contexts(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> Plan | None:
        """The plan where contexts of others are in the way and can leave; None where they are not, or that does not help."""
        found = self._contexts_in_the_way(tenant, devices)
        if not found.bytes:
            return None
        self._relief = found.bytes
        plan = self._plan(request, tenant, devices)
        self._relief = {}
        if plan.obstacle is not None:
            return None
        places = plan.places or self.places.trial()
        more = [one for one in found.states if one not in plan.victims]
        if not all(places.put(one, one.moved) for one in more):
            return None
        victims = (*plan.victims, *more)
        trims = tuple(one for one in plan.trims if one not in victims)
        leaving = plan.leaving or found.leaving
        return replace(plan, trims=trims, victims=victims, contexts=found.contexts, leaving=leaving, places=places)

    def _contexts_in_the_way(self, tenant: Tenant, devices: Sequence[str]) -> Relief:
        there = {uuid: self._idle(uuid, tenant.id, ()) for uuid in devices}
        rooms = [self.devices[uuid] for uuid in devices]
        return relief(tenant, rooms, self._away.values(), there, frozenset(self._asking), self._rules)

    def contexts_that_stay(self, devices: Sequence[str]) -> str:
        """What fills `devices` where contexts are part of it whose states have left them, in words without a name; else ""."""
        staying = [one for one in self._away.values() if one.context_at is not ContextPlace.AWAY]
        taken = {one.id: sum(one.context.get(uuid, 0) for uuid in devices) for one in staying}
        number, size = sum(map(bool, taken.values())), sum(taken.values())
        if not size:
            return ""
        whose = "the CUDA context of an idle notebook" if number == 1 else f"the CUDA contexts of {number} idle notebooks"
        if sum(self.devices[uuid].foreign for uuid in devices) > size:
            return f"programs outside of the lab and {whose} ({format_size(size)}) fill it"
        return f"{whose} fill{'s' if number == 1 else ''} it ({format_size(size)})"

    def _plan(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> Plan:
        if request.exclusive:
            alone = self._clear(tenant, devices)
            beside = tenant.elastic or (alone.obstacle is not None and not self._is_coming(tenant, devices))
            if request.resumes is None or not beside:
                blocked = alone.obstacle is None and any(self.shortage(tenant, uuid) is None for uuid in devices)
                return Plan(obstacle=Obstacle.FOREIGN) if blocked else self._by_host_memory(tenant, alone)
            # It lent its devices, and goes on: beside what is there, where that cannot move or need not.
        plan = self._room(tenant, devices, least=False)
        if plan.obstacle in (Obstacle.HOST, Obstacle.FIXED):
            plan = self._room(tenant, devices, least=True)
        return self._by_host_memory(tenant, plan)

    def _by_host_memory(self, tenant: Tenant, plan: Plan) -> Plan:
        """The plan, with the room in host memory that a state on the disk needs on its way back."""
        if tenant.residency is not Residency.SPILLED or self._rules.past_host or not plan.ready:
            return plan
        places = (plan.places or self.places).trial()
        return replace(plan, places=places) if places.put(tenant, tenant.moved) else Plan(obstacle=Obstacle.HOST)

    def _is_coming(self, tenant: Tenant, devices: Sequence[str]) -> bool:
        """True while the state of another comes in; it can move again once it is there."""
        there = (other for uuid in devices for other in self.residents[uuid] if other.id != tenant.id)
        return any(other.residency is Residency.RESUMING for other in there)

    def can_exchange(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> bool:
        """True when `tenant`'s state can come in now, piece by piece, since all who make room for it leave `devices` so.

        Nobody computes there then, and what leaves need not be off as a whole.
        """
        if tenant.residency is not Residency.SUSPENDED or not tenant.in_pieces or set(devices) != set(tenant.home):
            return False
        going = {other.id: other for uuid in devices for other in self.residents[uuid] if other.id in self.leaving}
        if not going or not all(other.in_pieces and other.residency is Residency.SUSPENDING for other in going.values()):
            return False
        if any(uuid in self.leases and self.leases[uuid].tenant not in going for uuid in devices):
            return False
        for uuid in devices:
            staying = [other for other in self.residents[uuid] if other.id not in going]
            device, size = self.devices[uuid], tenant.state.get(uuid, 0)
            wanted = size + self._margin(tenant, uuid, size)
            free = device.memory - device.foreign - sum(other.state.get(uuid, 0) for other in staying)
            if free < wanted or (request.exclusive and staying):
                return False
        return True

    def fits_beside(self, tenant: Tenant, devices: Sequence[str]) -> bool:
        """True when `tenant` finds all the room that it should have although no process that computes on `devices` leaves
        them."""
        return self._room(tenant, devices, least=False).obstacle is None

    def _room(self, tenant: Tenant, devices: Sequence[str], *, least: bool) -> Plan:
        victims: list[Tenant] = []
        trims: list[Tenant] = []
        leaving = False
        places = self.places.trial()
        for uuid in devices:
            short = self.shortage(tenant, uuid, least=least)
            if short is None:
                return Plan(obstacle=Obstacle.FOREIGN)
            if short <= 0:
                continue
            going = self._going(uuid, victims)
            short -= going
            leaving = leaving or going > 0
            for other in self._caching(uuid, tenant.id, victims):
                if short > 0:
                    short -= other.cache.get(uuid, 0)
                    if other.id in self._trimming:
                        leaving = True
                    elif other not in trims:
                        trims.append(other)
            if short > 0:
                more = self._choose(tenant, uuid, short, victims, places)
                if isinstance(more, Obstacle):
                    return Plan(obstacle=more)
                victims.extend(more)
        kept_back = self.paused and (victims or tenant.residency is Residency.NONE)
        if kept_back and not places.covers(self._kept_back(tenant, devices, victims, self.paused)):
            return Plan(obstacle=Obstacle.HOST)
        # A process that is suspended empties its caches before.
        trims = [one for one in trims if one not in victims]
        return Plan(trims=tuple(trims), victims=tuple(victims), leaving=leaving, places=places)

    def _caching(self, uuid: str, besides: str, chosen: Iterable[Tenant]) -> list[Tenant]:
        """Who is idle and keeps something in reserve on the device, most first."""
        taken = {tenant.id for tenant in chosen} | self.leaving | {besides}
        found = [
            tenant
            for tenant in self.residents[uuid]
            if tenant.cache.get(uuid, 0) > 0
            and tenant.residency is Residency.RESIDENT
            and tenant.id not in taken
            and tenant.id not in self._busy
        ]
        return sorted(found, key=lambda tenant: (tenant.id not in self._trimming, -tenant.cache[uuid], tenant.id))

    def is_shut_in(self, holder: Tenant, tenant: Tenant, uuid: str) -> bool:
        """True when host memory has no room for `holder`'s state, and without its move `tenant` has too little on the device."""
        if holder.residency is not Residency.RESIDENT or not holder.suspendable:
            return False
        if self.places.trial().put(holder, holder.moved):
            return False
        short = self.shortage(tenant, uuid, least=True)
        if short is None or short <= 0:
            return False
        caches = sum(one.cache.get(uuid, 0) for one in self.residents[uuid] if one.id not in (tenant.id, *self.leaving))
        short -= self._going(uuid, ()) + caches
        return short > 0 and isinstance(self._choose(tenant, uuid, short, [], self.places.trial()), Obstacle)

    def may_return(self, holder: Tenant, tenant: Tenant, devices: Sequence[str]) -> bool:
        """True when `holder`, paused for a cell of `tenant`, finds room again afterwards: a paused cell cannot give up."""
        places = self.places.trial()
        kept_back = self._kept_back(tenant, devices, [holder], [*self.paused, holder])
        return places.put(holder, sum(holder.state.values())) and places.covers(kept_back)

    def _kept_back(self, tenant: Tenant, devices: Sequence[str], gone: Iterable[Tenant], paused: Iterable[Tenant]) -> float:
        """Bytes of host memory that stay free once `tenant` is on `devices`, so that those who are `paused` can come back.

        What lies on their devices has to go to host memory for that while they are still there.
        """
        if self._rules.host_memory is None:
            return 0.0
        away = {one.id for one in gone} | self.leaving | {tenant.id}
        fresh = tenant.residency is Residency.NONE
        total = 0
        for other in paused:
            if other.id == tenant.id:
                continue
            for uuid in other.home:
                if uuid not in self.devices:
                    continue
                staying = [one for one in self.residents[uuid] if one.id not in away and one.id != other.id]
                comes = 0 if uuid not in devices else self.wanted(tenant, uuid) if fresh else tenant.state.get(uuid, 0)
                device = self.devices[uuid]
                free = device.memory - device.foreign - sum(one.state.get(uuid, 0) for one in staying) - comes
                short = other.state.get(uuid, 0) + self._rules.margin - free
                # What comes out of host memory can go back there.
                if short > (0 if fresh else comes):
                    total += sum(one.moved for one in staying) + (comes if fresh else 0)
        return total

    def _going(self, uuid: str, chosen: Iterable[Tenant]) -> int:
        names = {tenant.id for tenant in chosen}
        return sum(
            tenant.state.get(uuid, 0) for tenant in self.residents[uuid] if tenant.id in self.leaving or tenant.id in names
        )

    def _idle(self, uuid: str, besides: str, chosen: Iterable[Tenant]) -> list[Tenant]:
        """Who can be suspended, those that ask for a lease themselves last.

        First goes what costs least to bring back for the time that it has lain idle: bytes (and so seconds of moving), times the
        chance that they are wanted soon, which falls as idle time grows. Of states of one size that is the least recently used.
        """
        taken = {tenant.id for tenant in chosen}
        idle = [
            tenant
            for tenant in self.residents[uuid]
            if tenant.suspendable
            and tenant.residency is Residency.RESIDENT
            and tenant.id != besides
            and tenant.id not in self._busy
            and tenant.id not in self.leaving
            and tenant.id not in taken
        ]
        return sorted(idle, key=lambda tenant: (tenant.id in self._asking, self._price(tenant), tenant.last_used, tenant.id))

    def _price(self, tenant: Tenant) -> float:
        return tenant.moved / max(1.0, self._now - tenant.last_used)

    def _choose(self, tenant: Tenant, uuid: str, short: int, chosen: list[Tenant], places: Places) -> list[Tenant] | Obstacle:
        """As few as needed to free `short` bytes of the device, beside all caches. They take their room in `places`."""
        trial = places.trial()
        picked: list[Tenant] = []
        freed, full = 0, False
        for candidate in self._idle(uuid, tenant.id, chosen):
            size, here = candidate.moved, candidate.state.get(uuid, 0) - candidate.cache.get(uuid, 0)
            if here <= 0:
                continue
            if not trial.put(candidate, size):
                full = True
                continue
            picked.append(candidate)
            freed += here
            if freed >= short:
                break
        if freed < short:
            return Obstacle.HOST if full else Obstacle.FIXED
        for candidate in reversed(picked[:-1]):
            here = candidate.state.get(uuid, 0) - candidate.cache.get(uuid, 0)
            if freed - here >= short:
                freed -= here
                picked.remove(candidate)
        for candidate in picked:
            places.put(candidate, candidate.moved)
        return picked

    def _clear(self, tenant: Tenant, devices: Sequence[str]) -> Plan:
        """A whole task: nobody else's state may be on its devices."""
        victims: dict[str, Tenant] = {}
        leaving = False
        places = self.places.trial()
        for uuid in devices:
            idle = {other.id for other in self._idle(uuid, tenant.id, ())}
            for other in self.residents[uuid]:
                if other.id == tenant.id or other.id in victims:
                    continue
                if other.id in self.leaving:
                    leaving = True
                elif other.id not in idle:
                    return Plan(obstacle=Obstacle.FIXED)
                elif not places.put(other, other.moved):
                    return Plan(obstacle=Obstacle.HOST)
                else:
                    victims[other.id] = other
        return Plan(victims=tuple(victims.values()), leaving=leaving, places=places)


def _is_away(tenant: Tenant, lease: Lent) -> bool:
    """True when the lease's cell is paused and its state is in host memory, or is on its way there."""
    if lease.state is LeaseState.PAUSED:
        return tenant.residency is not Residency.RESIDENT
    return lease.state is LeaseState.ACTIVE and tenant.residency is Residency.SUSPENDING

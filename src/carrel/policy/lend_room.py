"""How much room there is on each device, how much a tenant needs, and whose state has to go to make it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from carrel.domain.lease import DeviceRoom, LeaseState, LendingSnapshot, Lent, Request, Residency, Tenant

_ON_DEVICE = frozenset({Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING})


class Obstacle(Enum):
    """Why room cannot be made."""

    #: Some of what is on the device has to stay there.
    FIXED = "fixed"
    #: Host memory has no place for what would have to go.
    HOST = "host"
    #: Programs that hold no lease fill the device.
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request gets its room."""

    #: Whose state has to be moved first, in that order.
    victims: tuple[Tenant, ...] = ()
    #: True when states that are being moved already make (part of) the room.
    leaving: bool = False
    obstacle: Obstacle | None = None

    @property
    def ready(self) -> bool:
        """True when the room is there now."""
        return not self.victims and not self.leaving and self.obstacle is None


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
        #: Those that ask themselves are suspended last.
        self._asking = {request.tenant for request in snapshot.requests}
        self._residents: dict[str, list[Tenant]] = {uuid: [] for uuid in self.devices}
        self._leaving: set[str] = set()
        self.host_left: float = float("inf")
        if self._rules.host_memory is not None:
            self.host_left = self._rules.host_memory - snapshot.host_used
        for tenant in sorted(snapshot.tenants.values(), key=lambda tenant: tenant.id):
            if tenant.residency in _ON_DEVICE:
                for uuid in tenant.home:
                    if uuid in self._residents:
                        self._residents[uuid].append(tenant)
                if tenant.residency is Residency.SUSPENDING:
                    self.leave(tenant)

    def leave(self, tenant: Tenant) -> None:
        """From now on `tenant`'s state counts as on its way to host memory."""
        self._leaving.add(tenant.id)
        self.host_left -= sum(tenant.state.values())

    def is_leaving(self, tenant: str) -> bool:
        """True when the tenant's state is on its way to host memory, or is going to be."""
        return tenant in self._leaving

    def homes(self, uuid: str) -> int:
        """How many tenants have their state on the device now."""
        return len(self._residents[uuid])

    def free(self, uuid: str) -> int:
        """Bytes of the device that nobody takes now."""
        device = self.devices[uuid]
        taken = sum(tenant.state.get(uuid, 0) for tenant in self._residents[uuid])
        return device.memory - device.foreign - taken

    def shortage(self, tenant: Tenant, uuid: str) -> int | None:
        """Bytes that are missing on the device for the tenant's next lease; None: programs without a lease fill it.

        What a cell may allocate (`room`) is asked for only as far as the device could ever have it; what a state needs to come
        back is not negotiable, except that nobody can leave a margin on a device that the state alone fills.
        """
        device = self.devices[uuid]
        possible = device.memory - device.foreign
        size = tenant.state.get(uuid, 0)
        if tenant.residency is Residency.NONE:
            wanted = min(tenant.room or int(device.memory * self._rules.unknown_room), possible)
        elif tenant.residency is Residency.SUSPENDED:
            wanted = size + min(self._rules.margin, max(0, device.memory - size))
            if wanted > possible:
                return None
            wanted = min(wanted + tenant.room, possible)
        else:
            wanted = min(tenant.room, possible - size)
        return wanted - self.free(uuid) if wanted > 0 else 0

    def plan(self, request: Request, tenant: Tenant, devices: Sequence[str]) -> Plan:
        """How `request` gets room on `devices`, none of which is in a lease."""
        if request.exclusive:
            return self._clear(tenant, devices)
        victims: list[Tenant] = []
        leaving = False
        for uuid in devices:
            short = self.shortage(tenant, uuid)
            if short is None:
                return Plan(obstacle=Obstacle.FOREIGN)
            if short <= 0:
                continue
            going = self._going(uuid, victims)
            short -= going
            leaving = leaving or going > 0
            if short > 0:
                more = self._choose(tenant, uuid, short, victims)
                if isinstance(more, Obstacle):
                    return Plan(obstacle=more)
                victims.extend(more)
        return Plan(victims=tuple(victims), leaving=leaving)

    def _going(self, uuid: str, chosen: Iterable[Tenant]) -> int:
        names = {tenant.id for tenant in chosen}
        return sum(
            tenant.state.get(uuid, 0) for tenant in self._residents[uuid] if tenant.id in self._leaving or tenant.id in names
        )

    def _idle(self, uuid: str, besides: str, chosen: Iterable[Tenant]) -> list[Tenant]:
        """Who can be suspended, those that ask for a lease themselves last.

        First goes what costs least to bring back for the time that it has lain idle: bytes (and so seconds of moving), times the
        chance that they are wanted soon, which falls as idle time grows. Of states of one size that is the least recently used.
        """
        taken = {tenant.id for tenant in chosen}
        idle = [
            tenant
            for tenant in self._residents[uuid]
            if tenant.suspendable
            and tenant.residency is Residency.RESIDENT
            and tenant.id != besides
            and tenant.id not in self._busy
            and tenant.id not in self._leaving
            and tenant.id not in taken
        ]
        return sorted(idle, key=lambda tenant: (tenant.id in self._asking, self._price(tenant), tenant.last_used, tenant.id))

    def _price(self, tenant: Tenant) -> float:
        return sum(tenant.state.values()) / max(1.0, self._now - tenant.last_used)

    def _choose(self, tenant: Tenant, uuid: str, short: int, chosen: list[Tenant]) -> list[Tenant] | Obstacle:
        """As few as needed to free `short` bytes of the device."""
        host = self.host_left - sum(sum(victim.state.values()) for victim in chosen)
        picked: list[Tenant] = []
        freed, full = 0, False
        for candidate in self._idle(uuid, tenant.id, chosen):
            size, here = sum(candidate.state.values()), candidate.state.get(uuid, 0)
            if here == 0:
                continue
            if size > host:
                full = True
                continue
            picked.append(candidate)
            host -= size
            freed += here
            if freed >= short:
                break
        if freed < short:
            return Obstacle.HOST if full else Obstacle.FIXED
        for candidate in reversed(picked[:-1]):
            if freed - candidate.state.get(uuid, 0) >= short:
                freed -= candidate.state.get(uuid, 0)
                picked.remove(candidate)
        return picked

    def _clear(self, tenant: Tenant, devices: Sequence[str]) -> Plan:
        """A whole task: nobody else's state may be on its devices."""
        victims: dict[str, Tenant] = {}
        leaving = False
        host = self.host_left
        for uuid in devices:
            idle = {other.id for other in self._idle(uuid, tenant.id, ())}
            for other in self._residents[uuid]:
                if other.id == tenant.id or other.id in victims:
                    continue
                if other.id in self._leaving:
                    leaving = True
                elif other.id not in idle:
                    return Plan(obstacle=Obstacle.FIXED)
                else:
                    host -= sum(other.state.values())
                    if host < 0:
                        return Plan(obstacle=Obstacle.HOST)
                    victims[other.id] = other
        return Plan(victims=tuple(victims.values()), leaving=leaving)

"""What the policy sees of the ledger and the devices when it decides who is lent what; and how states leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from carrel.core.domain.lease import (
    ContextPlace,
    DeviceRoom,
    LeaseState,
    LendingSnapshot,
    MoveMethod,
    Residency,
    Tenant,
    Tier,
)
from carrel.core.domain.node import Device
from carrel.node.broker.config import BrokerConfig
from carrel.node.broker.core.host import DiskRoom, HostRoom
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rates import BACK, EXCHANGE, OUT, TELLING, Rates
from carrel.node.broker.core.rows import RequestRow, TenantRow
from carrel.node.leases.protocol import KERNEL

_ON_DEVICE = frozenset({Residency.RESIDENT, Residency.SUSPENDING, Residency.RESUMING})
_IN_HOST_MEMORY = frozenset({Residency.SUSPENDED, Residency.SPILLING})


class PolicyView:
    """Makes the snapshots that the policy decides by. It changes nothing."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        tier: Tier,
        *,
        devices: Mapping[str, Device],
        rates: Rates,
        host: HostRoom,
        disk: DiskRoom,
        foreign: Mapping[str, int],
        trimming: AbstractSet[str],
        leaving: AbstractSet[str],
        homes_move: bool,
    ) -> None:
        """`foreign`, `trimming` and `leaving` are the lender's own: what is in them at the time of a snapshot counts.

        `homes_move`: the driver was seen to bring a state back on another device.
        """
        self._ledger = ledger
        self._config = config
        self._tier = tier
        self._devices = devices
        self._rates = rates
        self._host = host
        self._disk = disk
        self._foreign = foreign
        self._trimming = trimming
        self._leaving = leaving
        self._homes_move = homes_move
        self._whole = max((device.memory for device in config.devices), default=0)

    def snapshot(self, requests: Sequence[RequestRow], now: float) -> LendingSnapshot:
        """What the policy is to know to decide about `requests`."""
        ledger = self._ledger
        asking, computing = {request.tenant for request in requests}, self._computing()
        needed = asking | {lease.tenant for lease in ledger.leases.values()}
        unverified: dict[str, str] = {}
        not_lent = ledger.not_lent()
        tenants = {}
        for name, row in ledger.tenants.items():
            if row.unverified:
                unverified.update(dict.fromkeys(row.home, "a suspended session's state is still seen on it"))
            off = row.residency in _IN_HOST_MEMORY and (self._disk.limit or row.moved_by == MoveMethod.BUS)
            if name in needed or row.residency in _ON_DEVICE or off or (row.residency is Residency.SPILLED and row.fixed):
                tenants[name] = self._tenant(row, asks=name in asking, computes=name in computing, now=now)
        devices = [
            DeviceRoom(
                uuid=device.uuid,
                memory=device.memory,
                type=device.name,
                foreign=self._foreign.get(device.uuid, 0),
                withheld=not_lent.get(device.uuid) or unverified.get(device.uuid),
            )
            for device in self._devices.values()
        ]
        rules = replace(
            self._config.rules,
            host_memory=self._host.limit(),
            move_rate=self._rates.usual(OUT),
            back_rate=self._rates.usual(BACK),
            exchange_rate=self._rates.usual(EXCHANGE),
            context_time=self._rates.context_time,
            state_disk=self._disk.limit,
            past_host=self._tier is Tier.SIMULATED,
            disk_rate=self._rates.disk,
            # Without a gate in the driver's calls only what computes nothing can be stopped where it is.
            pause_in_place=self._tier is Tier.SIMULATED,
        )
        return LendingSnapshot(
            devices=devices,
            tenants=tenants,
            requests=[request.view(self._config.hold_time) for request in requests],
            leases=list(ledger.leases.values()),
            host_used=self._host.used,
            disk_used=self._disk.limit - self._disk.left(),
            rules=rules,
            typical_lease=ledger.typical,
        )

    def _tenant(self, row: TenantRow, *, asks: bool, computes: bool, now: float) -> Tenant:
        """What lending sees of a tenant. `asks`: it waits; `computes`: what it keeps in reserve is not known."""
        movable, may_move = self.movable(row), row.retry_at <= now
        if row.residency is not Residency.NONE:
            room = max(row.growth, int(self._whole * self._config.rules.least_room))
        else:
            room = self._ledger.first_room(row) if asks else 0
        return Tenant(
            id=row.id,
            owner=row.owner,
            residency=row.residency,
            home=row.home,
            state=row.state,
            cache={} if computes or row.residency is not Residency.RESIDENT else row.reserve,
            trimming=row.id in self._trimming,
            room=room,
            needs=self._whole if row.starved else self._made_up(row) if asks else 0,
            suspendable=movable and may_move,
            portable=self._portable(row),
            stays="" if movable else row.stays,
            gated=row.gated and not row.loose,
            spillable=self._spillable(row) and may_move,
            straight=row.on_disk,
            in_pieces=self._in_pieces(row, now),
            context=row.fixed if self._keeps_context(row) else {},
            context_at=ContextPlace(row.context),
            context_leaves=self._context_leaves(row) and may_move,
            last_used=row.last_used,
            typical=row.typical,
        )

    def _portable(self, row: TenantRow) -> bool:
        """True when the tenant's state can come back on other devices than those that it left."""
        if row.role != KERNEL or row.bound or row.settled:
            return False
        if self._tier is Tier.SIMULATED or not self._homes_move:
            return self._tier is Tier.SIMULATED
        # Over the bus its context goes first, which the driver brings to the other device, then its state.
        return self._context_leaves(row) if row.gated else self.way(row)[0] is MoveMethod.DRIVER

    def _in_pieces(self, row: TenantRow, now: float) -> bool:
        """True when the tenant's state moves over the bus, piece by piece: now, or when it moves next."""
        if row.residency is Residency.RESIDENT:
            return self.way(row)[0] is MoveMethod.BUS
        if row.residency is Residency.SUSPENDING:
            return row.id in self._leaving
        here = row.context == ContextPlace.DEVICE
        return row.moved_by == MoveMethod.BUS and here and not row.on_disk and row.retry_at <= now

    def _keeps_context(self, row: TenantRow) -> bool:
        """True when what the tenant has on its devices beside its state stays there when that leaves."""
        away = row.residency in (Residency.SUSPENDED, Residency.SPILLED)
        return (
            row.moved_by == MoveMethod.BUS if away else row.residency is Residency.RESIDENT and self.way(row)[0] is MoveMethod.BUS
        )

    def _context_leaves(self, row: TenantRow) -> bool:
        """True when the driver can take the tenant's context: it moves such here, and nothing in the process forbids it."""
        return self._tier is Tier.SUSPEND and not self._config.never_suspend and not row.why_not and not row.loose

    def computes(self, tenant: str) -> bool:
        """True while a cell or a task of the tenant computes."""
        return tenant in self._computing()

    def _computing(self) -> set[str]:
        return {lease.tenant for lease in self._ledger.leases.values() if lease.state is LeaseState.ACTIVE}

    def _made_up(self, row: TenantRow) -> int:
        """Bytes on each device that the first cell on simulated devices is going to have; 0: nobody knows."""
        if self._tier is not Tier.SIMULATED or row.role != KERNEL or row.residency is not Residency.NONE:
            return 0
        size = self._config.simulation.state if row.simulated is None else row.simulated
        return min(size // max(1, row.gpus), self._whole)

    def _spillable(self, row: TenantRow) -> bool:
        """True when the tenant's state can go on from host memory to the disk.

        The driver's way holds it inside of its process, where nobody else can take it out.
        """
        if self._tier is Tier.SIMULATED or not self._disk.limit:
            return self._disk.limit > 0
        if row.context != ContextPlace.DEVICE:
            return False  # its library could not let go of host memory now
        way = row.moved_by or self.way(row)[0]
        # Where the disk did not take it, something has to have gone from there first: nobody waits on one that is full for ever.
        return way == MoveMethod.BUS and (row.disk_short < 0 or self._disk.left() > row.disk_short + TELLING)

    def way(self, row: TenantRow) -> tuple[MoveMethod, str]:
        """How the tenant's state leaves its devices, and why not over the bus, "" for that (a pause after a failure aside)."""
        return way_of(row, self._tier, never=self._config.never_suspend)

    def movable(self, row: TenantRow) -> bool:
        """True when the tenant's state can be moved at all (a pause after a failure aside)."""
        return self.way(row)[0] is not MoveMethod.HOLD


#: So often a move by the library may fail before the driver is asked.
_PATIENCE = 3


def way_of(row: TenantRow, tier: Tier, *, never: bool) -> tuple[MoveMethod, str]:
    """The way, and why not over the bus, "" for that. A pause after a failure aside. `never`: nothing moves here at all."""
    if never:
        return MoveMethod.HOLD, row.why_not or "this lab moves no GPU state"
    why = off_the_bus(row)
    if not why and tier is not Tier.SIMULATED:
        return MoveMethod.BUS, ""
    if row.why_not or tier is Tier.HOLD:
        return MoveMethod.HOLD, row.why_not or (why if row.gated else "") or "this machine cannot move it"
    return MoveMethod.DRIVER, "" if tier is Tier.SIMULATED else why


def off_the_bus(row: TenantRow) -> str:
    """Why the library in the tenant's processes does not move its state, or ""."""
    if not row.gated:
        return "no residency library in it"
    if row.reasons:
        return ", ".join(row.reasons)
    if row.loose:
        return "one of its processes has no residency library"
    # What did not work twice is left to the other way, where there is one; but not what it has moved off the devices already.
    failed = row.failures >= _PATIENCE and not row.why_not and row.moved_by != MoveMethod.BUS
    return "its library could not move it" if failed else ""

"""Who is really on the devices: the sizes of tenants' states, and programs that hold no lease.

Asked of the driver every two seconds while there are leases, when one has ended, and before somebody new is let onto a device.
What it says corrects the book; it never takes a lease away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.core.domain.lease import ContextPlace, LeaseState, MoveMethod, Residency, Tier
from carrel.node.broker.core.effects import NEVER, ScanDevices
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.messages import named
from carrel.node.broker.core.rows import TenantRow
from carrel.node.leases.protocol import KERNEL
from carrel.node.suspension.ports import Use

#: Seconds between two looks.
LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class UnknownProcess:
    """A process on a device that holds no lease and is no tenant."""

    pid: int
    bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class DeviceScan:
    """One look, sorted by who it is about."""

    #: tenant pid -> device -> bytes, its descendants included.
    tenants: Mapping[int, Mapping[str, int]]
    #: device -> bytes by process.
    strangers: Mapping[str, Mapping[int, int]]
    #: device -> bytes that belong to no tenant: strangers, and what the driver takes for itself.
    foreign: Mapping[str, int]


def sort_out(use: Use, parents: Mapping[int, int]) -> DeviceScan:
    """Sort a look at the devices. `parents`: pid -> the tenant's pid that it is or descends from."""
    tenants: dict[int, dict[str, int]] = {}
    strangers: dict[str, dict[int, int]] = {}
    foreign: dict[str, int] = {}
    for uuid, used in use.used.items():
        processes = use.processes.get(uuid, {})
        for pid, size in processes.items():
            root = parents.get(pid)
            if root is None:
                strangers.setdefault(uuid, {})[pid] = size
            else:
                mine = tenants.setdefault(root, {})
                mine[uuid] = mine.get(uuid, 0) + size
        theirs = sum(processes.values())
        unknown = any(size == 0 for pid, size in processes.items() if pid in parents)
        # A tenant whose size the driver does not tell: the rest cannot be separated from it.
        rest = 0 if unknown else max(0, used - theirs)
        foreign[uuid] = rest + sum(strangers.get(uuid, {}).values())
    return DeviceScan(tenants, strangers, foreign)


def _counted(row: TenantRow) -> bool:
    """True for those whose state on a device can be moved: kernels, and tasks that lend while they have a lease."""
    return row.role == KERNEL or row.lends


class DeviceScans:
    """Says when to look, and corrects the ledger by what was seen."""

    def __init__(self, lender: Lender) -> None:
        self.strangers: dict[str, list[UnknownProcess]] = {}
        #: Bytes in use on each device by everybody, as last seen.
        self.used: dict[str, int] = {}
        #: How many looks there were.
        self.device_scans = 0
        #: When the next look is due although nobody waits for it (Unix seconds).
        self.due = NEVER
        self._lender = lender
        self._ledger = lender.ledger
        self._looking = False
        self._told: set[tuple[str, int]] = set()

    def wanted(self, now: float) -> ScanDevices | None:
        """A look that should be begun now: where it matters, and from time to time while there are leases."""
        if self._looking:
            return None
        if self._lender.looks_done < self._lender.looks_wanted or self.due <= now:
            self._looking, self.due = True, NEVER
            return ScanDevices(
                self._lender.looks_wanted, (*(row.pid for row in self._ledger.tenants.values()), *self._member_pids())
            )
        if self.due == NEVER and self._needed():
            self.due = now + LOOK_SECONDS
        return None

    def _member_pids(self) -> dict[int, int]:
        """Processes that say themselves whose they are, also where they do not descend from it: the tenant's pid for each."""
        return {int(member.split("-")[0]): row.pid for row in self._ledger.tenants.values() for member in row.joined}

    def _needed(self) -> bool:
        return bool(self._ledger.leases or self._ledger.requests) or any(row.unverified for row in self._ledger.tenants.values())

    def looked(self, number: int, use: Use, parents: Mapping[int, int], names: Mapping[int, str]) -> None:
        """The devices were looked at. `names`: what processes on them call themselves."""
        self._looking = False
        self._lender.looks_done = number
        members = self._member_pids()
        parents = {pid: members.get(root, root) for pid, root in parents.items()}
        seen = sort_out(use, parents)
        here = {pid for processes in use.processes.values() for pid in processes}
        for row in self._ledger.tenants.values():
            if row.gated:
                self._find_loose(row, {pid for pid in here if parents.get(pid) == row.pid})
            self._correct(row, seen.tenants.get(row.pid, {}), use)
        for lease in self._ledger.leases.values():
            busy = [use.busy[uuid] for uuid in lease.devices if uuid in use.busy]
            if busy and lease.state is LeaseState.ACTIVE and not lease.pending:
                lease.looks, lease.busy = lease.looks + 1, lease.busy + sum(busy) / len(busy)
        self.used.update(use.used)
        self.device_scans += 1
        self._lender.foreign.update(self._foreign(seen))
        self._report(seen, names)

    def _foreign(self, seen: DeviceScan) -> dict[str, int]:
        """What the room on each device is less by: also what tenants take there whose state the ledger does not count."""
        found = dict(seen.foreign)
        for row in self._ledger.tenants.values():
            if row.residency is Residency.RESIDENT and _counted(row):
                there: Mapping[str, int] = row.fixed
            elif row.residency in (Residency.SUSPENDING, Residency.RESUMING):
                there = row.fixed
            elif row.residency is Residency.LOST or row.moved_by == MoveMethod.BUS or not _counted(row):
                there = seen.tenants.get(row.pid, {})
            else:
                continue
            for uuid, size in there.items():
                found[uuid] = found.get(uuid, 0) + size
        return found

    def _correct(self, row: TenantRow, there: Mapping[str, int], use: Use) -> None:
        """Let the row say what was seen."""
        if row.unverified and all(uuid in use.used for uuid in row.home) and not there:
            row.unverified = False
            self._ledger.touch(row)
        if self._lender.tier is Tier.SIMULATED or not _counted(row):
            return
        leased = bool(self._ledger.leases_of(row.id))
        if row.residency is Residency.NONE and there:
            devices = tuple(uuid for uuid in self._lender.devices if uuid in there)
            if devices:
                self._lender.settle_in(row, devices)
        if row.residency in (Residency.SUSPENDED, Residency.SPILLED) and row.moved_by == MoveMethod.BUS:
            self._correct_context(row, there)
        if row.residency is not Residency.RESIDENT:
            return
        fixed = row.fixed if self._lender.view.way(row)[0] is MoveMethod.BUS else {}
        if self._lender.view.way(row)[0] is MoveMethod.BUS and not leased:
            fixed = {uuid: max(0, there[uuid] - row.movable.get(uuid, 0)) for uuid in row.home if uuid in there}
        if fixed != row.fixed:
            row.fixed = fixed
            self._ledger.touch(row)
        sizes = {uuid: max(0, there[uuid] - row.fixed.get(uuid, 0)) for uuid in row.home if there.get(uuid, 0) > 0}
        changed = {uuid: size for uuid, size in sizes.items() if size != row.state.get(uuid)}
        if changed:
            if leased:
                row.growth = max(row.growth, *(size - row.state.get(uuid, 0) for uuid, size in changed.items()))
            row.state = {**row.state, **changed}
            row.peak = max(row.peak, *changed.values())
            self._ledger.touch(row)

    def _correct_context(self, row: TenantRow, there: Mapping[str, int]) -> None:
        """What the devices show of a tenant whose state is off them is its context."""
        seen = {uuid: there[uuid] for uuid in row.home if there.get(uuid, 0) > 0}
        if row.context == ContextPlace.DEVICE and seen and seen != row.fixed:
            row.fixed = seen
            self._ledger.touch(row)

    def _find_loose(self, row: TenantRow, pids: set[int]) -> None:
        """Whether a process of the tenant is on a device that has no library, so that no gate is before it."""
        known = {int(member.split("-")[0]) for member in row.joined}
        known |= {row.pid} if row.role == KERNEL else set()
        if known and row.loose == pids.issubset(known):
            row.loose = not row.loose
            self._ledger.touch(row)

    def _report(self, seen: DeviceScan, names: Mapping[int, str]) -> None:
        """Say once to each holder which strangers are on its devices."""
        self.strangers = {
            uuid: [UnknownProcess(pid, size, names.get(pid, "")) for pid, size in sorted(found.items())]
            for uuid, found in seen.strangers.items()
        }
        told: set[tuple[str, int]] = set()
        for uuid, found in self.strangers.items():
            lease = self._ledger.lease_on(uuid)
            for stranger in found if lease is not None else ():
                assert lease is not None
                told.add((lease.id, stranger.pid))
                if (lease.id, stranger.pid) not in self._told:
                    where = named((uuid,), self._lender.devices)
                    text = f'Process {stranger.pid} ("{stranger.name}") uses {where} too, without a lease.'
                    self._lender.say(lease.tenant, "notice", level="warning", message=text)
        self._told = told

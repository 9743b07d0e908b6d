"""When a device should come free: a rough forecast, for the line that a waiting user reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from carrel.core.domain.lease import LeaseState, LendingSnapshot, Lent, Residency
from carrel.core.policy.lend_tasks import lends_from

_NEVER = float("inf")


class DeviceFreeTimes:
    """Seconds from now until each device is free for the next in line; infinite when nobody can say."""

    def __init__(self, snapshot: LendingSnapshot, leases: Mapping[str, Lent], now: float) -> None:
        self._snapshot = snapshot
        self._leases = leases
        self._now = now
        self._free_in: dict[str, float] = {}
        slice_, typical = snapshot.rules.time_slice, snapshot.typical_lease
        #: Seconds that the next lease is taken to last where nothing is known about it.
        self._turn = min((value for value in (slice_ or None, typical) if value is not None), default=_NEVER)

    def clears(self, uuid: str, quantum: float) -> float:
        """Seconds until the device is free for who is first in line for it, and for whom cells are paused after `quantum`."""
        found = self._free_in.get(uuid)
        if found is not None:
            return found
        lease = self._leases.get(uuid)
        return 0.0 if lease is None else self._ends_in(lease, quantum)

    def earliest(self, devices: Iterable[str], number: int, quantum: float) -> Sequence[str]:
        """The `number` devices that come free first."""
        return sorted(devices, key=lambda uuid: (self.clears(uuid, quantum), uuid))[:number]

    def start(self, devices: Sequence[str], quantum: float) -> float | None:
        """Seconds until all of `devices` are free, or None when nobody can say."""
        latest = max((self.clears(uuid, quantum) for uuid in devices), default=_NEVER)
        return latest if latest < _NEVER else None

    def give(self, devices: Sequence[str], start: float, expected: float | None) -> None:
        """Somebody gets `devices` in `start` seconds, for about `expected` seconds: the next after them comes later by that."""
        lasts = self._turn if expected is None else expected
        for uuid in devices:
            self._free_in[uuid] = start + lasts

    def _ends_in(self, lease: Lent, quantum: float) -> float:
        if lease.exclusive:
            holder = self._snapshot.tenants[lease.tenant]
            gives_way = lends_from(lease, holder, self._snapshot.rules, moves=True)
            return max(0.0, min(gives_way, _NEVER if lease.ends_by is None else lease.ends_by) - self._now)
        if lease.state is LeaseState.HELD:
            return _NEVER if lease.held_until is None else max(0.0, lease.held_until - self._now)
        holder = self._snapshot.tenants[lease.tenant]
        if holder.residency is Residency.SUSPENDING:
            return 0.0
        elapsed = self._now - lease.since
        typical = self._snapshot.typical_lease if holder.typical is None else holder.typical
        # A lease that has outlived the typical one is taken to last as long again.
        left = _NEVER if typical is None else max(typical - elapsed, 0.0) or elapsed
        if quantum > 0 and holder.suspendable:
            left = min(left, max(quantum - elapsed, 0.0))
        return left

"""When a device should come free: a rough forecast, for the line that a waiting user reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from carrel.domain.lease import LeaseState, LendingSnapshot, Lent, Residency

_NEVER = float("inf")


class Outlook:
    """Seconds from now until each device is free for the next in line; infinite when nobody can say."""

    def __init__(self, snapshot: LendingSnapshot, leases: Mapping[str, Lent], now: float) -> None:
        self._snapshot = snapshot
        self._leases = leases
        self._now = now
        self._free_in: dict[str, float] = {}
        slice_, typical = snapshot.rules.time_slice, snapshot.typical_lease
        #: Seconds that the next lease is taken to last.
        self._turn = min((value for value in (slice_ or None, typical) if value is not None), default=_NEVER)

    def clears(self, uuid: str) -> float:
        """Seconds until the device is free for the next that is first in line for it."""
        found = self._free_in.get(uuid)
        if found is None:
            lease = self._leases.get(uuid)
            found = self._free_in[uuid] = 0.0 if lease is None else self._ends_in(lease)
        return found

    def earliest(self, devices: Iterable[str], number: int) -> Sequence[str]:
        """The `number` devices that come free first."""
        return sorted(devices, key=lambda uuid: (self.clears(uuid), uuid))[:number]

    def start(self, devices: Sequence[str]) -> float | None:
        """Seconds until all of `devices` are free, or None when nobody can say."""
        latest = max((self.clears(uuid) for uuid in devices), default=_NEVER)
        return latest if latest < _NEVER else None

    def give(self, devices: Sequence[str], start: float) -> None:
        """Somebody gets `devices` in `start` seconds: the next after them comes one turn later."""
        for uuid in devices:
            self._free_in[uuid] = start + self._turn

    def _ends_in(self, lease: Lent) -> float:
        if lease.exclusive:
            return _NEVER if lease.ends_by is None else max(0.0, lease.ends_by - self._now)
        if lease.state is LeaseState.HELD:
            return _NEVER if lease.held_until is None else max(0.0, lease.held_until - self._now)
        holder = self._snapshot.tenants[lease.tenant]
        if holder.residency is Residency.SUSPENDING:
            return 0.0
        elapsed = self._now - lease.since
        typical = self._snapshot.typical_lease
        # A lease that has outlived the typical one is taken to last as long again.
        left = _NEVER if typical is None else max(typical - elapsed, 0.0) or elapsed
        slice_ = self._snapshot.rules.time_slice
        if slice_ > 0 and holder.suspendable:
            left = min(left, max(slice_ - elapsed, 0.0))
        return left

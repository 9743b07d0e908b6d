"""The last hour of each device: who computed on it, who kept it, whose work was paused, whose state moved. Pure and bounded.

What is so now is open; it becomes a stretch of time when it ends, and the journal gets one row for it then. Short stretches of
one tenant that follow each other closely are one, whose `seconds` say how much of it was real.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from carrel.core.domain.lease import LeaseState, Residency
from carrel.node.broker.core.rows import LeaseRow, TenantRow

#: Seconds that are remembered.
HOUR = 3600.0
#: Stretches that are remembered of each device; the oldest are forgotten first.
MOST = 1000
#: Stretches of one tenant with less than so many seconds between them are one, unless it would get longer than that.
_GAP, _LONGEST = 5.0, 300.0
#: How many stretches back a neighbour is looked for: pauses and moves of others lie between.
_BACK = 8

COMPUTES, HOLDS, PAUSED, LEAVES, RETURNS = "computes", "holds", "paused", "leaves", "returns"
#: One at a time has the device; what is paused and what moves can be so meanwhile.
_HAS = (COMPUTES, HOLDS)
_WORDS = {LeaseState.ACTIVE: COMPUTES, LeaseState.HELD: HOLDS, LeaseState.PAUSED: PAUSED}
_MOVES = {Residency.SUSPENDING: LEAVES, Residency.RESUMING: RETURNS}

#: Device, what, tenant.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What was so on one device for a while."""

    device: str
    #: "computes", "holds" (kept while idle), "paused", "leaves" (its state goes to host memory), "returns".
    what: str
    tenant: str
    job: int = 0
    owner: str = ""
    label: str = ""
    role: str = ""
    #: Unix seconds.
    since: float
    #: None while it is so.
    until: float | None = None
    #: How much of the time between it really was.
    seconds: float = 0.0

    @property
    def key(self) -> Key:
        """What it says, but when."""
        return self.device, self.what, self.tenant


class DeviceHistory:
    """What is so on each device, and what was within the last hour."""

    def __init__(self) -> None:
        self._open: dict[Key, Stretch] = {}
        self._past: dict[str, deque[Stretch]] = {}
        #: From when on everything is known of a device of which something was forgotten since (Unix seconds).
        self._forgotten: dict[str, float] = {}
        #: From when on everything is known (Unix seconds); None: nothing yet.
        self.since: float | None = None
        #: Grows with each change.
        self.version = 0

    def look(self, now: float, leases: Iterable[LeaseRow], tenants: Mapping[str, TenantRow]) -> list[Stretch]:
        """This is so now; what is over by it is remembered, and returned."""
        if self.since is None:
            self.since = now
        fresh = {stretch.key: stretch for stretch in _so(now, leases, tenants)}
        over = [stretch for key, stretch in self._open.items() if key not in fresh]
        begun = [stretch for key, stretch in fresh.items() if key not in self._open]
        for stretch in begun:
            self._open[stretch.key] = stretch
        ended = []
        for stretch in over:
            del self._open[stretch.key]
            if now > stretch.since:
                ended.append(replace(stretch, until=now, seconds=round(now - stretch.since, 3)))
                self.add(ended[-1])
        self.version += bool(begun or over)
        return ended

    def add(self, stretch: Stretch) -> None:
        """Remember one that is over."""
        past = self._past.setdefault(stretch.device, deque(maxlen=MOST))
        for back in range(len(past) - 1, max(-1, len(past) - 1 - _BACK), -1):
            before = past[back]
            close = before.until is not None and stretch.since - before.until <= _GAP
            if before.key == stretch.key:
                if close and stretch.until is not None and stretch.until - before.since <= _LONGEST:
                    past[back] = replace(before, until=stretch.until, seconds=round(before.seconds + stretch.seconds, 3))
                    return
                break
            if not close or (before.what in _HAS and stretch.what in _HAS):
                break
        if len(past) == MOST and past[0].until is not None:
            self._forgotten[stretch.device] = past[0].until
        past.append(stretch)

    def known_since(self, device: str, most: int = MOST) -> float | None:
        """From when on everything is known of the device, by the last `most` stretches (Unix seconds); None: nothing is."""
        past = self._past.get(device, ())
        moments = [self.since, self._forgotten.get(device), past[-most - 1].until if len(past) > most else None]
        return max((moment for moment in moments if moment is not None), default=None)

    def shown(self, device: str, now: float, most: int = MOST) -> list[Stretch]:
        """The device's last hour, the last `most` stretches of it: oldest first, then what is so now."""
        past = [one for one in self._past.get(device, ()) if one.until is not None and one.until > now - HOUR]
        current = [one for one in self._open.values() if one.device == device]
        return past[-most:] + sorted(current, key=lambda one: one.since)

    def rows(self, now: float) -> Iterator[dict[str, Any]]:
        """What a journal that is begun anew has to say of the past."""
        for past in self._past.values():
            yield from (plain_stretch(stretch) for stretch in past if stretch.until is not None and stretch.until > now - HOUR)

    def reopen(self, at: float, leases: Iterable[LeaseRow], tenants: Mapping[str, TenantRow]) -> None:
        """An earlier broker was heard last at that time: what was so then is open still. What it ended is among its rows."""
        self._open = {stretch.key: stretch for stretch in _so(at, leases, tenants)}
        self.version += 1


def plain_stretch(stretch: Stretch) -> dict[str, Any]:
    """The row of a journal."""
    return {name: value for name, value in asdict(stretch).items() if value not in ("", 0)}


def _so(now: float, leases: Iterable[LeaseRow], tenants: Mapping[str, TenantRow]) -> Iterator[Stretch]:
    """What is so now."""
    for lease in leases:
        row = tenants[lease.tenant]
        # While its state is being moved nobody computes.
        if lease.state is not LeaseState.ACTIVE or not (lease.pending or row.residency in _MOVES):
            for device in lease.devices:
                yield _begun(row, device, _WORDS[lease.state], min(lease.since, now))
    for row in tenants.values():
        if row.residency in _MOVES:
            for device in row.home:
                yield _begun(row, device, _MOVES[row.residency], now)


def _begun(row: TenantRow, device: str, what: str, since: float) -> Stretch:
    return Stretch(
        device=device, what=what, tenant=row.id, job=row.job, owner=row.owner, label=row.label, role=row.role, since=since
    )

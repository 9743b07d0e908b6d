"""The holders of each device, hour by hour. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from carrel.core.gpu_use.facts import HeldFacts

HOUR = 3600.0
WEEK = 7 * 24 * HOUR
_HOURS = 7 * 24 + 1
#: An owner, and the account that it is charged to.
Holder = tuple[str, str]


class DeviceHours:
    """For each device and hour of a week, for how long each owner had it. What was stopped in between is spread evenly."""

    def __init__(self, begin: float) -> None:
        """`begin` is that of an hour; the week has that hour of the next one, too, which goes on."""
        self.begin = begin
        self._rows: dict[str, list[dict[Holder, float]]] = {}

    @property
    def rows(self) -> Mapping[str, Sequence[Mapping[Holder, float]]]:
        """Seconds by holder in each hour, by the UUID of the device."""
        return self._rows

    @cached_property
    def holders(self) -> frozenset[Holder]:
        """All holders; asked for once everything has been added."""
        return frozenset(holder for row in self._rows.values() for hour in row for holder in hour)

    def since(self, begin: float) -> DeviceHours:
        """A copy for a week that begins later."""
        found, moved = DeviceHours(begin), int((begin - self.begin) // HOUR)
        for uuid, row in self._rows.items():
            kept = [dict(hour) for hour in row[moved:]]
            if any(kept):
                found._rows[uuid] = kept + [{} for _ in range(_HOURS - len(kept))]
        return found

    def add(self, held: HeldFacts, now: float) -> None:
        """Add what an attempt, a cell or a call had until `now`."""
        over = now if held.until is None else held.until
        stopped = held.stopped + (0.0 if held.stopped_since is None else over - held.stopped_since)
        since, until = max(held.since, self.begin), min(over, self.begin + _HOURS * HOUR)
        if until <= since:
            return
        holder, part = (held.owner, held.account), 1 - min(1.0, max(0.0, stopped) / (over - held.since))
        first, last = int((since - self.begin) // HOUR), min(int((until - self.begin) // HOUR), _HOURS - 1)
        for uuid in held.devices:
            row = self._rows.get(uuid)
            if row is None:
                row = self._rows[uuid] = [{} for _ in range(_HOURS)]
            for hour in range(first, last + 1):
                starts = self.begin + hour * HOUR
                seconds = (min(until, starts + HOUR) - max(since, starts)) * part
                row[hour][holder] = row[hour].get(holder, 0.0) + seconds

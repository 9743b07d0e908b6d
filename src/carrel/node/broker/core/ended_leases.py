"""Leases of sessions that are over, kept until the lab has them: who had how many devices, from when to when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from carrel.node.broker.core.rows import TenantRow

#: Leases that are kept while no lab takes them: the oldest go first, and their numbers are missing then.
PAST = 10_000
#: What the journal's line of a lease's end says beside what it says for the session's own history.
_MORE = ("n", "attempt", "process", "over", "seen")


class EndedLeases:
    """The leases, oldest first. Each has a number, without gaps on one node."""

    def __init__(self) -> None:
        self.rows: deque[dict[str, Any]] = deque(maxlen=PAST)
        #: The number that was given out last.
        self.number = 0

    def add(self, tenant: TenantRow, entry: dict[str, Any], now: float, *, seen: bool) -> dict[str, Any]:
        """A lease of the tenant is over, as `entry` says; return what the journal says beside that.

        Where nobody has `seen` its end it was there until `now` at least, and no more is said.
        """
        self.number += 1
        more = {"n": self.number, "attempt": tenant.attempt, "process": tenant.id, ("over" if seen else "seen"): now}
        self.rows.append({"job": tenant.job, **entry, **more})
        return more

    def take(self, until: int) -> bool:
        """The lab has those up to this number: they are forgotten here. False when there was none."""
        before = len(self.rows)
        while self.rows and self.rows[0]["n"] <= until:
            self.rows.popleft()
        return len(self.rows) < before

    def replay(self, values: dict[str, Any]) -> dict[str, Any]:
        """Read what was written down of a lease's end; return what of it is the session's own history."""
        if "n" in values:
            self.number = max(self.number, int(values["n"]))
            self.rows.append(values)
        return {name: value for name, value in values.items() if name not in _MORE}

    def written(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What a journal that is begun anew says of them."""
        return (("past", values) for values in self.rows)

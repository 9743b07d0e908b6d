"""Which processes of a tenant have the residency library: written down, so that the next broker waits for them.

Until they are connected again, a task whose processes compute looks like one of which nothing does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rows import TenantRow


class Joined:
    """Changes `TenantRow.joined`, and `TenantRow.members` where one ends."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add(self, row: TenantRow, member: str) -> None:
        """The process is one of the tenant's, and has the library."""
        row.joined = tuple(dict.fromkeys((*row.joined, member)))
        self._ledger.touch(row)

    def part(self, member: str) -> None:
        """The process has closed its connection: another program may be in it now, or none."""
        for row in self._ledger.tenants.values():
            if member in row.joined:
                row.joined = tuple(one for one in row.joined if one != member)
                self._ledger.touch(row)

    def ended(self, member: str) -> None:
        """The process has ended: it has no state that comes back, either."""
        self.part(member)
        for row in self._ledger.tenants.values():
            if member in row.members:
                row.members = tuple(one for one in row.members if one != member)
                self._ledger.touch(row)

    def drop_absent(self, here: Mapping[str, Collection[str]]) -> None:
        """Only processes are waited for that are `here`, by tenant: the others have had time to come back."""
        for row in list(self._ledger.tenants.values()):
            for member in row.joined:
                if member not in here.get(row.id, ()):
                    self.part(member)

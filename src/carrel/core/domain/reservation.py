"""Nodes that are kept for some people, or for nobody, between two moments: maintenance, courses."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.nodelist import in_nodelist


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Between `begin` and `end` only jobs of those that it admits run on its nodes (scontrol(1), RESERVATIONS).

    Jobs of others do not start there when their walltime would reach into it. Those that run when it is made go on.
    """

    name: str
    #: Unix seconds; `end` is outside.
    begin: float
    end: float
    #: Names of nodes, as `carrel.core.domain.nodelist` reads them.
    nodes: tuple[str, ...] = ("*",)
    #: Subjects of users, and accounts, whose jobs may run there. With neither: maintenance, nobody's may.
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    #: What it is for; everybody who waits for it reads this.
    reason: str = ""
    #: Subject of the administrator who made it.
    by: str = ""

    def admits(self, owner: str, account: str) -> bool:
        """True when jobs of this owner, working for this account, may run in it."""
        return owner in self.users or account in self.accounts

    def covers(self, node: str) -> bool:
        """True when the node is one of its nodes."""
        return in_nodelist(node, self.nodes)

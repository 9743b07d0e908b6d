"""Nodes that are kept for some people, or for nobody, between two moments: maintenance, courses."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.nodelist import in_nodelist
from carrel.core.domain.noun import Moment, derived, private

#: Seconds: the nodes do not come back.
FOR_EVER = 100 * 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Between `begin` and `end` only jobs of those that it admits run on its nodes (scontrol(1), RESERVATIONS).

    Jobs of others do not start there when their walltime would reach into it. Those that run when it is made go on.
    """

    name: str
    #: `end` is outside; 0: it begins when it is made.
    begin: Moment = 0.0
    end: Moment
    #: Names of nodes, as `carrel.core.domain.nodelist` reads them.
    nodes: tuple[str, ...] = ("*",)
    #: Subjects of users, and accounts, whose jobs may run there. With neither: maintenance, nobody's may.
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    #: What it is for; everybody who waits for it reads this.
    reason: str = ""
    #: Subject of the administrator who made it.
    by: str = private(default="")
    #: True for a machine from parts. One that was made for a job has it alone, whoever else is admitted; and no broker lends its
    #: GPUs, so what borrows some for its cells does not start there.
    machine: bool = private(default=False)
    #: True when the reader's own jobs may run there, on the reader's usual account.
    admits_me: bool = derived(default=False)

    def admits(self, owner: str, account: str, *, node: str | None = None, borrows: bool = False) -> bool:
        """True when jobs of this owner, working for this account, may run in it: one that was made `node`, one that `borrows`."""
        if self.machine and (borrows or self.nodes == (node,)):
            return not borrows
        return owner in self.users or account in self.accounts

    def covers(self, node: str) -> bool:
        """True when the node is one of its nodes."""
        return in_nodelist(node, self.nodes)

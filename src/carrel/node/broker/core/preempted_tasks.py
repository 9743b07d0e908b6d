"""Tasks that are preempted by suspension: paused with their state, until their runners ask for the devices again.

The lease records that its task is to be paused (`LeaseRow.aside`). Each settling checks whether the pause happened, and begins it
again if not; so a broker that was killed, and a pause that failed, need no rule of their own. The state of a paused task leaves
its devices as that of an idle kernel does, when another process needs the room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carrel.core.domain.lease import LeaseState, MoveMethod, Residency
from carrel.node.broker.core.effects import NEVER
from carrel.node.broker.core.lender import Lender, resumption
from carrel.node.broker.core.messages import text_of
from carrel.node.broker.core.moves import Moves
from carrel.node.broker.core.rows import LeaseRow, TenantRow
from carrel.node.leases.protocol import RUNNER


class PreemptedTasks:
    """Pauses tasks that are preempted by suspension. The core settles after each call."""

    def __init__(self, lender: Lender, moves: Moves) -> None:
        self._lender = lender
        self._ledger = lender.ledger
        self._moves = moves
        #: When a pause that did not work is tried again (Unix seconds).
        self.due = NEVER

    def set_aside(self, row: TenantRow, message: Mapping[str, Any]) -> None:
        """Pause the task. Its runner is told once it is paused."""
        lease = self._lease(row, message)
        if lease is None:
            return
        lease.aside = True
        self._ledger.touch(lease)
        for request in self._ledger.requests_of(row.id):
            if request.resumes == lease.id:
                self._ledger.drop_request(request)
        if lease.state is LeaseState.PAUSED:
            self._lender.say_paused(row, lease)

    def go_on(self, row: TenantRow, message: Mapping[str, Any]) -> None:
        """Ask for the task's devices again. A task that was not paused yet goes on at once."""
        lease = self._lease(row, message)
        if lease is None or not lease.aside:
            return
        lease.aside = False
        self._ledger.touch(lease)
        if lease.state is LeaseState.PAUSED:
            self._ledger.add_request(resumption(row, lease, self._lender.now))
            self._lender.look()
        elif not lease.pending and not lease.pausing and row.residency is not Residency.SUSPENDING:
            self._lender.resumed(row, lease)

    def review(self, now: float) -> None:
        """Begin to pause the tasks that are to be paused, where that has not begun."""
        self.due = NEVER
        for lease in [one for one in self._ledger.leases.values() if one.aside and _computes(one)]:
            row = self._ledger.tenants[lease.tenant]
            if row.retry_at > now:
                self.due = min(self.due, row.retry_at)
            elif row.gated and not row.loose and row.residency in (Residency.NONE, Residency.RESIDENT):
                self._moves.pause_in_place(row, lease)
            elif (
                row.residency is Residency.RESIDENT
                and self._lender.view.way(row)[0] is not MoveMethod.HOLD
                and self._has_room(row)
            ):
                row.residency = Residency.SUSPENDING
                self._ledger.touch(row)
                self._moves.suspend(row.id, lease.id)

    def _has_room(self, row: TenantRow) -> bool:
        """True when the state fits in host memory, where the driver's way puts it."""
        left = self._lender.host.left()
        return left is None or sum(row.state.values()) <= left

    def _lease(self, row: TenantRow, message: Mapping[str, Any]) -> LeaseRow | None:
        lease = self._ledger.leases.get(text_of(message, "lease"))
        return lease if lease is not None and lease.tenant == row.id and row.role == RUNNER else None


def _computes(lease: LeaseRow) -> bool:
    return lease.state is LeaseState.ACTIVE and not lease.pending and not lease.pausing

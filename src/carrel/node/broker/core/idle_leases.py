"""Leases that stay with an idle holder: the idle timer, its warnings, and the end. Nothing is lost without a warning."""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGKILL, SIGTERM

from carrel.core.domain.lease import LeaseState, Queued
from carrel.core.domain.units import format_duration
from carrel.node.broker.core.effects import NEVER, Kill
from carrel.node.broker.core.lender import Lender
from carrel.node.broker.core.messages import named
from carrel.node.broker.core.rows import LeaseRow

#: Seconds that a holder has at least from the first warning to the end, and the further warnings before it.
WARNING_SECONDS = 300.0
_REMINDERS = (300.0, 60.0)
#: Seconds that a process has to read and show why it is ended.
_READ_SECONDS = 1.0


class IdleLeases:
    """Watches held leases for the lender."""

    def __init__(self, lender: Lender, *, hold_time: float, grace: float) -> None:
        """`grace`: seconds between SIGTERM and SIGKILL."""
        self._lender = lender
        self._ledger = lender.ledger
        self._warning = min(WARNING_SECONDS, hold_time)
        self._grace = grace
        #: Processes that are ended: which signal is next, and when (Unix seconds).
        self._ends: dict[str, tuple[float, int]] = {}

    def review(self, queue: Sequence[Queued], now: float) -> None:
        """Start the countdown of held leases that others want, remind their holders, stop it when nobody wants them."""
        wanted: set[str] = set()
        anything = False
        for entry in queue:
            request = self._ledger.requests[entry.request]
            devices = request.devices or self._ledger.tenants[request.tenant].home
            wanted.update(devices)
            anything = anything or not devices
        for lease in self._ledger.leases.values():
            if lease.state is not LeaseState.HELD or lease.ending:
                continue
            if not anything and wanted.isdisjoint(lease.devices):
                if lease.wanted_since:
                    lease.wanted_since, lease.warned = 0.0, 0
                    self._ledger.touch(lease)
            else:
                self._count_down(lease, now)

    def _count_down(self, lease: LeaseRow, now: float) -> None:
        until = lease.held_until or now
        if not lease.wanted_since:
            lease.wanted_since = now
            if not lease.by_choice:
                until = lease.held_until = max(until, now + self._warning)
            lease.warned = sum(1 for left in _REMINDERS if until - now <= left)
        else:
            due = sum(1 for left in _REMINDERS if until - now <= left)
            if due <= lease.warned:
                return
            lease.warned = due
        self._ledger.touch(lease)
        self._warn(lease, max(0.0, until - now))

    def _warn(self, lease: LeaseRow, left: float) -> None:
        where, soon = named(lease.devices, self._lender.devices), format_duration(left)
        if lease.by_choice:
            text = f"Others wait for {where}; it is held for you for another {soon} (%gpu hold 0 gives it back)."
            self._lender.say(lease.tenant, "notice", level="info", message=text)
            return
        why = self._ledger.tenants[lease.tenant].why_not or "this machine cannot move GPU state"
        text = (
            f"Others wait for {where}, which this idle kernel holds because its GPU state cannot be moved ({why}). "
            f"In {soon} the kernel is ended, unless a cell uses the GPU. Save what you need."
        )
        self._lender.say(lease.tenant, "notice", level="warning", message=text)

    def expire(self, lease: LeaseRow, now: float) -> None:
        """The held lease's time is up and somebody waits: let go of it, which ends the process if its state cannot move."""
        early = now < (lease.held_until or now) and not lease.by_choice
        if lease.ending or not lease.wanted_since or early:
            return
        tenant = self._ledger.tenants[lease.tenant]
        if lease.by_choice:
            self._ledger.drop_lease(lease, now, outcome="ok")
            self._lender.again_at = now
            return
        lease.ending = True
        self._ledger.touch(lease)
        message = "The idle timer of the GPU ran out while others waited: the kernel is ended, and its GPU state is gone."
        self._lender.say(tenant.id, "lost", message=message)
        self._ends[tenant.id] = (now + _READ_SECONDS, SIGTERM)

    def finish(self, now: float) -> None:
        """After a restart: end those whose time was up already."""
        self._ends |= {lease.tenant: (now, SIGTERM) for lease in self._ledger.leases.values() if lease.ending}

    def due(self) -> float:
        """When the next signal is due (Unix seconds)."""
        return min((at for at, _number in self._ends.values()), default=NEVER)

    def kills(self, now: float) -> list[Kill]:
        """The signals that are due now."""
        found = []
        for tenant, (at, number) in list(self._ends.items()):
            if tenant not in self._ledger.tenants:
                del self._ends[tenant]
            elif at <= now:
                found.append(Kill(tenant, number))
                del self._ends[tenant]
                if number == SIGTERM:
                    self._ends[tenant] = (now + self._grace, SIGKILL)
        return found

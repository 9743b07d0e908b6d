"""How long GPU states move for a request, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrel.core.domain.lease import ContextPlace, LendingRules, Lent, Residency, Tenant
from carrel.core.policy.lend_plan import Plan
from carrel.core.policy.lend_room import Rooms


class MoveTimes:
    """Seconds that moves take during one walk through the queue; 0 where no rate is known."""

    def __init__(self, rooms: Rooms, rules: LendingRules) -> None:
        self._rooms = rooms
        self._rules = rules

    def seconds(self, tenant: Tenant, plan: Plan, devices: Iterable[str]) -> float:
        """How long the moves of a plan take, with bringing the tenant's own state back."""
        if not self._rules.move_rate:
            return 0.0
        disk = [*(plan.places.spills if plan.places else ()), *([tenant] if tenant.residency is Residency.SPILLED else [])]
        on_disk = sum(one.moved for one in disk) / self._rules.disk_rate if self._rules.disk_rate else 0.0
        there = {other.id: other for uuid in devices for other in self._rooms.residents[uuid] if other.id in self._rooms.leaving}
        leave = [*{**there, **{one.id: one for one in plan.victims}}.values()]
        moved = sum(other.moved for other in leave)
        back = sum(tenant.state.values()) if tenant.residency in (Residency.SUSPENDED, Residency.SPILLED) else 0
        contexts = self._rules.context_time * (len(plan.contexts) + (tenant.context_at is ContextPlace.AWAY))
        return self._away_and_back(moved, back, in_pieces=_all_in_pieces(tenant, *leave)) + on_disk + contexts

    def _away_and_back(self, away: int, back: int, *, in_pieces: bool) -> float:
        """Seconds in which `away` bytes leave and `back` bytes come in: one after the other, or both at once, piece by piece."""
        rules = self._rules
        if not rules.move_rate:
            return 0.0
        leaves, comes = away / rules.move_rate, back / (rules.back_rate or rules.move_rate)
        if not in_pieces or not away or not back:
            return leaves + comes
        return max(leaves, comes, (away + back) / rules.exchange_rate if rules.exchange_rate else 0.0)

    def exchange_takes(self, tenant: Tenant, devices: Iterable[str]) -> float:
        """Seconds for which states move once the turn of those on `devices` is over: theirs away, and the tenant's own back."""
        if not self._rules.move_rate:
            return 0.0
        away = back = 0
        spilled, in_pieces = tenant.residency is Residency.SPILLED, tenant.in_pieces
        for uuid in devices:
            if uuid not in self._rooms.devices:
                continue
            short = self._rooms.shortage(tenant, uuid) or 0
            there = [other for other in self._rooms.residents[uuid] if other.id != tenant.id]
            others = sorted(other.state.get(uuid, 0) for other in there)
            if short > 0:
                in_pieces = in_pieces and _all_in_pieces(*there)
                # The smallest state that makes enough room, or all of them.
                away = max(away, next((size for size in others if size >= short), sum(others)))
            if spilled or tenant.residency is Residency.SUSPENDED:
                back = max(back, tenant.state.get(uuid, 0))
        from_disk = back / self._rules.disk_rate if spilled and self._rules.disk_rate else 0.0
        context = self._rules.context_time if tenant.context_at is ContextPlace.AWAY else 0.0
        return self._away_and_back(away, back, in_pieces=in_pieces) + from_disk + context

    def return_takes(self, lease: Lent) -> float:
        """Seconds from the end of a cell until the task whose devices it has computes again: what can move there goes first."""
        if not self._rules.move_rate:
            return 0.0
        own = next((one for one in self._rooms.paused if one.id == lease.tenant), None)
        back = max(own.state.values(), default=0) if own is not None else 0
        others = {
            uuid: [one for one in self._rooms.residents.get(uuid, ()) if one.id != lease.tenant and one.suspendable]
            for uuid in lease.devices
        }
        there = {uuid: sum(one.state.get(uuid, 0) for one in found) for uuid, found in others.items()}
        in_pieces = own is not None and _all_in_pieces(own, *(one for found in others.values() for one in found))
        return self._away_and_back(max(there.values(), default=0), back, in_pieces=in_pieces)

    def visit_takes(self, tenant: Tenant, devices: Sequence[str]) -> float:
        """Seconds for which a tenant's state moves to and from the devices where its cell has a turn, as far as that is known.

        How long one takes to leave that is there already says `return_takes`.
        """
        if not self._rules.move_rate or tenant.residency is Residency.RESIDENT:
            return 0.0
        fresh = tenant.residency is Residency.NONE
        there = (uuid for uuid in devices if uuid in self._rooms.devices)
        sizes = [self._rooms.wanted(tenant, uuid) if fresh else tenant.state.get(uuid, 0) for uuid in there]
        size, back = max(sizes, default=0), self._rules.back_rate or self._rules.move_rate
        away = tenant.residency in (Residency.SUSPENDED, Residency.SPILLED)
        return size / self._rules.move_rate + (size / back if away else 0.0)


def _all_in_pieces(*tenants: Tenant) -> bool:
    return all(tenant.in_pieces for tenant in tenants)

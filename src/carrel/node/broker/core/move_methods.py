"""How a tenant's GPU state leaves its devices: over the bus, by the driver, or not at all; and why not in a better way."""

from __future__ import annotations

from carrel.core.domain.lease import MoveMethod, Tier
from carrel.node.broker.core.rows import TenantRow

#: So often a move by the library may fail before the driver is asked.
_PATIENCE = 3


def way_of(row: TenantRow, tier: Tier, *, never: bool) -> tuple[MoveMethod, str]:
    """The way, and why not over the bus, "" for that. A pause after a failure aside. `never`: nothing moves here at all."""
    if never:
        return MoveMethod.HOLD, row.why_not or "this lab moves no GPU state"
    why = off_the_bus(row)
    if not why and tier is not Tier.SIMULATED:
        return MoveMethod.BUS, ""
    if row.why_not or tier is Tier.HOLD:
        return MoveMethod.HOLD, row.why_not or (why if row.gated else "") or "this machine cannot move it"
    return MoveMethod.DRIVER, "" if tier is Tier.SIMULATED else why


def off_the_bus(row: TenantRow) -> str:
    """Why the library in the tenant's processes does not move its state, or ""."""
    if not row.gated:
        return "no residency library in it"
    if row.reasons:
        return ", ".join(row.reasons)
    if row.loose:
        return "one of its processes has no residency library"
    # What did not work twice is left to the other way, where there is one; but not what it has moved off the devices already.
    failed = row.failures >= _PATIENCE and not row.why_not and row.moved_by != MoveMethod.BUS
    return "its library could not move it" if failed else ""

"""On which devices a state comes back that lies in host memory: its home, or others like it where that is sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carrel.core.domain.lease import ContextPlace, Residency, Tenant
from carrel.core.policy.lend_room import Rooms


def is_free_to_go(rooms: Rooms, tenant: Tenant) -> bool:
    """True where the tenant's state may come back on other devices than those that it left."""
    away = tenant.residency in (Residency.SUSPENDED, Residency.SPILLED)
    held = bool(tenant.context) and tenant.context_at is ContextPlace.DEVICE and not tenant.context_leaves
    # Of what type a device was that is gone, nobody knows.
    return tenant.portable and away and not held and all(uuid in rooms.devices for uuid in tenant.home)


def alone_at(tenant: Tenant, uuid: str) -> Tenant:
    """The tenant with what it has on the device, or what it could have there: the most that it left on one, context and all."""
    if uuid in tenant.home:
        return replace(tenant, home=(uuid,), state={uuid: tenant.state.get(uuid, 0)})
    state, context = (max(sizes.values(), default=0) for sizes in (tenant.state, tenant.context))
    away = ContextPlace.AWAY if context else tenant.context_at
    return replace(tenant, home=(uuid,), state={uuid: state}, context={uuid: context}, context_at=away)


def homes_like(rooms: Rooms, home: Sequence[str], ranked: Sequence[str]) -> tuple[str, ...]:
    """Return the first of the `ranked` devices that are like those of `home`, one for each, in its order; (): there are too few.

    Those of `home` that are among them stay where they are.
    """
    found: list[str] = []
    for old in home:
        new = next((uuid for uuid in ranked if uuid not in found and _alike(rooms, uuid, old)), None)
        if new is None:
            return ()
        found.append(new)
    others = [uuid for uuid in found if uuid not in home]
    placed: list[str] = []
    for old in home:
        new = old if old in found else next(uuid for uuid in others if uuid not in placed and _alike(rooms, uuid, old))
        placed.append(new)
    return tuple(placed)


def _alike(rooms: Rooms, one: str, other: str) -> bool:
    first, second = rooms.devices[one], rooms.devices[other]
    return (first.type, first.memory) == (second.type, second.memory)

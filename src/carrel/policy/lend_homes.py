"""On which devices a state comes back that lies in host memory: its home, or others like it where that is sooner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from carrel.domain.lease import Request, Residency, Tenant
from carrel.policy.lend_room import Rooms

#: What it costs to come back where that is not possible now.
_NEVER = (2, 0)


def other_home(rooms: Rooms, request: Request, tenant: Tenant, vacant: Sequence[str]) -> Tenant | None:
    """Return the tenant with another home, to which its state can come back sooner than to its own; None where there is none.

    `vacant` are the devices that nobody has or is ahead for. Where it is as soon, a state goes home.
    """
    if not tenant.portable or tenant.residency is not Residency.SUSPENDED:
        return None
    if any(uuid not in rooms.devices for uuid in tenant.home):
        return None  # of what type it was nobody knows
    best = _cost(rooms, request, tenant) if set(tenant.home) <= set(vacant) else _NEVER
    if best == (0, 0):
        return None
    found = None
    for home in _homes_like(rooms, tenant.home, sorted(vacant, key=lambda uuid: (rooms.homes(uuid), uuid))):
        moved = tenant.at(home)
        cost = _cost(rooms, request, moved)
        if cost < best:
            best, found = cost, moved
    return found


def _homes_like(rooms: Rooms, home: Sequence[str], vacant: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Homes of devices like those of `home`, the best first. Of several devices only those are others that are not vacant."""
    if len(home) == 1:
        yield from ((uuid,) for uuid in vacant if uuid not in home and _alike(rooms, uuid, home[0]))
        return
    found: list[str] = []
    for old in home:
        new = old if old in vacant else None
        new = new or next((uuid for uuid in vacant if uuid not in (*home, *found) and _alike(rooms, uuid, old)), None)
        if new is None:
            return
        found.append(new)
    yield tuple(found)


def _alike(rooms: Rooms, one: str, other: str) -> bool:
    first, second = rooms.devices[one], rooms.devices[other]
    return (first.type, first.memory) == (second.type, second.memory)


def _cost(rooms: Rooms, request: Request, tenant: Tenant) -> tuple[int, int]:
    """What has to happen before the state comes back to vacant devices: nothing, moves of so many bytes, or more than can be."""
    plan = rooms.plan(request, tenant, tenant.home)
    if plan.obstacle is not None:
        return _NEVER
    return (0, 0) if plan.ready else (1, sum(victim.moved for victim in plan.victims))

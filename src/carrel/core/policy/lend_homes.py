"""On which devices a state comes back that lies in host memory: its home, or others like it where that is sooner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from carrel.core.domain.lease import Request, Residency, Tenant
from carrel.core.policy.lend_room import Rooms


def other_home(rooms: Rooms, request: Request, tenant: Tenant, vacant: Sequence[str]) -> Tenant | None:
    """Return the tenant with another home, to which its state can come back at once and to its own cannot; None: there is none.

    `vacant` are the devices that nobody has or is ahead for. Nobody else's state leaves a device for that: who comes back there
    would have to be moved back in turn, and a home that is busy gets free.
    """
    if not tenant.portable or tenant.residency not in (Residency.SUSPENDED, Residency.SPILLED):
        return None
    if any(uuid not in rooms.devices for uuid in tenant.home):
        return None  # of what type it was nobody knows
    if set(tenant.home) <= set(vacant) and rooms.plan(request, tenant, tenant.home).ready:
        return None
    ranked = sorted(vacant, key=lambda uuid: (rooms.homes(uuid), uuid))
    moved = (tenant.at(home) for home in _homes_like(rooms, tenant.home, ranked))
    return next((there for there in moved if rooms.plan(request, there, there.home).ready), None)


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

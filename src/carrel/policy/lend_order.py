"""Who is next in line for a GPU: fair between owners, and nobody is overtaken for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from carrel.domain.lease import LeaseState, LendingSnapshot, Request, Tenant

#: Seconds that one device of an owner weighs where there is no time slice to go by.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class InLine:
    """One request at its place."""

    request: Request
    #: Unix seconds: when it asked, put back by `patience` for each device that its owner holds or is to get before it.
    turn: float


def patience(snapshot: LendingSnapshot) -> float:
    """Seconds by which each device of an owner puts their next request back."""
    return snapshot.rules.time_slice or PATIENCE


def held_by_owner(snapshot: LendingSnapshot) -> dict[str, int]:
    """How many devices each owner holds now; a paused lease holds none."""
    held: dict[str, int] = {}
    for lease in snapshot.leases:
        if lease.state is not LeaseState.PAUSED:
            owner = snapshot.tenants[lease.tenant].owner
            held[owner] = held.get(owner, 0) + len(lease.devices)
    return held


def width(request: Request, tenants: Mapping[str, Tenant]) -> int:
    """How many devices the request is about."""
    return len(request.devices or tenants[request.tenant].home) or request.gpus


def in_line(snapshot: LendingSnapshot, held: Mapping[str, int]) -> list[InLine]:
    """The requests, first in line first.

    Owners take turns: each device that an owner holds, or gets by a request further ahead, puts them back by one time slice.
    So whoever holds nothing comes first among those who asked at about the same time, and whoever has waited long enough
    comes first in any case: that is why nobody waits for ever.
    """
    weight, tenants = patience(snapshot), snapshot.tenants
    by_owner: dict[str, list[Request]] = {}
    for request in sorted(snapshot.requests, key=lambda request: (request.asked_at, request.id), reverse=True):
        by_owner.setdefault(tenants[request.tenant].owner, []).append(request)
    counts = {owner: held.get(owner, 0) for owner in by_owner}
    heap = [
        (requests[-1].asked_at + weight * counts[owner], requests[-1].asked_at, requests[-1].id, owner)
        for owner, requests in by_owner.items()
    ]
    heapify(heap)
    line: list[InLine] = []
    while heap:
        turn, _asked, _id, owner = heap[0]
        requests = by_owner[owner]
        request = requests.pop()
        line.append(InLine(request, turn))
        counts[owner] += width(request, tenants)
        if requests:
            following = requests[-1]
            heapreplace(heap, (following.asked_at + weight * counts[owner], following.asked_at, following.id, owner))
        else:
            heappop(heap)
    return line

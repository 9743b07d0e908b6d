"""Who is next in line for a GPU: fair between owners, and nobody is overtaken for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from carrel.core.domain.lease import LeaseState, LendingSnapshot, Request, Tenant

#: Seconds that one device of an owner weighs where there is no time slice to go by.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class InLine:
    """One request at its place."""

    request: Request
    #: Unix seconds: when it asked, put back by `patience` for each device that its owner holds or is to get before it, and by
    #: what it should take, one `patience` at most.
    turn: float
    #: Seconds that it should take; None when nobody knows.
    expected: float | None


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


def expected_of(request: Request, snapshot: LendingSnapshot) -> float | None:
    """Seconds for which the request should need its devices; None when nobody knows.

    A cell is taken to be like those before it in its session; one that was paused, to go on for at least as long as it has
    computed already (what has run for long tends to go on for long).
    """
    if request.exclusive:
        return None
    typical = snapshot.tenants[request.tenant].typical
    if request.resumes is None:
        return typical
    paused = next((lease.used for lease in snapshot.leases if lease.id == request.resumes), 0.0)
    return max(typical or 0.0, paused) or None


def in_line(snapshot: LendingSnapshot, held: Mapping[str, int]) -> list[InLine]:
    """The requests, first in line first.

    Owners take turns: each device that an owner holds, or gets by a request further ahead, puts them back by one time slice.
    So an owner who holds nothing comes first among those who asked at about the same time, and a request that has waited long
    enough comes first in any case: that is why nobody waits for ever. Beside that, what should be short comes before what should
    be long: each request is put back by what it should take, but by no more than one time slice.
    """
    weight, tenants = patience(snapshot), snapshot.tenants
    by_owner: dict[str, list[_Asking]] = {}
    for request in snapshot.requests:
        expected = expected_of(request, snapshot)
        brief = snapshot.typical_lease if expected is None and request.resumes is None and not request.exclusive else expected
        ready = request.asked_at + (weight if brief is None else min(brief, weight))
        by_owner.setdefault(tenants[request.tenant].owner, []).append(
            _Asking(ready, request.asked_at, request.id, request, expected)
        )
    for asking in by_owner.values():
        asking.sort(key=_Asking.order, reverse=True)
    counts = {owner: held.get(owner, 0) for owner in by_owner}
    heap = [(asking[-1].ready + weight * counts[owner], *asking[-1].order()[1:], owner) for owner, asking in by_owner.items()]
    heapify(heap)
    line: list[InLine] = []
    while heap:
        turn, _asked, _id, owner = heap[0]
        asking = by_owner[owner]
        first = asking.pop()
        line.append(InLine(first.request, turn, first.expected))
        counts[owner] += width(first.request, tenants)
        if asking:
            heapreplace(heap, (asking[-1].ready + weight * counts[owner], *asking[-1].order()[1:], owner))
        else:
            heappop(heap)
    return line


class _Asking(NamedTuple):
    """One request before it has its place."""

    #: When it asked, put back by what it should take.
    ready: float
    asked_at: float
    id: str
    request: Request
    expected: float | None

    def order(self) -> tuple[float, float, str]:
        """Among the requests of one owner the smallest comes first."""
        return self.ready, self.asked_at, self.id

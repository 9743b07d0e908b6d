"""Nodes that are kept for some people, or for nobody, between two moments."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response

from carrel.core.domain.errors import Invalid
from carrel.core.domain.reservation import Reservation
from carrel.lab.gateway.context import NO_ZERO, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import reservation_view
from carrel.wire.v1 import API, ReservationChange, ReservationList, ReservationRequest

Name = Annotated[str, Path(max_length=64, pattern=NO_ZERO)]

router = APIRouter(prefix=API, tags=["lab"], route_class=Endpoint)


@router.get("/reservations", summary="Reservations of nodes, in force and to come")
def list_reservations(ctx: Ctx, who: Who) -> ReservationList:
    """Everybody may know when which nodes are not theirs, and what for."""
    nodes = [status.node.name for status in ctx.lab.machines.devices(who)]
    found = ctx.lab.administration.list_reservations(who)
    return ReservationList(reservations=[reservation_view(one, nodes, who.user) for one in found])


@router.put("/reservations/{name}", summary="Keep nodes for some people, or for nobody (operators)")
def reserve(name: Name, request: ReservationRequest, ctx: Ctx, who: Who) -> ReservationChange:
    """Jobs that run there go on; others do not start when their walltime would reach into it."""
    lab = ctx.lab
    asked = Reservation(
        name=name,
        begin=lab.clock() if request.begin is None else _moment("begin", request.begin),
        end=_moment("end", request.end),
        nodes=tuple(request.nodes),
        users=frozenset(request.users),
        accounts=frozenset(request.accounts),
        reason=request.reason,
    )
    changed = lab.administration.reserve(who, asked)
    nodes = [status.node.name for status in lab.machines.devices(who)]
    return ReservationChange(changed=changed, reservation=reservation_view(asked, nodes, who.user))


@router.delete("/reservations/{name}", status_code=204, summary="Release reserved nodes (operators)", response_class=Response)
def release(name: Name, ctx: Ctx, who: Who) -> Response:
    """Jobs that waited for it are placed at once."""
    ctx.lab.administration.release(who, name)
    return Response(status_code=204)


def _moment(what: str, at: datetime) -> float:
    if at.tzinfo is None:
        raise Invalid(
            f'{what} is "{at.isoformat()}", which no zone says when it is.', remedy='End it in "Z" or an offset: "+10:00".'
        )
    return at.timestamp()

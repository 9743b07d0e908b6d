"""The lab itself: what it is, its machines, its users."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from carrel import __version__
from carrel.domain.user import Role
from carrel.gateway.context import NO_ZERO, Base, Ctx, Who
from carrel.gateway.views import node_view, qos_view, user_view
from carrel.wire.v1 import API, LabView, NewUser, NodeList, UserList, UserRequest

router = APIRouter(prefix=API, tags=["lab"])


@router.get("/lab", summary="What this lab is, and who asks")
def get_lab(ctx: Ctx, who: Who, base: Base) -> LabView:
    """Version, classes of service, the state of tracking, and the caller."""
    policy, tracking = ctx.lab.policy, ctx.tracking_status()
    return LabView(
        version=__version__,
        lab_id=ctx.lab.lab_id,
        simulated=any(status.device.simulated for node in ctx.lab.devices(who) for status in node.devices),
        caller=user_view(who.user),
        qos=[qos_view(qos, default=qos.name == policy.default_qos) for qos in policy.qos.values()],
        tracking=tracking.state,
        tracking_message=tracking.message,
        tracking_url=None if tracking.state == "off" else base.rstrip("/") + ctx.settings.tracking_path,
    )


@router.get("/nodes", summary="The machines, and who holds what")
def list_nodes(ctx: Ctx, who: Who) -> NodeList:
    """Of the jobs of others only that they are there."""
    return NodeList(nodes=[node_view(status) for status in ctx.lab.devices(who)])


@router.get("/users", summary="List users (administrators)")
def list_users(ctx: Ctx, who: Who) -> UserList:
    """All users."""
    return UserList(users=[user_view(user) for user in ctx.lab.users(who)])


@router.post("/users", status_code=201, summary="Add a user (administrators)")
def add_user(request: UserRequest, ctx: Ctx, who: Who) -> NewUser:
    """The answer holds the user's token, which is not shown again."""
    user, token = ctx.lab.add_user(who, request.name, Role(request.role))
    return NewUser(user=user_view(user), token=token)


@router.post(
    "/users/{subject:path}/revoke", status_code=204, summary="End all tokens of a user (administrators)", response_class=Response
)
def revoke(subject: Annotated[str, Path(max_length=255, pattern=NO_ZERO)], ctx: Ctx, who: Who) -> Response:
    """From now on nothing answers to the user's tokens; open event streams of theirs end."""
    ctx.lab.revoke_tokens(who, subject)
    return Response(status_code=204)

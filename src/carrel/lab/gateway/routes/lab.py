"""The lab itself: what it is, its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Request

from carrel import __version__
from carrel.core.domain.node import Drain
from carrel.core.domain.nouns import DRAINS
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import NO_ZERO, Base, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import (
    account_view,
    cluster_node_view,
    disk_view,
    node_view,
    partition_view,
    qos_view,
    share_view,
    start_ranges_view,
    user_view,
)
from carrel.wire.v1 import (
    API,
    Changed,
    LabView,
    NodeList,
    Reloaded,
    RulesChanged,
    RulesPreview,
    RulesPreviewRequest,
    RulesRequest,
    ShareView,
    asked_of,
)

NodeName = Annotated[str, Path(max_length=255, pattern=NO_ZERO)]

if TYPE_CHECKING:
    DrainRequest = Drain
else:
    DrainRequest = asked_of(DRAINS)

router = APIRouter(prefix=API, tags=["lab"], route_class=Endpoint)


@router.get("/lab", summary="What this lab is, and who asks")
def get_lab(ctx: Ctx, who: Who, base: Base) -> LabView:
    """Version, classes of service, the state of tracking, and the caller."""
    rules, tracking, nodes = ctx.lab.policy.rules.current, ctx.tracking_status(), ctx.lab.machines.devices(who)
    return LabView(
        version=__version__,
        lab_id=ctx.lab.lab_id,
        simulated=any(status.device.simulated for node in nodes for status in node.devices),
        caller=user_view(who.user, ctx.lab.policy.charged(who.user)),
        qos=[qos_view(qos, default=qos.name == rules.default_qos) for qos in rules.qos.values()],
        partitions=[partition_view(one, rules.qos, [node.node.name for node in nodes]) for one in rules.partitions.values()],
        accounts=[account_view(one, yours=ctx.lab.policy.admits(one.name, who.user)) for one in rules.accounts.values()],
        tracking=tracking.state,
        tracking_message=tracking.message,
        storage=[disk_view(one) for one in ctx.lab.storage.disks()],
        tracking_url=ctx.tracking_url(base),
        cluster_url=ctx.settings.cluster_url or None,
        start_ranges=start_ranges_view(ctx.lab.loop.coverage) if allowed(who, Action.SEE_SHARES) else None,
    )


@router.get("/share", summary="Where the caller stands in fair share")
def get_share(ctx: Ctx, who: Who) -> ShareView:
    """Administrators see everybody's standing, others their own."""
    return share_view(ctx.lab.shares(who))


@router.post("/lab/reload", summary="Put in force the rules as they are written now (administrators)")
def reload_rules(ctx: Ctx, who: Who) -> Reloaded:
    """Classes of service and priorities. Jobs that are there keep what they were let in with."""
    return Reloaded(changed=ctx.lab.administration.reload_rules(who))


@router.post("/lab/rules", summary="Write rules down and put them in force (administrators)")
def change_rules(asked: RulesRequest, request: Request, ctx: Ctx, who: Who) -> RulesChanged:
    """They are kept in carrel.toml, whose comments stay. Jobs that are there keep what they were let in with."""
    changed = ctx.lab.administration.change_rules(who, asked.changes)
    tell_audit(request.scope, changed=changed)
    return RulesChanged(changed=dict(changed))


@router.post("/lab/rules/preview", summary="What other rules would have done to the jobs of the last days (administrators)")
async def preview_rules(asked: RulesPreviewRequest, ctx: Ctx, who: Who) -> RulesPreview:
    """By class of service and by user: waits and utilisation under the rules in force, and under the changed ones."""
    return await ctx.rule_previews.of(who, asked.changes, asked.days)


@router.get("/nodes", summary="The machines, and who holds what")
def list_nodes(ctx: Ctx, who: Who) -> NodeList:
    """Of the jobs of others only that they are there."""
    return NodeList(
        nodes=[node_view(status) for status in ctx.lab.machines.devices(who)],
        cluster=[cluster_node_view(node, partitions) for node, partitions in ctx.lab.machines.cluster_nodes()],
    )


@router.post("/nodes/{name:path}/drain", summary="Start nothing new on a node (operators)")
def drain(name: NodeName, request: DrainRequest, ctx: Ctx, who: Who) -> Changed:
    """What runs there goes on. It outlives the server."""
    return Changed(changed=ctx.lab.administration.drain(who, name, request.reason))


@router.post("/nodes/{name:path}/undrain", summary="Let a node take jobs again (operators)")
def undrain(name: NodeName, ctx: Ctx, who: Who) -> Changed:
    """Jobs that waited for it are placed at once."""
    return Changed(changed=ctx.lab.administration.undrain(who, name))

"""How things stand at the end of a placement: what the explanations and estimates of the held jobs are made from.

Nothing is decided here. Who starts, who is promised something and whom a limit keeps out first is taken from the `Outcome`; the
limits, the rooms and the order are asked with the functions that decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from carrel.core.domain.placement import Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import NOWHERE, AllowedNodes, AllowedNodesByOwner
from carrel.core.policy.limit_queue import gpus_ahead
from carrel.core.policy.limits import Limits, LimitsByOwner
from carrel.core.policy.line import Kind, kind_of
from carrel.core.policy.node_capacity import NodeCapacity, rooms_of
from carrel.core.policy.outcome import Outcome
from carrel.core.policy.promises import Promise

RESOURCES = "Resources"
PRIORITY = "Priority"
UNAVAILABLE = "ReqNodeNotAvail"
BEGIN_TIME = "BeginTime"
INVALID_QOS = "InvalidQOS"
PARTITION_DOWN = "PartitionDown"
#: Nothing but room was missing: one of the first three, told apart when somebody asks.
BLOCKED = ""


class NotStarted(NamedTuple):
    """A job that does not start in this cycle."""

    job: Waiting
    #: Why, or `BLOCKED`.
    code: str
    #: None when its QoS does not exist.
    limit: Limits | None


@dataclass(frozen=True, slots=True)
class Situation:
    """The end of one placement. Not changed any more."""

    outcome: Outcome
    #: After all starts.
    rooms: Sequence[NodeCapacity]
    #: In the order of the queue.
    held: Sequence[NotStarted]
    allowed_by_owner: AllowedNodesByOwner
    _possible: dict[Kind, bool] = field(default_factory=dict)

    @staticmethod
    def of(outcome: Outcome) -> Situation:
        """Return how things stand after all starts."""
        picture = outcome.picture
        rooms = rooms_of(picture.nodes, (*picture.holding, *outcome.started), picture.withheld, picture.moves)
        allowed_by_owner = AllowedNodesByOwner(rooms, picture.partitions, picture.reservations)
        clusters = {name for name, part in picture.partitions.items() if part.cluster}
        ledger = LimitsByOwner(picture.qos, picture.holding, outcome.now, clusters=clusters, submit_limits=picture.submit_limits)
        started, held = {one.id: one for one in outcome.started}, list[NotStarted]()
        for job in outcome.order.line(picture.waiting):
            limits, start = ledger.of(job), started.get(job.id)
            if start is None:
                held.append(NotStarted(job, _code(job, limits, allowed_by_owner, outcome), limits))
            if limits is not None and start is not None:  # what later jobs are refused for
                limits.charge(job.id, job.resources.total_gpus, start.over_by)
            elif limits is not None and outcome.promises.of(job) is not None:
                limits.claim(job)
        return Situation(outcome, rooms, held, allowed_by_owner)

    def allowed_nodes(self, job: Waiting) -> AllowedNodes:
        """Return where `job` may run: nowhere in a partition that there is not."""
        return self.allowed_by_owner.of(job.owner, job.account, job.partition) or NOWHERE

    def promise(self, job: Waiting) -> Promise | None:
        """Return what `job` is promised, or None."""
        return self.outcome.promises.of(job)

    def possible(self, job: Waiting) -> bool:
        """True when the nodes that take jobs could hold `job` if they were idle, as far as the lab can tell."""
        allowed_nodes = self.allowed_nodes(job)
        key = kind_of(job.resources, allowed_nodes)
        known = self._possible.get(key)
        if known is None:
            known = self._possible[key] = bool(allowed_nodes.cluster) or _enough(job.resources, allowed_nodes.rooms)
        return known

    def code(self, held: NotStarted) -> str:
        """Return the reason code of a held job, one of `carrel.core.domain.job.REASONS`."""
        if held.code != BLOCKED:
            return held.code
        if self.outcome.promises.is_first(held.job):
            return RESOURCES
        return PRIORITY if self.possible(held.job) else UNAVAILABLE


def _code(job: Waiting, limits: Limits | None, allowed_by_owner: AllowedNodesByOwner, outcome: Outcome) -> str:
    """Say why the job does not start: `BLOCKED` where nothing but room is missing."""
    if limits is None:
        return INVALID_QOS
    if allowed_by_owner.of(job.owner, job.account, job.partition) is None:
        return PARTITION_DOWN
    if job.not_before > outcome.now:
        return BEGIN_TIME
    if job.id in outcome.refused:
        return outcome.refused[job.id][0]

    place, first = (outcome.order.place(job), job.id), outcome.first_kept_out
    refusal = limits.refuses(job.resources.total_gpus, lambda limit: gpus_ahead(first(limit, place), place))
    return BLOCKED if refusal is None else refusal[1]


def _enough(wanted: Resources, rooms: Sequence[NodeCapacity]) -> bool:
    """True when as many rooms as `wanted` has nodes could hold it."""
    fitting = (room for room in rooms if room.could_hold(wanted))
    return next(islice(fitting, wanted.nodes - 1, None), None) is not None

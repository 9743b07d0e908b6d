"""How things stand at the end of a placement: what the explanations and estimates of the held jobs are made from.

Nothing is decided here: who starts, who is promised something and why each of the others is passed over is the walk's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.core.domain.placement import Holding, Snapshot, Start, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import NOWHERE, AllowedNodes, AllowedNodesByOwner
from carrel.core.policy.limits import Limits, LimitsByOwner
from carrel.core.policy.node_capacity import NodeCapacity, rooms_of
from carrel.core.policy.order import Order
from carrel.core.policy.promises import Promise, Promises
from carrel.core.policy.walk import BLOCKED, Passed, enough

RESOURCES = "Resources"
PRIORITY = "Priority"
UNAVAILABLE = "ReqNodeNotAvail"

#: What is asked for and where, but for the time.
Shape = tuple[int, int, str | None, int, int, int, AllowedNodes]


def shape_of(wanted: Resources, allowed_nodes: AllowedNodes) -> Shape:
    """Return what `wanted` asks for, and where that may be, but for the time."""
    return (wanted.nodes, wanted.gpus, wanted.gpu_type, wanted.gpu_memory, wanted.cpus, wanted.memory, allowed_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One placement. Not changed any more, and safe to read from several threads."""

    now: float
    #: What starts, in the order of the queue, and what each of these jobs holds from then on.
    starts: Sequence[Start]
    started: Sequence[Holding]
    #: The others, in the order of the queue.
    passed: Sequence[Passed]
    #: What is promised to the first who do not start.
    promises: Promises
    #: The lab before that, but for the weights of the order, which are in `order`.
    picture: Snapshot
    order: Order


class NotStarted(NamedTuple):
    """A job that does not start in this cycle."""

    job: Waiting
    #: Why, or `BLOCKED`.
    code: str
    #: The job for which what it needs within a limit is kept, or None.
    ahead: int | None
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
    _possible: dict[Shape, bool] = field(default_factory=dict)

    @staticmethod
    def of(outcome: Outcome) -> Situation:
        """Return how things stand after all starts."""
        picture, holding = outcome.picture, (*outcome.picture.holding, *outcome.started)
        rooms = rooms_of(picture.nodes, holding, picture.withheld, picture.moves)
        allowed_by_owner = AllowedNodesByOwner(rooms, picture.partitions, picture.reservations)
        clusters = {name for name, part in picture.partitions.items() if part.cluster}
        ledger = LimitsByOwner(picture.qos, holding, outcome.now, clusters=clusters, submit_limits=picture.submit_limits)
        held = [NotStarted(*passed, ledger.of(passed.job)) for passed in outcome.passed]
        return Situation(outcome, rooms, held, allowed_by_owner)

    def allowed_nodes(self, job: Waiting) -> AllowedNodes:
        """Return where `job` may run: nowhere in a partition that there is not."""
        return self.allowed_by_owner.of(job) or NOWHERE

    def promise(self, job: Waiting) -> Promise | None:
        """Return what `job` is promised, or None."""
        return self.outcome.promises.of(job)

    def possible(self, job: Waiting) -> bool:
        """True when the nodes that take jobs could hold `job` if they were idle, as far as the lab can tell."""
        allowed_nodes = self.allowed_nodes(job)
        key = shape_of(job.resources, allowed_nodes)
        known = self._possible.get(key)
        if known is None:
            known = self._possible[key] = bool(allowed_nodes.cluster) or enough(job.resources, allowed_nodes.rooms)
        return known

    def code(self, held: NotStarted) -> str:
        """Return the reason code of a held job, one of `carrel.core.domain.job.REASONS`."""
        if held.code != BLOCKED:
            return held.code
        if held.job.node == "" or self.outcome.promises.is_first(held.job):
            return RESOURCES
        return PRIORITY if self.possible(held.job) else UNAVAILABLE

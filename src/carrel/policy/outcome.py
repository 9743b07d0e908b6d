"""What one placement has decided, and from what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carrel.domain.node import Node
from carrel.domain.partition import Partition
from carrel.domain.placement import Holding, Start, Waiting
from carrel.domain.qos import QoS
from carrel.domain.reservation import Reservation
from carrel.domain.submit_limits import SubmitLimit, SubmitScope
from carrel.policy.limit_queue import KeptOut
from carrel.policy.limits import LimitKey
from carrel.policy.order import Order
from carrel.policy.promises import Promises


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One placement. Not changed any more, and safe to read from several threads."""

    now: float
    #: What starts, in the order of the queue, and what each of these jobs holds from then on.
    starts: Sequence[Start]
    started: Sequence[Holding]
    #: What is promised to the first who do not start.
    promises: Promises
    #: Whom a limit refused when it was their turn, by number: the code, and the job that the limit kept out first then.
    refused: Mapping[int, tuple[str, KeptOut | None]]
    #: Whom each limit to GPUs keeps out first.
    kept_out: Mapping[LimitKey, KeptOut]
    #: Everything else is as it was before.
    waiting: Sequence[Waiting]
    holding: Sequence[Holding]
    order: Order
    qos: Mapping[str, QoS]
    nodes: Sequence[Node]
    withheld: frozenset[str] = frozenset()
    moves: Mapping[str, int] = field(default_factory=dict)
    #: Of the devices that are withheld, those that only GPU state of idle sessions keeps from jobs, and why it stays there.
    blocked: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    reservations: Sequence[Reservation] = ()
    submit_limits: Mapping[SubmitScope, SubmitLimit] = field(default_factory=dict)

"""What one placement has decided, and from what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.domain.placement import Holding, Snapshot, Start
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
    #: The lab before that, but for the weights of the order, which are in `order`.
    picture: Snapshot
    order: Order

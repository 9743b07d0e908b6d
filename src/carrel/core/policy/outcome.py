"""What one placement has decided, and from what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.core.domain.placement import Holding, Snapshot, Start
from carrel.core.policy.limit_queue import KeptOut
from carrel.core.policy.limits import Limit, LimitKey
from carrel.core.policy.needs import Key
from carrel.core.policy.order import Order
from carrel.core.policy.promises import Promises


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
    #: Whom each limit to GPUs keeps out first: before the start of a job at that place in line, and (`NOBODY`) after all starts.
    kept_out: Mapping[LimitKey, Sequence[tuple[Key, KeptOut | None]]]
    #: The lab before that, but for the weights of the order, which are in `order`.
    picture: Snapshot
    order: Order

    def first_kept_out(self, limit: Limit, place: Key) -> KeptOut | None:
        """Return whom the limit keeps out first, as it was when it was the turn of the job at that place in line."""
        known = self.kept_out.get(limit.key, ())
        return next((first for until, first in known if place <= until), None)

"""What jobs waited for: each second of a wait counts for the reason that its owner was told last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, pairwise

from carrel.core.gpu_use.facts import WaitFacts
from carrel.core.gpu_use.groups import Range


class Waits:
    """Add what was told, then read `classes`."""

    def __init__(self, within: Range, now: float) -> None:
        self._within, self._now = within, now
        self._classes: dict[str, dict[str, float]] = {}

    @property
    def classes(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds by reason, by the name of the class of service."""
        return self._classes

    def add(self, told: Iterable[WaitFacts]) -> None:
        """Count these, which come by job and in the order in which they were told."""
        for facts, after in pairwise(chain(told, (None,))):
            if facts is None:
                continue
            ends = [self._now if facts.until is None else facts.until]
            if after is not None and after.job == facts.job:
                ends.append(after.since)
            if seconds := self._within.overlap(facts.since, min(ends)):
                by_reason = self._classes.setdefault(facts.qos, {})
                by_reason[facts.reason] = by_reason.get(facts.reason, 0.0) + seconds

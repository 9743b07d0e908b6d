"""Why those wait who wait, and for how long: worked out from a picture of the queue when somebody asks."""

from __future__ import annotations

from functools import cached_property

from carrel.domain.expectation import Expect
from carrel.domain.placement import Hold, Placement, Snapshot
from carrel.policy.place import place

#: Jobs in line and on nodes up to which what is known about run times is played into the future: for whoever asks, and for the
#: loop itself, which has no time. In a larger lab estimates are those of walltimes.
FORESEEN, FORESEEN_BY_LOOP = 300, 64


class Outlook:
    """The queue as the end of a cycle left it. Safe to ask from several threads."""

    def __init__(self, picture: Snapshot | None, now: float, expect: Expect | None = None) -> None:
        self._picture = picture
        self._now = now
        self._expect = expect

    @cached_property
    def placement(self) -> Placement:
        """What the policy says about everybody in the picture."""
        # Two threads may both work it out: the answers are equal.
        return self._look(FORESEEN)

    @cached_property
    def quick(self) -> Placement:
        """The same for somebody in a hurry."""
        return self.placement if self._size <= FORESEEN_BY_LOOP else self._look(0)

    def hold_of(self, job_id: int) -> Hold | None:
        """Where one job stands, or None when it does not wait."""
        return self.placement.hold_of(job_id)

    @property
    def _size(self) -> int:
        return 0 if self._picture is None else len(self._picture.waiting) + len(self._picture.holding)

    def _look(self, most: int) -> Placement:
        if self._picture is None:
            return Placement()
        return place(self._picture, self._now, expect=self._expect if self._size <= most else None)

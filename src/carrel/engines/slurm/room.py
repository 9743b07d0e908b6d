"""Where Slurm takes no more jobs for now (a limit of submitted jobs), as far as one user knows.

Who is refused goes back into the lab's line, which sends another one when a job has ended, or after a while. What the lab handed
over before it had heard of the refusal goes back without Slurm being asked about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from carrel.domain.ports import Clock

#: Account, QoS and partition: what limits of submitted jobs are limits of (sacctmgr(1)).
Place = tuple[str, str, str]

#: Seconds after a refusal in which Slurm is not asked again: what comes meanwhile was handed over before the lab knew.
CLOSED = 3.0
#: Seconds after an end before Slurm is asked, which hears of it a little later than the lab; and before it is asked a second time
#: should it have no room even then.
SETTLES, AGAIN = 0.5, 4.0


@dataclass(slots=True)
class _Refusal:
    #: Slurm's word for the limit, and what is told of it.
    code: str
    words: str
    until: float
    #: Ends since then: so many are submitted.
    ends: int = 0
    ended_at: float = -math.inf


class Room:
    """Who may be submitted now. One thread uses it."""

    def __init__(self, monotonic: Clock) -> None:
        self._monotonic = monotonic
        self._refusals: dict[Place, _Refusal] = {}

    def closed(self, place: Place) -> tuple[str, str] | None:
        """Return the code and the words of the last refusal where Slurm is not to be asked now, else None."""
        last = self._refusals.get(place)
        if last is None or last.ends or self._monotonic() >= last.until:
            return None
        return last.code, last.words

    def settles(self, place: Place) -> float | None:
        """Return until when to wait before Slurm is asked, in monotonic seconds; None: not at all."""
        last = self._refusals.get(place)
        at = -math.inf if last is None else last.ended_at + SETTLES
        return at if at > self._monotonic() else None

    def refused(self, place: Place, code: str, words: str) -> bool:
        """Slurm has no room. Return whether to ask once more after `AGAIN` seconds: it may not have heard of an end yet."""
        now, last = self._monotonic(), self._refusals.get(place)
        soon = last is not None and last.ends > 0 and now - last.ended_at < AGAIN
        self._refusals[place] = _Refusal(code, words, now + CLOSED)
        return soon

    def taken(self, place: Place) -> None:
        """Slurm took one."""
        last = self._refusals.get(place)
        if last is None:
            return
        if last.ends:
            last.ends -= 1
        elif self._monotonic() >= last.until:
            del self._refusals[place]

    def ended(self) -> None:
        """A job has ended: there may be room for another one, whatever account it was charged to."""
        for last in self._refusals.values():
            last.ends += 1
            last.ended_at = self._monotonic()

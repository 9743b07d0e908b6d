"""Where Slurm takes no more jobs for now (a limit of submitted jobs), as far as one user knows.

Who is refused goes back into the lab's line, which sends another one when a job has ended, or after a while. What the lab handed
over before it had heard of the refusal goes back without Slurm being asked about it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from carrel.core.domain.ports import Clock
from carrel.engines.slurm.options import SlurmOptions

#: Account, QoS and partition: what limits of submitted jobs are limits of (sacctmgr(1)).
Place = tuple[str, str, str]

#: Seconds after a refusal in which Slurm is not asked again: what comes meanwhile was handed over before the lab knew.
CLOSED = 3.0
#: Seconds after an end before Slurm is asked, which hears of it a little later than the lab.
SETTLES = 0.5
#: Seconds before it is asked once more each time, should it have no room even then.
AGAIN = (1.0, 3.0)
#: Seconds after which Slurm has heard of an end.
_LONG_AGO = 5.0


@dataclass(slots=True)
class _Refusal:
    #: Slurm's word for the limit, and what is told of it.
    code: str
    words: str
    #: Until when those who were handed over meanwhile go back unasked.
    until: float
    #: So many may try: jobs have ended that Slurm had perhaps not heard of when it refused.
    ends: int = 0
    #: Slurm is not asked before.
    ask_at: float = -math.inf
    #: How often Slurm has refused one since the last end.
    times: int = 0


class SubmitCapacity:
    """Who may be submitted now. One thread uses it."""

    def __init__(self, monotonic: Clock) -> None:
        self._monotonic = monotonic
        self._refusals: dict[Place, _Refusal] = {}
        #: When the last jobs ended; of them Slurm may not have heard yet.
        self._ends: deque[float] = deque()

    def closed(self, place: Place) -> tuple[str, str] | None:
        """Return the code and the words of the last refusal where Slurm is not to be asked now, else None."""
        last = self._refusals.get(place)
        if last is None or last.ends or self._monotonic() >= last.until:
            return None
        return last.code, last.words

    def settles(self, place: Place) -> float | None:
        """Return until when to wait before Slurm is asked, in monotonic seconds; None: not at all."""
        last = self._refusals.get(place)
        return last.ask_at if last is not None and last.ask_at > self._monotonic() else None

    def refused(self, place: Place, code: str, words: str) -> bool:
        """Slurm has no room. Return whether to ask once more, when `settles` says: it may not have heard of an end yet.

        That holds after a restart, too, and for a place where nobody was refused before: the jobs that ended count, and not what
        was known of the limit.
        """
        now, last = self._monotonic(), self._refusals.get(place)
        self._forget_ends()
        unheard = len(self._ends) if last is None else last.ends
        times = 0 if last is None else last.times
        again = self._refusals[place] = _Refusal(code, words, now + CLOSED)
        if not unheard or not self._ends or times == len(AGAIN):
            return False
        again.ends, again.ask_at, again.times = unheard, now + AGAIN[times], times + 1
        return True

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
        now = self._monotonic()
        self._ends.append(now)
        self._forget_ends()
        for last in self._refusals.values():
            last.ends += 1
            last.ask_at, last.times = now + SETTLES, 0

    def _forget_ends(self) -> None:
        while self._ends and self._monotonic() - self._ends[0] >= _LONG_AGO:
            self._ends.popleft()


def place_of(options: SlurmOptions) -> Place:
    """Return where a job with these options would be counted."""
    return options.account, options.qos, options.partition

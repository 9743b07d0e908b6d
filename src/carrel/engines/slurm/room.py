"""Jobs that wait because Slurm takes no more of their owner's for now (a limit of submitted jobs), in order.

There is room again when a job ends, and nobody says so for jobs that are not the lab's: so one is tried after each end of the
lab's, and another after a while that grows. One refusal stands for everybody who asks for the same account, QoS and partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carrel.domain.ports import Clock
from carrel.engines.attempts import Key

#: Account, QoS and partition: what limits of submitted jobs are limits of (sacctmgr(1)).
Place = tuple[str, str, str]

#: Seconds until one is tried again without an end: at first, and at most.
SOON, LATE = 1.0, 60.0


@dataclass(slots=True)
class _Line:
    #: Slurm's words.
    words: str
    waiting: set[Key] = field(default_factory=set)
    #: Ends since the last refusal: so many may be tried at once.
    ends: int = 0
    pause: float = SOON
    again_at: float = 0.0


class Room:
    """Who may be submitted now. One thread uses it."""

    def __init__(self, monotonic: Clock) -> None:
        self._monotonic = monotonic
        self._lines: dict[Place, _Line] = {}

    def keeps_back(self, place: Place, key: Key) -> str:
        """Return Slurm's words for why this attempt is not to be tried now, which puts it in line; "" when it may be."""
        line = self._lines.get(place)
        if line is None:
            return ""
        line.waiting.add(key)
        if min(line.waiting) == key and (line.ends or self._monotonic() >= line.again_at):
            return ""
        return line.words

    def refused(self, place: Place, key: Key, words: str) -> None:
        """Slurm has no room for this attempt, in these words."""
        line = self._lines.setdefault(place, _Line(words))
        line.words = words
        line.waiting.add(key)
        line.ends = 0
        line.again_at = self._monotonic() + line.pause
        line.pause = min(LATE, 2 * line.pause)

    def taken(self, place: Place, key: Key) -> None:
        """Slurm took this attempt."""
        line = self._lines.get(place)
        if line is None:
            return
        line.waiting.discard(key)
        if line.ends:
            line.ends -= 1
        else:
            line.pause = SOON  # it was tried without an end, and there was room: perhaps for more
        if not line.waiting:
            del self._lines[place]

    def leave(self, key: Key) -> None:
        """This attempt is not to be submitted any more."""
        for place, line in list(self._lines.items()):
            line.waiting.discard(key)
            if not line.waiting:
                del self._lines[place]

    def ended(self) -> None:
        """A job has ended: there may be room for another one, whatever account it was charged to."""
        for line in self._lines.values():
            line.ends += 1
            line.pause = SOON

    def next(self) -> list[Key]:
        """Return which attempts of a line are to be tried now, in order: as many as have ended, one where none has."""
        now = self._monotonic()
        lines = [line for line in self._lines.values() if line.ends or now >= line.again_at]
        if not lines:
            return []
        line = min(lines, key=lambda line: min(line.waiting))
        return sorted(line.waiting)[: max(1, line.ends)]

    def next_at(self) -> float | None:
        """Return when there will be one to try, in monotonic seconds; None while nobody is in line."""
        moments = [0.0 if line.ends else line.again_at for line in self._lines.values()]
        return min(moments, default=None)

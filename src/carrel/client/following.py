"""Following a lab's events across lost connections: what was seen, and what a repeated message is."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from carrel.wire import v1

#: Seconds between two looks for a lab that is away.
_SHORTEST, _LONGEST = 0.05, 1.0


class Backoff:
    """A lab that does not answer: pauses that grow, and an end of patience."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = _SHORTEST

    def over(self) -> None:
        """It answers again."""
        self._since, self._pause = None, _SHORTEST

    def pause(self, until: float, *, patience: float = math.inf) -> bool:
        """Sleep for a moment, but not beyond `until` (monotonic); False when it has been away for longer than `patience`."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > patience:
            return False
        time.sleep(max(0.0, min(self._pause, until - now)))
        self._pause = min(self._pause * 2, _LONGEST)
        return True


@dataclass(slots=True)
class Position:
    """Where a reader of an event stream stands.

    A long log event comes in pieces of which only the last has an id; after a lost connection the whole event comes again,
    in the same pieces, and those that were seen are left out by their offset.
    """

    #: Everything up to this event has been seen.
    after: int
    #: The job that is followed, or None for all.
    job_id: int | None = None
    #: Event and offset of the last piece of log that was seen.
    piece: tuple[int, int] = (-1, -1)
    #: True when the last state of the job that is followed has been seen.
    ended: bool = False

    def take(self, event_id: str, data: str) -> Iterator[v1.EventView]:
        """The event of one message, or nothing when it was seen before."""
        from carrel.core.domain.job import ENDED

        event = v1.EventView.model_validate_json(data)
        if event.type == "log":
            piece = event.id, int(event.data.get("offset", 0))
            if piece[0] == self.piece[0] and piece[1] <= self.piece[1]:
                return
            self.piece = piece
        if event_id.isdigit():
            self.after = max(self.after, int(event_id))
        if self.job_id == event.job_id and event.type == "state" and event.data.get("state") in ENDED:
            self.ended = True
        yield event

"""Where news waits for the control loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from carrel.core.domain.job import Job
from carrel.core.domain.launch import Observation


@dataclass(slots=True)
class News:
    """What one cycle has to deal with; emptied as it is dealt with."""

    jobs: list[Job]
    #: One for each attempt at most.
    observations: list[Observation]


class Inbox:
    """Takes news from any thread, and gives all of it to the loop at once."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._observations: deque[Observation] = deque()
        self._poked = False
        self._stopped = False

    def put(self, *, jobs: Iterable[Job] = (), observations: Iterable[Observation] = ()) -> None:
        """There is news; without any, the loop is only woken."""
        with self._ready:
            self._jobs.extend(jobs)
            self._observations.extend(observations)
            self._poked = True
            self._ready.notify()

    def stop(self) -> None:
        """Let the loop end."""
        with self._ready:
            self._stopped = True
            self._ready.notify()

    def take(self, seconds_to_next: Callable[[], float | None]) -> News | None:
        """Wait for news, or until time alone is a reason to look; None when the loop is to end."""
        with self._ready:
            while not (self._stopped or self._poked):
                seconds = seconds_to_next()
                if seconds is not None and seconds <= 0:
                    break
                self._ready.wait(seconds)
            if self._stopped:
                return None
            news = News(jobs=list(self._jobs), observations=merge(self._observations))
            self._jobs.clear()
            self._observations.clear()
            self._poked = False
        return news

    def give_back(self, news: News) -> None:
        """What could not be dealt with comes first the next time."""
        with self._ready:
            self._jobs.extendleft(reversed(news.jobs))
            self._observations.extendleft(reversed(news.observations))
            self._poked = True

    def pause(self, seconds: float) -> None:
        """Wait, unless the loop is to end."""
        with self._ready:
            self._ready.wait_for(lambda: self._stopped, timeout=seconds)


def merge(observations: Iterable[Observation]) -> list[Observation]:
    """All news of one attempt as one observation, in the order of first mention."""
    merged: dict[tuple[int, int], Observation] = {}
    for new in observations:
        name = (new.job_id, new.attempt)
        old = merged.get(name)
        if old is not None and old.beside and new.beside:
            old = replace(old, entries=())  # only the last remark counts
        elif old is not None and new.entries and new.offset <= old.offset and (old.entries or not new.beside):
            new = replace(new, entries=(), offset=0)  # the same lines, read again; or a remark that the journal outweighs
        if old is not None:
            new = replace(
                new,
                entries=old.entries + new.entries,
                offset=max(old.offset, new.offset),
                log_size=old.log_size if new.log_size is None else new.log_size,
                gone=old.gone or new.gone,
                unbegun=old.unbegun or new.unbegun,
                beside=new.beside if new.entries else old.beside,
            )
        merged[name] = new
    return list(merged.values())

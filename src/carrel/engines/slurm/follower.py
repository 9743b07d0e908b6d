"""The thread that reads journals: the truth about an attempt, wherever it runs and in any state of Slurm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from carrel.core.domain.launch import Ended, Journaled, Observation, Preparing
from carrel.core.domain.ports import Clock
from carrel.core.transport.reactor import Reactor
from carrel.engines.attempts import Key
from carrel.engines.delivery import Delivery, News, Receiver
from carrel.engines.doorbells import Doorbells, NetworkDoorbells
from carrel.engines.slurm.followed import Followed, explained, is_doubtful

#: Seconds between two looks at all journals: the bell of the lab is not heard on other machines.
POLL = 0.5
#: Looks a second at most, however many there are.
_LOOKS = 100.0
#: Seconds that Slurm has for saying why a job was killed.
SAYS_WHY = 20.0

_log = logging.getLogger(__name__)


class Follower:
    """Delivers what journals say, in order. Its methods may be called from any thread."""

    def __init__(
        self,
        *,
        doorbells: Sequence[Doorbells | NetworkDoorbells],
        deliver: Receiver,
        monotonic: Clock,
        clock: Clock,
    ) -> None:
        self._monotonic = monotonic
        self._clock = clock
        self._lock = threading.Lock()
        self._followed: dict[Key, Followed] = {}
        self._closed = False
        self._reactor = Reactor(monotonic, on_error=_failed)
        self._delivery = Delivery(self._reactor, news=self._news, receiver=deliver)
        for bell in doorbells:
            self._reactor.watch(bell, partial(self._rung, bell))
        self._thread = threading.Thread(target=self._reactor.run, name="carrel-slurm-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._reactor.post(self._poll)
        self._thread.start()

    def follow(self, followed: Followed) -> bool:
        """Follow an attempt; return False when it is followed already."""
        with self._lock:
            if followed.watched.key in self._followed:
                return False
            self._followed[followed.watched.key] = followed
        return True

    def forget(self, key: Key) -> Followed | None:
        """Follow the attempt no more."""
        with self._lock:
            followed = self._followed.pop(key, None)
        if followed is not None:
            followed.watched.over = True
        return followed

    def find(self, key: Key) -> Followed | None:
        """Return what is followed under `key`."""
        return self._followed.get(key)

    def all(self) -> list[Followed]:
        """Return everything that is followed and not over."""
        with self._lock:
            return [followed for followed in self._followed.values() if not followed.watched.over]

    def look(self, followed: Followed) -> None:
        """Read its journal soon."""
        self._reactor.post(partial(self._delivery.look, {followed.watched.key}))

    def say(self, followed: Followed, message: str) -> None:
        """Tell the owner something that is in no journal; once."""
        if message != followed.said:
            followed.said = message
            self._reactor.post(partial(self._say, followed, message))

    def gone(self, followed: Followed) -> None:
        """Its runner is gone, and left no end."""
        self._reactor.post(partial(self._gone, followed))

    def close(self) -> None:
        """Stop the thread and wait for it; again is harmless."""
        if self._closed:
            return
        self._closed = True
        self._reactor.post(self._reactor.stop)
        if self._thread.ident is not None:
            self._thread.join()
        self._reactor.close()

    # --- in the thread ------------------------------------------------------------------------------------------------------

    def _say(self, followed: Followed, message: str) -> None:
        followed.says = Preparing(message=message)
        self._delivery.look({followed.watched.key})

    def _gone(self, followed: Followed) -> None:
        followed.watched.dead = True
        self._delivery.look({followed.watched.key})

    def _rung(self, bell: Doorbells | NetworkDoorbells) -> None:
        self._delivery.look(bell.rings())

    def _poll(self) -> None:
        everybody = self.all()
        self._reactor.later(max(POLL, len(everybody) / _LOOKS), self._poll)
        self._delivery.look({followed.watched.key for followed in everybody})

    def _news(self, key: Key) -> News | None:
        followed = self.find(key)
        if followed is None or followed.watched.over:
            return None
        said = followed.says
        news = self._observation(followed)
        return None if news is None else News(news, partial(self._delivered, followed, said, news))

    def _delivered(self, followed: Followed, said: Preparing | None, news: Observation) -> None:
        followed.watched.delivered(news)
        if followed.says is said:
            followed.says = None

    def _observation(self, followed: Followed) -> Observation | None:
        news = followed.watched.news()
        if news is not None:
            return self._with_reason(followed, news)  # the journal knows better than what waits to be said
        if followed.says is None:
            return None
        return Observation(
            job_id=followed.watched.launch.job_id,
            attempt=followed.watched.launch.attempt,
            entries=(Journaled(at=self._clock(), record=followed.says),),
            offset=followed.watched.offset,
            beside=True,
        )

    def _with_reason(self, followed: Followed, news: Observation) -> Observation | None:
        """Hold an end back that Slurm may have brought about, until Slurm has said so or had time for it."""
        if not news.entries or not isinstance(ended := news.entries[-1].record, Ended):
            return news
        if not is_doubtful(ended, terminated=followed.terminated.exists()):
            return news
        now = self._monotonic()
        followed.doubtful_since = followed.doubtful_since or now
        if followed.explanation is None and now - followed.doubtful_since < SAYS_WHY:
            return None
        last = replace(news.entries[-1], record=explained(ended, followed.explanation))
        return replace(news, entries=(*news.entries[:-1], last))


def _failed(_error: Exception) -> None:
    _log.exception("the follower of journals failed and goes on")

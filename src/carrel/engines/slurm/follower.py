"""The thread that reads journals: the truth about an attempt, wherever it runs and in any state of Slurm."""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from carrel.domain.launch import Ended, Journaled, Observation, Preparing
from carrel.domain.ports import Clock
from carrel.engines.attempts import Key
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
        deliver: Callable[[Sequence[Observation]], None],
        monotonic: Clock,
        clock: Clock,
    ) -> None:
        self._doorbells = doorbells
        self._deliver = deliver
        self._monotonic = monotonic
        self._clock = clock
        self._lock = threading.Lock()
        self._followed: dict[Key, Followed] = {}
        self._dirty: set[Key] = set()
        self._poll_at = 0.0
        self._hold_until = 0.0
        self._calls: deque[Callable[[], None]] = deque()
        self._stop = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="carrel-slurm-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
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
        self._call(partial(self._dirty.add, followed.watched.key))

    def say(self, followed: Followed, message: str) -> None:
        """Tell the owner something that is in no journal; once."""
        if message != followed.said:
            followed.said = message
            self._call(partial(self._say, followed, message))

    def gone(self, followed: Followed) -> None:
        """Its runner is gone, and left no end."""
        self._call(partial(self._gone, followed))

    def close(self) -> None:
        """Stop the thread and wait for it; again is harmless."""
        if self._stop:
            return
        self._stop = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _call(self, function: Callable[[], None]) -> None:
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        with self._lock, suppress(BlockingIOError):
            if self._wake_write >= 0:
                os.write(self._wake_write, b"!")

    # --- in the thread ------------------------------------------------------------------------------------------------------

    def _say(self, followed: Followed, message: str) -> None:
        followed.says = Preparing(message=message)
        self._dirty.add(followed.watched.key)

    def _gone(self, followed: Followed) -> None:
        followed.watched.dead = True
        self._dirty.add(followed.watched.key)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for doorbells in self._doorbells:
                selector.register(doorbells, selectors.EVENT_READ)
            while not self._stop:
                try:
                    self._turn(selector)
                except Exception:  # noqa: BLE001 - the thread is the lab's only ear
                    _log.exception("the follower of journals failed and goes on")

    def _turn(self, selector: selectors.BaseSelector) -> None:
        selector.select(max(0.0, self._poll_at - self._monotonic()))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        for doorbells in self._doorbells:
            self._dirty |= doorbells.rings()
        while self._calls:
            self._calls.popleft()()
        now = self._monotonic()
        if now >= self._poll_at:
            everybody = self.all()
            self._poll_at = now + max(POLL, len(everybody) / _LOOKS)
            self._dirty |= {followed.watched.key for followed in everybody}
        if self._dirty and now >= self._hold_until:
            self._tell(now)

    def _tell(self, now: float) -> None:
        keys, self._dirty = self._dirty, set()
        pairs = []
        for key in keys:
            followed = self.find(key)
            if followed is not None and not followed.watched.over and (news := self._news(followed)):
                pairs.append((followed, followed.says, news))
        if not pairs:
            return
        try:
            self._deliver([news for _, _, news in pairs])
        except Exception:  # noqa: BLE001 - after any error of the receiver, its news must not be lost
            _log.exception("news were not taken and are delivered again")
            self._hold_until = now + 1.0
            self._dirty |= keys
            return
        for followed, said, news in pairs:
            followed.watched.delivered(news)
            if followed.says is said:
                followed.says = None

    def _news(self, followed: Followed) -> Observation | None:
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

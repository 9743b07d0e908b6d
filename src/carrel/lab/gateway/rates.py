"""How many requests somebody may make: a bucket of tokens for each, in memory.

A request takes one; the bucket fills again with time. Requests that go on, as event streams do, were counted when they began.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from carrel.core.domain.errors import TooMany
from carrel.core.domain.ports import Clock

#: Buckets that are remembered; full ones are as good as forgotten ones.
_MOST = 20_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Rates:
    """Buckets by name. Thread-safe."""

    def __init__(self, *, rate: float, burst: float, monotonic: Clock) -> None:
        """`rate` requests a second, and `burst` at once; a rate of 0 means no limit."""
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str) -> None:
        """Count one request of `name`'s. Raises `TooMany`, with how long to wait, when there are none left."""
        if self._rate <= 0:
            return
        now = self._monotonic()
        with self._guard:
            bucket = self._buckets.get(name)
            if bucket is None:
                self._forget(now)
                bucket = self._buckets[name] = _Bucket(self._burst, now)
            bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._rate)
            bucket.at = now
            if bucket.left >= 1:
                bucket.left -= 1
                return
            wait = (1 - bucket.left) / self._rate
        raise TooMany(
            f"More than {self._rate:g} requests a second came from here, after {self._burst:g} at once.",
            remedy="Wait a moment and ask less often; event streams tell what happens without asking.",
            retry_after=max(1, int(wait) + 1),
        )

    def _forget(self, now: float) -> None:
        if len(self._buckets) < _MOST:
            return
        full = [name for name, one in self._buckets.items() if one.left + (now - one.at) * self._rate >= self._burst]
        for name in full or list(self._buckets)[: _MOST // 2]:
            del self._buckets[name]

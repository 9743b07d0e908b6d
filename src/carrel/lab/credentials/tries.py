"""How often somebody may be wrong: a number of tries that comes back with time, for each person and each address."""

from __future__ import annotations

import ipaddress
import threading
from dataclasses import dataclass

from carrel.core.domain.errors import TooMany
from carrel.core.domain.ports import Clock

#: Names that are remembered.
_MOST = 20_000


@dataclass(slots=True)
class _Left:
    tries: float
    at: float


class Tries:
    """Tries that are left, by name. In memory; thread-safe."""

    def __init__(self, *, most: int, again: float, monotonic: Clock) -> None:
        """`most` wrong ones at once, and another every `again` seconds."""
        self._most = most
        self._again = again
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._left: dict[str, _Left] = {}

    def take(self, name: str) -> None:
        """Count a try before it is made, so that many at once are counted too. Raises `TooMany`, with how long to wait."""
        now = self._monotonic()
        with self._guard:
            left = self._left.get(name)
            if left is None:
                self._forget(now)
                left = self._left[name] = _Left(self._most, now)
            left.tries, left.at = min(self._most, left.tries + (now - left.at) / self._again), now
            if left.tries >= 1:
                left.tries -= 1
                return
            wait = max(1, int((1 - left.tries) * self._again) + 1)
        raise TooMany(
            f"There were more than {self._most} wrong tries to sign in.",
            remedy=f"Wait {_words(wait)}, then try again. The lab's one-time link works meanwhile; an administrator "
            "helps with `carrel user invite NAME`.",
            retry_after=wait,
        )

    def give_back(self, name: str) -> None:
        """The try was right."""
        with self._guard:
            left = self._left.get(name)
            if left is not None:
                left.tries = min(self._most, left.tries + 1)

    def _forget(self, now: float) -> None:
        if len(self._left) < _MOST:
            return
        full = [name for name, one in self._left.items() if one.tries + (now - one.at) / self._again >= self._most]
        for name in full or list(self._left)[: _MOST // 2]:
            del self._left[name]


def network_of(address: str) -> str:
    """Who one address stands for: itself, or of IPv6 its network of 64 bits, of which one machine has all (RFC 4291, 2.5.1)."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else str(found)


def _words(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"

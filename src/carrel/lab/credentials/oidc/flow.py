"""One sign-in from the button to the provider and back: bound to one browser, good once, for ten minutes.

The lab keeps nothing of those that have begun: what it needs is derived from the browser's cookie and the lab's key. So no
flood of beginnings can push out somebody else's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from carrel.core.domain.errors import Unauthenticated
from carrel.core.domain.ports import Clock

#: Seconds between the button and the way back.
LIFETIME = 600.0
#: Ways back that are remembered, so that none is used twice.
_MOST = 20_000
#: Characters of the path that the browser goes to afterwards.
_LONGEST_PATH = 1500
_AGAIN = "Press the button again."


@dataclass(frozen=True, slots=True)
class Flow:
    """What belongs to one sign-in."""

    #: For the browser alone.
    cookie: str = field(repr=False)
    #: Where the browser goes afterwards.
    after: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @property
    def challenge(self) -> str:
        """What the provider gets of the verifier (RFC 7636, 4.2: S256)."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class Flows:
    """Begins and ends them. Thread-safe."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        """`key`: the lab's secret."""
        self._key = hmac.digest(key, b"carrel sign-in by OpenID Connect", "sha256")
        self._clock = clock
        self._guard = threading.Lock()
        self._used: OrderedDict[bytes, float] = OrderedDict()

    def begin(self, after: str) -> Flow:
        """A new one."""
        after = after if len(after) <= _LONGEST_PATH else "/"
        said = f"{secrets.token_urlsafe(24)}.{int(self._clock() + LIFETIME)}.{_text(after.encode())}"
        return self._flow(f"{said}.{self._derive('cookie', said)}", after)

    def end(self, cookie: str, state: str) -> Flow:
        """The sign-in that this browser began and the provider answers. Raises `Unauthenticated`; never twice for one."""
        said, _, seal = cookie.rpartition(".")
        if not said:
            raise Unauthenticated(f"This browser did not begin that sign-in, or too long ago. {_AGAIN}")
        if not cookie.isascii() or not hmac.compare_digest(seal.encode(), self._derive("cookie", said).encode()):
            raise Unauthenticated(f"This browser did not begin that sign-in. {_AGAIN}")
        _, until, path = said.split(".")
        flow = self._flow(cookie, base64.urlsafe_b64decode(path + "=" * (-len(path) % 4)).decode())
        if not hmac.compare_digest(state.encode("utf-8", "surrogatepass"), flow.state.encode()):
            raise Unauthenticated(
                f"That is the answer to another sign-in than the one that this browser began last. {_AGAIN} "
                "Use one tab of the browser for it."
            )
        now = self._clock()
        if now >= int(until):
            raise Unauthenticated(f"The sign-in took longer than {LIFETIME / 60:.0f} minutes. {_AGAIN}")
        with self._guard:
            if flow.state.encode() in self._used:
                raise Unauthenticated(f"This sign-in was used already. {_AGAIN}")
            while self._used and (len(self._used) >= _MOST or next(iter(self._used.values())) <= now):
                self._used.popitem(last=False)
            self._used[flow.state.encode()] = float(until)
        return flow

    def _flow(self, cookie: str, after: str) -> Flow:
        state, nonce, verifier = (self._derive(name, cookie) for name in ("state", "nonce", "verifier"))
        return Flow(cookie=cookie, after=after, state=state, nonce=nonce, verifier=verifier)

    def _derive(self, name: str, said: str) -> str:
        return _text(hmac.digest(self._key, f"{name}\0{said}".encode(), "sha256"))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

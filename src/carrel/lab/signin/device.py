"""Sign-in of machines without a browser (RFC 8628): the codes, and the answers for a program that asks again and again."""

from __future__ import annotations

import secrets
import threading
from collections import deque

from carrel.core.domain.errors import TooMany
from carrel.core.domain.ports import Clock
from carrel.core.domain.sign_in import Decision, Device
from carrel.lab.signin.refused import Refused

#: Letters of a user code: no vowels, so that no words come about, and none that look like others (RFC 8628, 6.1).
ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
#: Letters of a code: with 20 to choose from some 34 bits, which the limit of wrong tries turns into enough.
_LETTERS = 8
#: Seconds for which a person can approve.
LIFETIME = 600
#: Seconds that a program waits from one question to the next, and how much more when it does not (RFC 8628, 3.5).
INTERVAL, SLOWER = 5, 5
#: Part of the interval by which a question may come too early: clocks and networks are not exact.
_EARLY = 0.2
#: Devices that may wait: of one address, and of all.
OF_ADDRESS, OF_ALL = 100, 5000

#: Wrong codes within `_WINDOW` seconds, of one person and of one address.
_WRONG_OF_PERSON, _WRONG_OF_ADDRESS, _WINDOW = 5, 20, 600.0
#: Names that are counted at once.
_COUNTED = 10_000


def new_user_code() -> str:
    """A code as people see it, such as "WDJB-MJHT"."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(_LETTERS))
    return f"{letters[:4]}-{letters[4:]}"


def read_user_code(text: str) -> str | None:
    """The code that somebody typed, as it was given; None for what cannot be one."""
    letters = "".join(char for char in text[:64].upper() if char not in " -\u2010\u2011\u2013")
    if len(letters) != _LETTERS or any(char not in ALPHABET for char in letters):
        return None
    return f"{letters[:4]}-{letters[4:]}"


def too_early(device: Device, now: float) -> bool:
    """Whether a program asks sooner than it should."""
    return device.polled_at is not None and now - device.polled_at < device.interval * (1 - _EARLY)


def check_poll(device: Device, now: float) -> str:
    """The subject for whom the program gets tokens now. Raises `Refused` with what it has to do (RFC 8628, 3.5)."""
    if device.decision is Decision.DENIED:
        raise Refused("access_denied", "It was refused on the lab's page.")
    if now >= device.expires_at and device.decision is not Decision.TAKEN:
        raise Refused("expired_token", "Nobody approved it in time. Ask for another code.")
    if device.decision is Decision.NONE:
        raise Refused("authorization_pending", "Nobody has approved it yet.")
    if device.decision is Decision.TAKEN or device.subject is None:
        raise Refused("invalid_grant", "The tokens of this device code were handed out already.")
    return device.subject


class WrongTries:
    """Counts wrong user codes, so that nobody can try them all. In memory; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._tries: dict[str, deque[float]] = {}

    def check(self, subject: str, address: str) -> None:
        """Raise `TooMany` when this person, or this address, has to wait before the next try."""
        now = self._clock()
        with self._guard:
            for name, most in self._names(subject, address):
                tries = self._tries.get(name, deque())
                while tries and now - tries[0] >= _WINDOW:
                    tries.popleft()
                if len(tries) >= most:
                    raise TooMany(
                        f"{len(tries)} wrong codes were entered within {_WINDOW / 60:.0f} minutes.",
                        remedy="Wait, and copy the code from the terminal.",
                        retry_after=int(tries[0] + _WINDOW - now) + 1,
                    )

    def note(self, subject: str, address: str) -> None:
        """Count a wrong one."""
        now = self._clock()
        with self._guard:
            if len(self._tries) >= _COUNTED:
                self._tries = {name: tries for name, tries in self._tries.items() if tries and now - tries[-1] < _WINDOW}
            for name, _most in self._names(subject, address):
                self._tries.setdefault(name, deque()).append(now)

    @staticmethod
    def _names(subject: str, address: str) -> tuple[tuple[str, int], ...]:
        return (f"person {subject}", _WRONG_OF_PERSON), (f"address {address}", _WRONG_OF_ADDRESS)

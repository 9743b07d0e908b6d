"""Which passwords are good, and how they are kept: by Argon2id (RFC 9106), with the parameters of argon2-cffi."""

from __future__ import annotations

import secrets
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from carrel.core.domain.errors import Invalid, TooMany

#: Characters at least (NIST SP 800-63B-4, 3.1.1.2, asks for 15 where there is no second factor, and for 8 with one).
SHORTEST = 12
#: Bytes at most, in UTF-8 after normalisation: what is hashed is bounded.
LONGEST = 1024
#: What must be left of a password beside the user's name and the lab's.
_BESIDE_NAMES = 8
#: Different characters at least.
_DIFFERENT = 5
#: Seconds that a hash may wait for its turn.
_PATIENCE = 10.0


def normal(password: str) -> str:
    """The password as it is hashed: NFKC (NIST SP 800-63B-4, 3.1.1.2), so that two keyboards give the same."""
    return unicodedata.normalize("NFKC", password)


def check_new(password: str, *names: str) -> str:
    """Return a new password as it is hashed. Raises `Invalid` for one that is too short, too long, or made of `names`."""
    if len(password) > LONGEST:
        raise Invalid(f"The password has more than {LONGEST} characters.", remedy="Choose a shorter one.")
    text = normal(password)
    size = len(text.encode("utf-8", "surrogatepass"))
    if len(text) < SHORTEST:
        raise Invalid(
            f"The password has {len(text)} characters.",
            remedy=f"Choose one of {SHORTEST} or more: unrelated words, or what a password manager makes.",
        )
    if size > LONGEST:
        raise Invalid(f"The password has {size} bytes.", remedy=f"Choose one of {LONGEST} or fewer.")
    if "\0" in text:
        raise Invalid("The password has a zero byte.", remedy="Leave it out.")
    if len(set(text)) < _DIFFERENT:
        raise Invalid(f"The password has {len(set(text))} different characters.", remedy=f"Use {_DIFFERENT} or more.")
    rest = text.casefold()
    for name in sorted({normal(name).casefold() for name in (*names, "carrel") if len(name) > 1}, key=len, reverse=True):
        rest = rest.replace(name, "")
    if len(rest) < _BESIDE_NAMES:
        raise Invalid("The password is little more than your name or the lab's.", remedy="Choose one that others cannot guess.")
    return text


class Hashes:
    """Makes and checks hashes, at most a few at once: each takes some 64 MiB and 50 ms of several processors. Thread-safe."""

    def __init__(self, *, at_once: int = 2, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turns = threading.BoundedSemaphore(at_once)
        self._guard = threading.Lock()
        self._nobodys: str | None = None

    def make(self, password: str) -> str:
        """The hash of a password that `check_new` gave. Raises `TooMany` when too many ask at once."""
        with self._turn():
            return self._hasher.hash(password.encode("utf-8", "surrogatepass"))

    def matches(self, known: str | None, password: str) -> bool:
        """Whether the password is the one of the hash. Where there is none it takes as long, and is False."""
        tried = normal(password[: LONGEST + 1]).encode("utf-8", "surrogatepass")
        with self._turn():
            with self._guard:
                if self._nobodys is None:  # the first sign-in waits for it, known or not
                    self._nobodys = self._hasher.hash(secrets.token_bytes(32))
            try:
                self._hasher.verify(known or self._nobodys, tried[: LONGEST + 1])
            except (VerificationError, InvalidHashError):
                return False
        return known is not None and len(tried) <= LONGEST

    def is_weak(self, known: str) -> bool:
        """Whether the hash was made with other parameters than are used now."""
        return self._hasher.check_needs_rehash(known)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._turns.acquire(timeout=_PATIENCE):
            raise TooMany("Too many people sign in at this moment.", remedy="Try again in a moment.", retry_after=5)
        try:
            yield
        finally:
            self._turns.release()

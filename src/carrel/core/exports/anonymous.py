"""Numbers in the place of names. Without the key nobody can find out a name by trying names."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

from carrel.core.domain.exported_attempt import ExportedAttempt

#: So that each number is exact in programs that read numbers as floating point.
_BITS = 53


class Numbers:
    """One key's numbers: the same name of the same kind always has the same one."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[tuple[str, str], int] = {}

    def number(self, kind: str, name: str) -> int:
        """The number of a user, an account, and so on; 1 or more. Two names share one about once in 10¹⁶."""
        found = self._known.get((kind, name))
        if found is None:
            words = f"{kind}\0{name}".encode("utf-8", errors="surrogatepass")
            digest = hmac.new(self._key, words, hashlib.sha256).digest()
            found = self._known[kind, name] = (int.from_bytes(digest[:8], "big") >> (64 - _BITS)) or 1
        return found


def anonymous(attempt: ExportedAttempt, numbers: Numbers) -> ExportedAttempt:
    """The attempt with numbers in the place of user, account, job name and node. Everything else is as it was."""
    return replace(
        attempt,
        owner=str(numbers.number("user", attempt.owner)),
        account=str(numbers.number("account", attempt.account)),
        name=str(numbers.number("name", attempt.name)),
        node=str(numbers.number("node", attempt.node)) if attempt.node else "",
    )

"""What can go wrong between the lab and its provider, in words for the lab's log."""

from __future__ import annotations


class ProviderFailed(Exception):
    """The provider gave no answer that the lab can use. `str()` has no token, code or secret in it."""


class Rejected(Exception):
    """An ID token is not what the lab asked for. `str()` says which check it failed, and holds nothing of the token's secrets."""


class Refused(Exception):
    """The provider says no: an error code of RFC 6749 (4.1.2.1, 5.2) or OpenID Connect Core (3.1.2.6)."""

    def __init__(self, code: str, description: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.description = description


def shown(text: object, most: int = 200) -> str:
    """What somebody else said, fit for one line of a log."""
    plain = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 4 * most])
    return " ".join(plain.split())[:most]

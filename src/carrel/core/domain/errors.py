"""One error tree, by what the reader should do.

Every message gives the fact, the value and the remedy. The gateway maps these classes to HTTP in one place, the command
line to exit codes in another; nothing else needs to know about either.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\[Errno -?\d+\] ")


def in_words(error: BaseException) -> str:
    """Return why something failed as the end of a sentence: "connection refused", never "[Errno 111] Connection refused".

    A file that it is about is named as the system names it.
    """
    unsaid = "no answer came in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = _NUMBER.sub("", str(error)).rstrip(".") or unsaid
    return text[:1].lower() + text[1:] if text[1:2].islower() and " " in text else text


class CarrelError(Exception):
    """An error with a message for a person.

    `message` is the fact with its value; `remedy` is what the reader can do about it (may be empty).
    """

    #: Stable identifier of the class, used in the wire format (RFC 9457 `type`).
    code = "error"

    def __init__(self, message: str, *, remedy: str = "", details: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class Invalid(CarrelError):
    """What was asked is wrong in itself: correct it and ask again."""

    code = "invalid"


class Impossible(Invalid):
    """Well formed, but this lab can never do it; `remedy` says what would fit."""

    code = "impossible"


class TooLarge(Invalid):
    """What was sent is larger than this lab takes: send less."""

    code = "too_large"


class Unauthenticated(CarrelError):
    """Nobody is signed in: sign in and ask again."""

    code = "unauthenticated"


class Denied(CarrelError):
    """Somebody is signed in who may not do this: ask an administrator."""

    code = "denied"


class Misdirected(CarrelError):
    """The request is for a name that is not the lab's: use its own address."""

    code = "misdirected"


class NotFound(CarrelError):
    """It does not exist, or is not the caller's to see; the two are not told apart."""

    code = "not_found"


class Conflict(CarrelError):
    """It was possible once but not in the present state: look again."""

    code = "conflict"


class Unavailable(CarrelError):
    """The lab cannot do it now: try again later."""

    code = "unavailable"


class StorageFull(Unavailable):
    """A disk or a quota is full; nothing was written."""

    code = "storage_full"


class TooMany(Unavailable):
    """Somebody asks more often than the lab allows: wait `retry_after` seconds."""

    code = "too_many"

    def __init__(self, message: str, *, remedy: str = "", details: dict[str, object] | None = None, retry_after: int = 1) -> None:
        super().__init__(message, remedy=remedy, details=details)
        self.retry_after = retry_after


_BY_CODE = {
    cls.code: cls
    for cls in (
        Invalid,
        Impossible,
        TooLarge,
        Unauthenticated,
        Denied,
        Misdirected,
        NotFound,
        Conflict,
        Unavailable,
        StorageFull,
        TooMany,
    )
}


def class_of(code: str, unknown: type[CarrelError] = CarrelError) -> type[CarrelError]:
    """Return the class with this `code`, which another process has sent; `unknown` for a code that is not known here."""
    return _BY_CODE.get(code, unknown)

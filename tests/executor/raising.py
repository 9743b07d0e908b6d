"""Exceptions of many kinds, which tests raise in workers; the module travels."""

from __future__ import annotations

import sys
import threading
from typing import Any


class TwoArguments(Exception):
    """Takes other arguments than it has."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class KeywordOnly(Exception):
    """Cannot be made of its `args`."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}:{detail}")
        self.detail = detail


class Doubled(ValueError):
    """Would say a part of its words twice if it were made of its `args`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"because of {why}")


class OfTheSystem(OSError):
    """One whose base reads the arguments itself."""

    def __init__(self, place: str) -> None:
        super().__init__(28, "no room", place)


class WithASlot(Exception):
    """One without a place in its dictionary."""

    __slots__ = ("reason",)

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Frozen(Exception):
    """One that lets no attribute be set but those of Python, as attrs makes them."""

    def __init__(self, reason: str, code: int = 4) -> None:
        super().__init__(f"{reason} {code}")
        object.__setattr__(self, "reason", reason)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__"):
            raise AttributeError(f"cannot assign to {name}")
        super().__setattr__(name, value)


class Group(ExceptionGroup[Exception]):
    """A group that makes its own words."""

    def __new__(cls, errors: list[Exception]) -> Group:
        return super().__new__(cls, f"{len(errors)} together", errors)


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.lock = threading.Lock()


class LiesAboutItsType(Exception):
    """Pretends to be another one."""

    def __reduce__(self) -> Any:
        return ValueError, ("lie",)


class IsNoException(Exception):
    """Pretends to be none."""

    def __reduce__(self) -> Any:
        return str, ("lie",)


class ForgetsItsWords(Exception):
    """Arrives without what it said."""

    def __reduce__(self) -> Any:
        return type(self), ()


class CannotBeSaid(Exception):
    """Raises when it is asked for its words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises(error: BaseException) -> None:
    """Raise it."""
    raise error


def raises_one(name: str, *args: Any, **options: Any) -> None:
    """Make it there and raise it."""
    raise globals()[name](*args, **options)


def raises_another_for(first: str) -> None:
    """One exception is the cause of the next."""
    try:
        raise KeyError(first)
    except KeyError as error:
        second = ValueError("second")
        second.add_note("a note")
        raise second from error


class EndsWhoReadsIt:
    """Its unpickling ends the process."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)

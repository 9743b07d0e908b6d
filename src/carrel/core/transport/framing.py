"""Where one message ends and the next begins in a stream of bytes. Pure: bytes in, messages out.

A frame is a line: some bytes and a newline. Where a protocol says so, raw bytes follow it (`Incoming.exactly`). A JSON object has
no newline inside when `json.dumps` wrote it, so it is a line as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

#: Values in one JSON object, about: each costs a hundred times its two bytes in memory.
_MOST_VALUES = 2_500_000


class Ended(Exception):
    """The conversation is over: no message comes any more. The subclasses say why."""


class Closed(Ended):
    """The other side closed the connection after a whole message, or is gone."""


class Torn(Closed):
    """The other side closed the connection, or died, in the middle of a message."""


class TooLong(Ended):
    """A message is longer than the protocol allows. Where the next one would begin is not known."""


class Garbled(ValueError):
    """A frame holds no JSON object. The frames after it can still be read."""


class Framing(Protocol[T_co]):
    """Puts messages together from the pieces in which they arrive."""

    def feed(self, data: bytes) -> Iterator[T_co]:
        """Yield what is complete with `data`. Raises `TooLong`, also while a message is incomplete."""

    @property
    def midway(self) -> bool:
        """True when a part of a message has come and its rest has not."""


class Incoming:
    """The bytes that have come and that no message has taken yet."""

    def __init__(self, longest: int) -> None:
        """`longest`: bytes of a line at most, without its newline."""
        self._longest = longest
        self._data = bytearray()
        self._looked = 0

    def add(self, data: bytes) -> None:
        """These bytes have come."""
        self._data += data

    def __len__(self) -> int:
        return len(self._data)

    def line(self) -> bytes | None:
        """Take a line, without its newline; None when it is not complete. Raises `TooLong`."""
        end = self._data.find(b"\n", self._looked)
        self._looked = size = len(self._data) if end < 0 else end
        if size > self._longest:
            raise TooLong(f"a message is longer than {self._longest} bytes")
        return None if end < 0 else self._take(end, end + 1)

    def exactly(self, size: int) -> bytes | None:
        """Take so many bytes; None when fewer have come."""
        return None if len(self._data) < size else self._take(size, size)

    def _take(self, size: int, end: int) -> bytes:
        taken = bytes(self._data[:size])
        del self._data[:end]
        self._looked = 0
        return taken


class Lines:
    """A framing: every line is a message. Empty lines are none."""

    def __init__(self, longest: int) -> None:
        """`longest`: bytes of a message at most."""
        self._incoming = Incoming(longest)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete with `data`, without their newlines. Raises `TooLong`."""
        self._incoming.add(data)
        while (line := self._incoming.line()) is not None:
            if line:
                yield line

    @property
    def midway(self) -> bool:
        """True when a part of a line has come."""
        return len(self._incoming) > 0


def object_line(fields: Mapping[str, Any]) -> bytes:
    """Return the line of a JSON object, with its newline."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line. Raises `Garbled`, which quotes nothing: a token may be on the line."""
    if line.count(b",") + line.count(b"[") + line.count(b"{") > _MOST_VALUES:
        raise Garbled(f"the message has more than {_MOST_VALUES} values")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"the message is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Garbled("the message is no JSON object")
    return found

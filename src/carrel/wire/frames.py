"""Frames: a header in JSON and a body of any size, one after the other, in both directions. Standard library only: it travels.

A frame is four bytes with the length of its header (big endian), the header, and as many bytes as its `size` says.
"""

from __future__ import annotations

import json
import struct
from typing import Any

#: Longest header.
LONGEST = 64 * 1024


class Malformed(ValueError):
    """What came is not a frame."""


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a frame whose body is at hand."""
    return head(header, len(body)) + body


def head(header: dict[str, Any], size: int) -> bytes:
    """Return the bytes of a frame up to its body of `size` bytes."""
    text = json.dumps({**header, "size": size}, separators=(",", ":")).encode()
    return struct.pack(">I", len(text)) + text


class Decoder:
    """Takes bytes as they come and gives ("frame", header), ("data", piece) and ("end", None), in this order for each frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left: int | None = None

    @property
    def between(self) -> bool:
        """True when what came ends with a whole frame."""
        return self._left is None and not self._buffer

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        """Return what is whole with `data`. Raises `Malformed`."""
        found: list[tuple[str, Any]] = []
        if self._left and not self._buffer and len(data) <= self._left:
            # The middle of a large body: nothing is copied.
            self._left -= len(data)
            found.append(("data", data))
            if self._left or not data:
                return found
            self._left = None
            return [*found, ("end", None)]
        self._buffer += data
        while True:
            if self._left is None:
                header = self._header()
                if header is None:
                    return found
                self._left = header["size"]
                found.append(("frame", header))
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            if piece:
                self._left -= len(piece)
                found.append(("data", piece))
            if self._left:
                return found
            self._left = None
            found.append(("end", None))

    def _header(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack_from(">I", self._buffer)
        if length > LONGEST:
            raise Malformed(f"A header of {length} bytes; the longest has {LONGEST}.")
        if len(self._buffer) < 4 + length:
            return None
        text = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            header = json.loads(text)
        except ValueError:
            raise Malformed("The header is no JSON.") from None
        if not isinstance(header, dict) or type(header.get("size")) is not int or header["size"] < 0:
            raise Malformed("The header is no JSON object with a size from 0 on.")
        return header

"""The lines between the lab and a deputy: a JSON object and a newline, then as many raw bytes as its `bytes` says.

Neither end believes the other further than it must, so sizes have limits, and all that is no frame ends the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Observation
from carrel.core.domain.serial import from_plain
from carrel.core.spool import entry_from_plain, entry_to_plain
from carrel.core.transport.framing import Garbled, Incoming, TooLong, object_line, object_of

#: The form of the conversation. Lab and deputy have to agree on it; after an update both are started anew.
VERSION = 1
#: Bytes of raw data in one frame at most.
CHUNK = 256 * 1024
#: Bytes of a JSON line at most: the names of very many outputs.
_LONGEST = 64 * 1024**2


class NotAFrame(CarrelError):
    """What came is no frame: the other side is not what it should be."""

    code = "not_a_frame"


class Signer(Protocol):
    """Signs in the name of the lab."""

    #: By which everybody can check it (hexadecimal).
    public: str

    def sign(self, message: bytes) -> str:
        """Return the signature, hexadecimal."""


def frame(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    assert len(data) <= CHUNK
    return object_line({**head, "bytes": len(data)} if data else head) + data


class FrameReader:
    """Puts frames together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._incoming = Incoming(_LONGEST)
        self._head: dict[str, Any] | None = None

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield what is complete with `data`. Raises `NotAFrame`."""
        self._incoming.add(data)
        while True:
            if self._head is None:
                try:
                    line = self._incoming.line()
                except TooLong as error:
                    raise NotAFrame(f"A line of more than {_LONGEST} bytes came.") from error
                if line is None:
                    return
                self._head = _head(line)
            body = self._incoming.exactly(self._head.get("bytes", 0))
            if body is None:
                return
            head, self._head = self._head, None
            yield head, body

    @property
    def midway(self) -> bool:
        """True when a part of a frame has come."""
        return self._head is not None or len(self._incoming) > 0


def _head(line: bytes) -> dict[str, Any]:
    try:
        head = object_of(line)
    except Garbled:
        head = {}
    size = head.get("bytes", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= CHUNK or not isinstance(head.get("is"), str):
        raise NotAFrame(f"This came where a frame was expected: {line[:200].decode(errors='replace')!r}.")
    return head


def observation_to_plain(observation: Observation) -> dict[str, Any]:
    """Return news as JSON has them."""
    return {
        "job_id": observation.job_id,
        "attempt": observation.attempt,
        "entries": [entry_to_plain(entry.at, entry.record) for entry in observation.entries],
        "offset": observation.offset,
        "beside": observation.beside,
        "log_size": observation.log_size,
        "gone": observation.gone,
        "unbegun": observation.unbegun,
    }


def observation_from_plain(plain: Mapping[str, Any]) -> Observation:
    """Return the news that `observation_to_plain` wrote; raise `KeyError`, `ValueError` or `TypeError` on anything else."""
    return Observation(
        job_id=from_plain(int, plain["job_id"]),
        attempt=from_plain(int, plain["attempt"]),
        entries=tuple(entry_from_plain(entry) for entry in plain["entries"]),
        offset=from_plain(int, plain["offset"]),
        beside=from_plain(bool, plain["beside"]),
        log_size=None if plain["log_size"] is None else from_plain(int, plain["log_size"]),
        gone=from_plain(bool, plain["gone"]),
        unbegun=from_plain(bool, plain.get("unbegun", False)),
    )

"""A job's log on standard output, byte for byte, while it is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from carrel.core.domain.errors import Unavailable

if TYPE_CHECKING:
    from carrel.client import Client

#: What stands in an event for bytes that are no text.
_REPLACED = "\ufffd"
#: Bytes of the log's end that are kept.
_TAIL = 16384


class Transcript:
    """Writes what the log events of one job bring.

    Events carry text. Where a log is not UTF-8 they cannot say which bytes there were: from there on, until the attempt's
    end, the bytes themselves are fetched, and an event only tells that there are more.
    """

    def __init__(self, client: Client, job_id: int) -> None:
        self._client = client
        self._job_id = job_id
        #: Where to go on fetching bytes; None while the events' text is exact.
        self._fetched: int | None = None
        #: The attempt whose log is being written; 0 before the first.
        self.attempt = 0
        #: True when what was written last did not end a line.
        self.midline = False
        #: The last that was written.
        self.tail = b""

    def write(self, data: Mapping[str, Any]) -> None:
        """Write what one log event brings."""
        text = str(data.get("text", ""))
        if self._fetched is None and _REPLACED in text:
            self._fetched = int(data.get("offset", 0))
        if self._fetched is None:
            self._put(text.encode())
            return
        with suppress(Unavailable):  # a lab that is away for a moment: the next event, or the end, brings it
            self._fetch()

    def begin(self, attempt: int) -> None:
        """What follows is of this attempt."""
        self.finish()
        self.attempt, self._fetched = attempt, None

    def end_line(self) -> None:
        """What others say next on the terminal begins on a line of its own."""
        if self.midline:
            print(file=sys.stderr, flush=True)
            self.midline = False

    def finish(self) -> None:
        """Write what is missing of the attempt's log, which does not grow any more."""
        if self._fetched is not None:
            self._fetch()

    def _fetch(self) -> None:
        for piece in self._client.log(self._job_id, attempt=self.attempt or None, offset=self._fetched or 0):
            self._put(piece)
            self._fetched = (self._fetched or 0) + len(piece)

    def _put(self, piece: bytes) -> None:
        if piece:
            self.midline = not piece.endswith(b"\n")
            self.tail = (self.tail + piece)[-_TAIL:]
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()

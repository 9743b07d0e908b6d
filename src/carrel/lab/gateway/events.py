"""From rows of the event table to what goes over the wire; plain code that a thread runs, no waiting in it.

A log event in the table only says which bytes of the log are new; here the text is read from the attempt's log file. The
text of an event depends on the file and the event alone, never on what was sent before, so that a client which comes
back with ``Last-Event-ID`` misses nothing: a character that is cut in two at the end of an event belongs to the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from carrel.core.control.event_ports import Event
from carrel.core.control.lab import Lab
from carrel.core.control.storage import StorageWatch
from carrel.core.domain.job import JobState
from carrel.core.domain.ports import Clock
from carrel.core.domain.storage import Room
from carrel.core.domain.user import Caller
from carrel.wire.v1 import EventPage, EventView

#: Most bytes of log in one message.
LOG_PIECE = 64 * 1024
#: A read ends after about this much, so that no stream keeps a thread for long.
_READ_BYTES = 256 * 1024
_READ_EVENTS = 200
_REPLACED = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events somebody wants."""

    #: Only with larger ids.
    after: int
    #: None: of all jobs that the caller may see.
    job_id: int | None = None
    #: None: of every type.
    types: frozenset[str] | None = None
    #: False: the caller may see the job, and not read its log.
    log: bool = True

    def wants(self, event: Event) -> bool:
        """True when the event is of a type that is wanted."""
        return (self.types is None or event.type in self.types) and (self.log or event.type != "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text of a log event."""

    text: str
    #: Bytes [offset, end) of the log.
    offset: int
    end: int


def boundary(data: bytes, position: int) -> int:
    """`position`, or up to 3 bytes before it when a UTF-8 character that may be whole one day is cut there (RFC 3629)."""
    for back in range(1, min(4, position + 1)):
        byte = data[position - back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # inside a character: its first byte is further left
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b1_1110 else 1
        return position - back if length > back else position
    return position


def log_pieces(lab: Lab, caller: Caller, event: Event) -> Iterator[Piece]:
    """The text of one log event, at most `LOG_PIECE` bytes at a time."""
    first, end = int(event.data["offset"]), int(event.data["size"])
    position, aligned = first, False
    while position < end:
        # Three bytes to the left are enough to see whether a character is cut at the left edge.
        start = max(0, position - 3)
        stop = min(position + LOG_PIECE, end)
        chunk = lab.produced.log_range(caller, event.job_id, attempt=int(event.data["attempt"]), offset=start, limit=stop - start)
        if chunk.offset != start or start + len(chunk.data) <= position:
            return  # the file is gone or shorter than it was
        left = position if aligned else start + boundary(chunk.data, position - start)
        right = start + boundary(chunk.data, len(chunk.data))
        if right > left:
            text = chunk.data[left - start : right - start].decode("utf-8", "replace")
            yield Piece(text=text, offset=left, end=right)
        if start + len(chunk.data) >= end or right <= position:
            return
        position, aligned = right, True


def view(event: Event, data: Mapping[str, Any] | None = None) -> EventView:
    """The event as the wire has it; `data` replaces its own."""
    fields = dict(event.data if data is None else data)
    if isinstance(fields.get("estimated_start"), (int, float)):
        fields["estimated_start"] = datetime.fromtimestamp(fields["estimated_start"], UTC).isoformat()
    at = datetime.fromtimestamp(event.at, UTC)
    return EventView.model_validate({"id": event.id, "at": at, "job_id": event.job_id, "type": event.type, "data": fields})


def log_view(event: Event, piece: Piece, *, more: bool) -> EventView:
    """A piece of a log event; `more` says that it is not the last one."""
    data = {"attempt": event.data["attempt"], "offset": piece.offset, "text": piece.text}
    return view(event, {**data, "more": True} if more else data)


def encode(shown: EventView, *, with_id: bool = True) -> bytes:
    """One message of a stream (WHATWG HTML, server-sent events)."""
    name = f"id: {shown.id}\n" if with_id else ""
    return f"{name}event: {shown.type}\ndata: {shown.model_dump_json()}\n\n".encode()


def page(lab: Lab, caller: Caller, which: EventFilter, limit: int) -> EventPage:
    """Events after a given id. Of a long log event only the first piece; ``more`` then says so, the log has the rest."""
    views: list[EventView] = []
    last, size = which.after, 0
    for event in lab.events(caller, after=which.after, job_id=which.job_id, limit=limit):
        last = event.id
        if not which.wants(event):
            continue
        shown = view(event)
        if event.type == "log":
            pieces = log_pieces(lab, caller, event)
            piece = next(pieces, Piece(text="", offset=event.data["offset"], end=event.data["offset"]))
            shown = log_view(event, piece, more=next(pieces, None) is not None)
        views.append(shown)
        size += len(str(shown.data))
        if size > 4 * _READ_BYTES:
            break
    return EventPage(events=views, last=last)


class Reader:
    """Reads one stream, piece by piece. Each call may run in another thread, one after the other."""

    def __init__(self, lab: Lab, caller: Caller, which: EventFilter) -> None:
        self._lab = lab
        self._caller = caller
        self._which = which
        self._job_id = which.job_id
        self._after = which.after
        self._pending: deque[Event] = deque()
        self._full = False
        self._pieces: Iterator[Piece] | None = None
        self._ahead: Piece | None = None
        #: Where the log text that was sent ends, and where the log itself did: (attempt, sent, size).
        self._log: tuple[int, int, int] | None = None
        #: True when the last event of the job's life has been read (streams of one job only).
        self.finished = False

    def read(self) -> bytes:
        """The next messages, about `_READ_BYTES` at most; empty when there is nothing new now."""
        parts: list[bytes] = []
        size = 0
        if not self._pending:
            self._fetch()
        while self._pending and size < _READ_BYTES and not self.finished:
            message = self._next()
            parts.append(message)
            size += len(message)
        return b"".join(parts)

    @property
    def behind(self) -> bool:
        """True when there may be more to read at once."""
        return bool(self._pending) or self._full

    def _fetch(self) -> None:
        events = self._look()
        if not events and self._job_id is not None and self._lab.job(self._caller, self._job_id).state.ended:
            # Asked after the job was seen to be over: what is missing now will never come.
            events = self._look()
            self.finished = not events
        self._pending.extend(events)
        self._full = len(events) == _READ_EVENTS
        if events:
            self._after = events[-1].id

    def _look(self) -> Sequence[Event]:
        return self._lab.events(self._caller, after=self._after, job_id=self._job_id, limit=_READ_EVENTS)

    def _next(self) -> bytes:
        event = self._pending[0]
        if event.type == "log" and self._which.wants(event):
            return self._next_of_log(event)
        self._pending.popleft()
        message = encode(view(event)) if self._which.wants(event) else b""
        if event.type == "state" and self._job_id is not None and JobState(event.data["state"]).ended:
            self.finished = True
            message = self._cut_character(event) + message
        return message

    def _next_of_log(self, event: Event) -> bytes:
        if self._pieces is None:
            self._pieces = log_pieces(self._lab, self._caller, event)
            self._ahead = next(self._pieces, None)
        piece, following = self._ahead, next(self._pieces, None)
        self._ahead = following
        if following is None:
            self._pending.popleft()
            self._pieces = None
        if piece is None:
            return b""
        self._log = (int(event.data["attempt"]), piece.end, int(event.data["size"]))
        # Only the last piece names the event: who loses the connection before it gets the whole event again.
        return encode(log_view(event, piece, more=following is not None), with_id=following is None)

    def _cut_character(self, event: Event) -> bytes:
        """The log of an ended job may end inside a character; it will not be completed any more."""
        if self._log is None or self._log[1] == self._log[2]:
            return b""
        attempt, sent, _ = self._log
        data = {"attempt": attempt, "offset": sent, "text": _REPLACED}
        shown = view(event, data).model_copy(update={"type": "log"})
        return encode(shown, with_id=False)


class StorageNews:
    """Tells one stream of disks that run full, and of room again. No event of the table: on a full disk nothing is written."""

    def __init__(self, storage: StorageWatch, which: EventFilter, clock: Clock) -> None:
        self._storage = storage
        self._which = which
        self._clock = clock
        self._told = Room.OK

    def read(self) -> bytes:
        """The message when something has changed since the last one, else nothing."""
        short = self._storage.short()
        room = Room.OK if short is None else short.room
        if room is self._told or not (self._which.types is None or "storage" in self._which.types):
            return b""
        self._told = room
        message = "The lab's disks have room again." if short is None else short.message
        shown = EventView(
            id=0,
            at=datetime.fromtimestamp(self._clock(), UTC),
            job_id=self._which.job_id or 0,
            type="storage",
            data={"room": room.value, "message": message},
        )
        return encode(shown, with_id=False)

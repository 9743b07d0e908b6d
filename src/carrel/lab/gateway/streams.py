"""Server-sent events: many streams, one wake-up, no polling, and no thread for a stream that waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import to_thread
from starlette.responses import StreamingResponse

from carrel.core.control.event_ports import Event
from carrel.core.control.lab import Lab
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.user import Caller, Role, User
from carrel.core.policy.access import Action, Resource, allowed
from carrel.lab.gateway.events import EventFilter, Reader, StorageNews
from carrel.lab.gateway.gate import Grant

log = logging.getLogger("carrel.lab.gateway")

T = TypeVar("T")

#: Sees every event, to know whom to wake; what a stream then reads, it reads as its own caller.
_DISPATCHER = Caller(user=User(subject="", name="event stream", role=Role.ADMIN))
_PAGE = 500
#: Longest pause between two looks of a long poll.
_LOOK_SECONDS = 0.5
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    """Somebody who waits for events."""

    caller: Caller
    which: EventFilter
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    #: Owners whose events the caller reads, or not, as was found: thousands of listeners are asked about each event.
    reads: dict[str, bool] = field(default_factory=dict)

    def wants(self, event: Event) -> bool:
        """True when the event may matter to this listener; the last state of a job always does."""
        if self.which.job_id is None:
            return self.which.wants(event) and self._reads(event.owner)
        return self.which.job_id == event.job_id and (event.type == "state" or self.which.wants(event))

    def _reads(self, owner: str) -> bool:
        known = self.reads.get(owner)
        if known is None:
            known = self.reads[owner] = bool(allowed(self.caller, Action.READ_JOB, Resource(owner=owner)))
        return known


class Doorbell:
    """Wakes listeners when there are events for them. Woken without need is harmless, so when in doubt it wakes all."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._listeners: set[Listener] = set()
        self._news = asyncio.Event()
        #: Events up to here have been looked at; None after a time without listeners.
        self._seen: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = False
        self.closing = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Dispatch until the end of the block."""
        self._loop = asyncio.get_running_loop()
        unsubscribe = self._lab.subscribe(self._ring)
        unsubscribe_storage = self._lab.storage.subscribe(self._ring_all)
        # Who was let in with what is void now is put out at once, and not at the next sign of life.
        unsubscribe_tokens = self._lab.tokens.subscribe(self._ring_all)
        task = asyncio.create_task(self._dispatch())
        try:
            yield
        finally:
            unsubscribe()
            unsubscribe_storage()
            unsubscribe_tokens()
            self.close()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def close(self) -> None:
        """End all streams; any thread may call it. A server that stops would else wait for them for ever."""
        self.closing = True
        self._ring_all()

    @contextlib.contextmanager
    def listen(self, caller: Caller, which: EventFilter) -> Iterator[Listener]:
        """Be woken during the block."""
        listener = Listener(caller=caller, which=which)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def _ring(self) -> None:
        # Called in the thread that wrote the events, at every commit: rings that nobody has answered are one ring.
        if self._rung or self._loop is None:
            return
        self._rung = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answer)

    def _ring_all(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._wake_all)

    def _answer(self) -> None:
        self._rung = False
        self._news.set()

    def _wake_all(self) -> None:
        for listener in self._listeners:
            listener.bell.set()

    async def _dispatch(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if not self._listeners:
                self._seen = None
                continue
            try:
                await self._wake_those_concerned()
            except CarrelError as error:
                log.warning("events cannot be read, all streams look for themselves: %s", error)
                self._seen = None
                self._wake_all()

    async def _wake_those_concerned(self) -> None:
        if self._seen is None:
            self._seen = await to_thread.run_sync(self._lab.last_event_id)
            self._wake_all()
            return
        events = await to_thread.run_sync(self._read_new, self._seen)
        if events:
            self._seen = events[-1].id
        if len(events) == _PAGE:
            self._wake_all()
            self._news.set()
            return
        for listener in self._listeners:
            if not listener.bell.is_set() and any(listener.wants(event) for event in events):
                listener.bell.set()

    def _read_new(self, after: int) -> Sequence[Event]:
        return self._lab.events(_DISPATCHER, after=after, limit=_PAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Makes event streams."""

    lab: Lab
    doorbell: Doorbell
    #: Seconds between comments on an idle stream.
    heartbeat: float

    def response(self, grant: Grant, which: EventFilter) -> StreamingResponse:
        """A stream of events. The caller has checked that the job is the grant's to see."""
        return StreamingResponse(self._messages(grant, which), media_type="text/event-stream", headers=_HEADERS)

    async def _messages(self, grant: Grant, which: EventFilter) -> AsyncIterator[bytes]:
        reader = Reader(self.lab, grant.caller, which)

        def read() -> bytes:
            grant.recheck()  # nothing goes out after the token was revoked
            return reader.read()

        room = StorageNews(self.lab.storage, which, self.lab.clock)
        with self.doorbell.listen(grant.caller, which) as listener:
            yield b"retry: 1000\n\n"
            while not self.doorbell.closing:
                listener.bell.clear()
                if told := room.read():
                    yield told
                try:
                    data = await to_thread.run_sync(read)
                except CarrelError as error:
                    log.info("an event stream of %s ends: %s", grant.caller.user.subject, error)
                    return
                if data:
                    yield data
                if reader.finished:
                    return
                if not reader.behind and not await _rings(listener.bell, self.heartbeat):
                    yield b": still here\n\n"

    async def poll(self, caller: Caller, job_id: int, seconds: float, look: Callable[[], T | None]) -> T | None:
        """What `look` finds, as soon as it finds something, or None after `seconds`. No thread is held meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self.doorbell.listen(caller, EventFilter(after=0, job_id=job_id)) as listener:
            while True:
                listener.bell.clear()
                found = await to_thread.run_sync(look)
                left = deadline - loop.time()
                if found is not None or left <= 0 or self.doorbell.closing:
                    return found
                # A run that tracking makes is no event of the job's: look again now and then.
                await _rings(listener.bell, min(left, _LOOK_SECONDS))


async def _rings(bell: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(bell.wait(), seconds)
    except TimeoutError:
        return False
    return True

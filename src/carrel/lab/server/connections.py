"""Connections to the lab's port: no client takes all places by saying nothing, or by saying it slowly.

uvicorn has a deadline between two requests and none within one, so connections whose heads or bodies never end would take every
descriptor that the lab may have. Addresses tell nothing here: each job on the machine, and each client behind a proxy, has the
same one.
"""

from __future__ import annotations

from asyncio import Transport
from asyncio.events import TimerHandle
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds in which the head of a request has to come; and in which `_BYTES` of its body have to, so that a slow line goes on.
HEAD, BODY = 15.0, 60.0
_BYTES = 4096
#: Connections at most; half of the descriptors stay for files, sockets and processes.
MOST = 4096


def patient_protocol(most: int, *, head: float = HEAD, body: float = BODY) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol with deadlines, for a server with `most` connections.

    With more of them the one ends that has waited longest without a request under way; without such a one, the newest.
    """
    #: Connections without a request under way, the one that has waited longest first.
    waiting: dict[HttpToolsProtocol, None] = {}

    class PatientProtocol(HttpToolsProtocol):
        """One connection."""

        _deadline: TimerHandle | None = None
        #: Bytes of a body that came since the last look.
        _came = 0

        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            waiting[self] = None
            self._within(head, self._give_up)
            if len(self.connections) > most:
                next(iter(waiting)).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._in_time()
            waiting.pop(self, None)
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self in waiting:
                self._within(head, self._give_up)

        def on_headers_complete(self) -> None:
            self._in_time()
            waiting.pop(self, None)
            super().on_headers_complete()
            self._came = 0
            self._within(body, self._look_at_body)

        def on_body(self, body: bytes) -> None:
            self._came += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_time()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing() and self.cycle.response_complete:
                waiting[self] = None

        def handle_websocket_upgrade(self) -> None:
            self._in_time()
            super().handle_websocket_upgrade()

        def _within(self, seconds: float, then: Callable[[], Any]) -> None:
            self._in_time()
            self._deadline = self.loop.call_later(seconds, then)

        def _in_time(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _look_at_body(self) -> None:
            # One that is told to wait, or whose last piece nobody has taken yet, is not slow.
            held = self.cycle.waiting_for_100_continue or self.flow.read_paused
            if self._came < _BYTES and not held:
                self._give_up()
                return
            self._came = 0
            self._within(body, self._look_at_body)

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.abort()

    return PatientProtocol

"""Websockets of browsers: what a user's have sent, and no session has taken yet, has a limit."""

from __future__ import annotations

from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from carrel.core.transport.message_room import MessageRoom, Place
from carrel.lab.server.connections import Connection
from carrel.notebooks import LARGEST_MESSAGE

#: Bytes that may come before it is known whose they are: the other side has to wait for an answer first.
_UNKNOWN = 64 * 1024


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One websocket. It is cut off when its user's websockets have too many bytes on their way."""

    room: ClassVar[MessageRoom] = MessageRoom(2 * LARGEST_MESSAGE)
    _place: Place | None = None

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        if self._place is None:
            connection: Connection = self.app_state["connection"]
            if connection.owner is None:
                if len(self.conn.reader.buffer) > _UNKNOWN:
                    self.transport.abort()
                return
            self._place = Place(self.room, connection.owner[0])
        if not self._place.came(len(data)):
            self.transport.abort()

    async def receive(self) -> Any:
        """Return the next message. Those before it were passed on."""
        if self._place is not None and self.queue.empty():
            self._place.holds(len(self.conn.reader.buffer) + sum(map(len, self.frames)))
        return await super().receive()

    async def send(self, message: Any) -> None:
        """Send a message."""
        await super().send(message)
        # A refusal with words completes the handshake, too; uvicorn would call it a fault of the application.
        self.handshake_complete |= message["type"] == "websocket.http.response.body"

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        super().connection_lost(exc)
        if self._place is not None:
            self._place.holds(0)

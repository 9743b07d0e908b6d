"""Who watches the broker, and what they get: a status soon after each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from carrel.core.transport.channel import Channel
from carrel.core.transport.reactor import Reactor, Timer
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.processes import Process
from carrel.node.broker.status import Status
from carrel.node.leases.protocol import encode

#: Watchers get at most ten statuses in a second, and fewer when making them takes long.
_WATCH_SECONDS = 0.1
_WATCH_SHARE = 20.0
#: Seconds between two statuses for the lab itself while cells run and nothing else is new: what they are charged grows.
_CHARGE_SECONDS = 5.0


@dataclass(slots=True)
class Client:
    """What is known of one connection."""

    process: Process
    identity: Identity | None = None
    tenant: str = ""
    #: The process, where it is its library that speaks.
    member: str = ""
    watching: bool = False


class StatusFeed:
    """Sends statuses to the connections that watch. All methods are called in the loop's thread."""

    def __init__(
        self, loop: Reactor, status: Status, clients: Mapping[Channel[bytes], Client], *, see_host: Callable[[], None]
    ) -> None:
        """`clients`: all connections, as they are at each moment. `see_host` is called before a status is made."""
        self._loop = loop
        self._status = status
        self._clients = clients
        self._see_host = see_host
        self._publishing: Timer | None = None
        self._charging: Timer | None = None
        self._pause = _WATCH_SECONDS

    def answer(self, connection: Channel[bytes], identity: Identity) -> None:
        """Send the status of now, as far as `identity` may see it."""
        self._see_host()
        connection.send(encode("status", **self._status.fields(identity)))
        self._charge_later()

    def changed(self) -> None:
        """Something is different: watchers get a status soon."""
        if self._publishing is None and any(client.watching for client in self._clients.values()):
            self._publishing = self._loop.later(self._pause, self._publish)

    def _publish(self) -> None:
        began = time.perf_counter()
        self._publishing = None
        self._see_host()
        lines: dict[Identity, bytes] = {}
        for connection, client in list(self._clients.items()):
            if client.watching and client.identity is not None:
                if client.identity not in lines:
                    # Notebooks show who has what; the past is asked for.
                    fields = self._status.fields(client.identity, hour=client.identity.sees_all)
                    lines[client.identity] = encode("status", **fields)
                connection.send(lines[client.identity])
        self._pause = max(_WATCH_SECONDS, (time.perf_counter() - began) * _WATCH_SHARE)
        self._charge_later()

    def _charge_later(self) -> None:
        """While cells run, or state lies idle, the lab gets what grows and shrinks although nothing happens."""
        if self._charging is None and self._status.drifting() and any(self._labs()):
            self._charging = self._loop.later(_CHARGE_SECONDS, self._tell_charges)

    def _tell_charges(self) -> None:
        self._charging = None
        for connection, identity in list(self._labs()):
            connection.send(encode("status", **self._status.fields(identity)))
        self._charge_later()

    def _labs(self) -> Iterator[tuple[Channel[bytes], Identity]]:
        """Watchers who see every name: the lab itself."""
        for connection, client in self._clients.items():
            if client.watching and client.identity is not None and client.identity.sees_all:
                yield connection, client.identity

"""The broker's socket: who is connected, what they say, what they are told."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.broker.admission import Gatekeeper, Identity
from carrel.broker.connection import Connection
from carrel.broker.desk import Desk
from carrel.broker.loop import Loop, Timer
from carrel.broker.processes import Gone, Process, find, peer
from carrel.broker.residency import Mover
from carrel.broker.rows import TenantRow
from carrel.broker.status import Status
from carrel.broker.words import device_fields, text_of, words_of
from carrel.domain.errors import CarrelError, Conflict
from carrel.leases.protocol import OBSERVER, VERSION, Message, decode, encode
from carrel.suspension.survival import staying_modules

_log = logging.getLogger(__name__)

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
    watching: bool = False


class Service:
    """Listens, and carries messages between clients and the desk. It is the lender's `Post`."""

    def __init__(self, *, loop: Loop, gate: Gatekeeper, hold_time: float) -> None:
        self._loop = loop
        self._gate = gate
        self._hold_time = hold_time
        self._clients: dict[Connection, Client] = {}
        self._tenants: dict[str, Connection] = {}
        #: Processes of tenants, connected or not.
        self._processes: dict[str, Process] = {}
        self._listener: socket.socket | None = None
        self._publishing: Timer | None = None
        self._charging: Timer | None = None
        self._pause = _WATCH_SECONDS
        self.desk: Desk
        self.mover: Mover
        self.status: Status
        self._operations: dict[str, Callable[[TenantRow, Message], None]] = {
            "acquire": lambda row, message: self.desk.acquire(row, message),
            "cancel": lambda row, message: self.desk.cancel(row, text_of(message, "request")),
            "release": lambda row, message: self.desk.release(row, message),
            "touched": lambda row, _message: self.desk.touched(row),
            "simulate": lambda row, message: self.desk.simulate(row, message.get("bytes"), message.get("cached")),
            "home": self._home,
            "hold": self._hold,
            "prepared": self._prepared,
        }

    # --- the lender's post --------------------------------------------------------------------------------------------------

    def send(self, tenant: str, op: str, **fields: Any) -> None:
        """Send a message to a tenant, if it is connected."""
        connection = self._tenants.get(tenant)
        if connection is not None:
            connection.send(encode(op, **fields))

    def connected(self, tenant: str) -> bool:
        """True while the tenant has a connection."""
        return tenant in self._tenants

    def process(self, tenant: str) -> Process | None:
        """The tenant's process, or None when it has ended."""
        return self._processes.get(tenant)

    # --- life ---------------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """After a restart: watch the processes that the journal knows; those that ended meanwhile are gone."""
        for row in list(self.desk.book.tenants.values()):
            try:
                self._keep(row.id, find(row.pid, row.start, row.uid))
            except Gone:
                # Nobody knows when; nobody is charged for the time in which no broker ran, which may be a weekend.
                self.desk.gone(row.id, at=self.desk.book.resumed_from)

    def listen(self, path: Path, *, everybody: bool = False) -> None:
        """Take connections on a unix socket of this path from now on: of this user's processes, or of everybody's.

        Nobody is let in without the token of a job that runs, in either case.
        """
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        mask = os.umask(0o111 if everybody else 0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(256)
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and close all connections; nobody loses a lease by it."""
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
        for connection in list(self._clients):
            connection.end(closed=False)

    def changed(self) -> None:
        """Something is different: watchers get a status soon."""
        if self._publishing is None and any(client.watching for client in self._clients.values()):
            self._publishing = self._loop.later(self._pause, self._publish)

    def _publish(self) -> None:
        began = time.perf_counter()
        self._publishing = None
        lines: dict[Identity, bytes] = {}
        for connection, client in list(self._clients.items()):
            if client.watching and client.identity is not None:
                if client.identity not in lines:
                    lines[client.identity] = encode("status", **self.status.fields(client.identity))
                connection.send(lines[client.identity])
        self._pause = max(_WATCH_SECONDS, (time.perf_counter() - began) * _WATCH_SHARE)
        self._charge_later()

    def _charge_later(self) -> None:
        """While cells run, or state lies idle, the lab is told what grows and shrinks although nothing happens."""
        if self._charging is None and self.status.drifting() and any(self._labs()):
            self._charging = self._loop.later(_CHARGE_SECONDS, self._tell_charges)

    def _tell_charges(self) -> None:
        self._charging = None
        for connection, identity in list(self._labs()):
            connection.send(encode("status", **self.status.fields(identity)))
        self._charge_later()

    def _labs(self) -> Iterator[tuple[Connection, Identity]]:
        """Watchers who see every name: the lab itself."""
        for connection, client in self._clients.items():
            if client.watching and client.identity is not None and client.identity.sees_all:
                yield connection, client.identity

    # --- connections --------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            stream, _address = self._listener.accept()
        except OSError:
            return
        try:
            process = peer(stream)
        except (Gone, OSError) as error:
            _log.warning("a connection is refused: %s", error)
            stream.close()
            return
        connection = Connection(self._loop, stream, on_line=self._line, on_end=self._ended)
        self._clients[connection] = Client(process)

    def _ended(self, connection: Connection, closed: bool) -> None:
        client = self._clients.pop(connection)
        client.process.close()
        if client.tenant and self._tenants.get(client.tenant) is connection:
            del self._tenants[client.tenant]
            if closed:
                self.desk.leave(client.tenant)
            else:
                _log.warning("tenant %s does not read and was dropped; it keeps what it has", client.tenant)

    def _line(self, connection: Connection, line: bytes) -> None:
        client = self._clients[connection]
        try:
            message = decode(line)
        except (ValueError, RecursionError) as error:
            _log.warning("process %d sent what is no message: %s", client.process.pid, error)
            connection.send(encode("refused", code="invalid", message=f"That is no message: {error}.", remedy=""))
            connection.end(closed=True)
            return
        try:
            if client.identity is None:
                self._hello(connection, client, message)
            else:
                self._operate(connection, client, message)
        except CarrelError as error:
            self._refuse(connection, client, message, error)

    def _refuse(self, connection: Connection, client: Client, message: Message, error: CarrelError) -> None:
        about = {"request": message["request"]} if isinstance(message.get("request"), str) else {}
        code = str(error.details.get("code", error.code))
        connection.send(encode("refused", **about, code=code, message=error.message, remedy=error.remedy))
        if client.identity is None:
            _log.warning("process %d is not let in: %s", client.process.pid, error)
            connection.end(closed=True)

    def _hello(self, connection: Connection, client: Client, message: Message) -> None:
        if message["op"] != "hello":
            raise Conflict(f'"{message["op"]}" came before "hello".', remedy="Say hello first.")
        identity = self._gate.admit(message, client.process.uid)
        about: Mapping[str, Any] = {"gpus": identity.gpus, "home": [], "lost": "", "leases": []}
        if identity.role != OBSERVER:
            row = self.desk.arrive(client.process, identity, message)
            client.tenant = row.id
            older = self._tenants.get(row.id)
            self._tenants[row.id] = connection
            if older is not None:
                older.end(closed=False)
            if row.id not in self._processes:
                self._keep(row.id, client.process.copy())
            about = self.desk.welcome(row)
        client.identity = identity
        # Before anything is settled: what it is told about its requests comes after the welcome, which knows nothing of it.
        connection.send(
            encode(
                "welcome",
                v=VERSION,
                broker=self.desk.book.broker_id,
                tier=self.desk.tier.value,
                devices=[device_fields(device) for device in self.desk.devices.values()],
                hold_time=self._hold_time,
                stay=staying_modules(),
                **about,
            )
        )
        if identity.role != OBSERVER:
            self.desk.lender.settle()

    def _keep(self, tenant: str, process: Process) -> None:
        """Watch a tenant's process until it ends."""
        self._processes[tenant] = process
        self._loop.watch(process.pidfd, lambda: self._died(tenant))

    def _died(self, tenant: str) -> None:
        process = self._processes.pop(tenant)
        self._loop.unwatch(process.pidfd)
        process.close()
        connection = self._tenants.pop(tenant, None)
        self.desk.gone(tenant)
        if connection is not None:
            connection.end(closed=True)

    # --- operations ---------------------------------------------------------------------------------------------------------

    def _operate(self, connection: Connection, client: Client, message: Message) -> None:
        op = message["op"]
        assert client.identity is not None
        if op in ("status", "watch"):
            client.watching = client.watching or op == "watch"
            connection.send(encode("status", **self.status.fields(client.identity)))
            self._charge_later()
            return
        operation = self._operations.get(op)
        if operation is None:
            return  # from a newer client
        row = self.desk.book.tenants.get(client.tenant)
        if row is None:
            raise Conflict(f'An observer cannot say "{op}".', remedy="Connect as a kernel or a runner.")
        operation(row, message)

    def _home(self, row: TenantRow, message: Message) -> None:
        devices = self.desk.set_gpus(row, message.get("gpus"))
        self.send(row.id, "home", devices=list(devices))

    def _hold(self, row: TenantRow, message: Message) -> None:
        until = self.desk.hold(row, message.get("seconds"))
        self.send(row.id, "held", until=until or None)

    def _prepared(self, row: TenantRow, message: Message) -> None:
        self.mover.prepared(row, text_of(message, "id"), words_of(message.get("blockers")), message.get("cached"))

"""A broker that speaks the protocol of `carrel.node.leases.protocol` and says what a test wants, to whoever watches."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from carrel.node.leases.protocol import VERSION, decode, encode
from carrel.testing.waiting import PATIENCE

GIB = 1024**3


def device(index: int, **fields: Any) -> dict[str, Any]:
    return {
        "uuid": f"SIM-{index}",
        "index": index,
        "name": "Simulated 16 GiB",
        "type": "sim",
        "memory": 16 * GIB,
        "used": 0,
        "simulated": True,
        "withheld": None,
        "lease": None,
        "residents": [],
        "strangers": [],
        **fields,
    }


def tenant(identity: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "job": 7,
        "owner": "ada",
        "kernel": "",
        "label": "work.ipynb",
        "pid": 1,
        "state": "resident",
        "home": ["SIM-0"],
        "bytes": 3 * GIB,
        "suspendable": True,
        "why_not": "",
        "last_used": 0.0,
        "cells": 4,
        "gpu_seconds": 12.5,
        "waited_seconds": 61.0,
        "mine": True,
        **fields,
    }


def lease(identity: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": identity,
        "fence": 1,
        "tenant": "t1",
        "job": 7,
        "owner": "ada",
        "devices": ["SIM-0"],
        "since": 0.0,
        "state": "active",
        "cell": "",
        "held_until": None,
        "mine": True,
        **fields,
    }


def request(**fields: Any) -> dict[str, Any]:
    return {
        "request": "r1",
        "tenant": "t1",
        "job": 7,
        "owner": "ada",
        "gpus": 1,
        "position": 2,
        "since": 0.0,
        "estimate": 40.0,
        "message": "waiting for a GPU: 2nd in line, about 40 s",
        "mine": True,
        **fields,
    }


def status(**lists: Any) -> dict[str, Any]:
    return {
        "tier": "simulated",
        "simulated": True,
        "devices": [device(0), device(1)],
        "tenants": [],
        "leases": [],
        "queue": [],
        "history": [],
        **lists,
    }


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


class SmallBroker:
    """Says `status` to all who watch, whenever it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said = status()
        self.hellos: list[dict[str, Any]] = []
        self.watchers: list[Any] = []
        self.guard = threading.Lock()
        self.refusal: str | None = None
        #: Nobody is let in, as while a broker is started again.
        self.away = False
        #: Kernels that wait for a lease, with their requests.
        self.waiting: list[tuple[Any, str]] = []

    def say(self, **lists: Any) -> None:
        """What the status is from now on."""
        with self.guard:
            self.said = status(**lists)
            self._send(encode("status", **self.said))

    def notice(self, level: str, message: str) -> None:
        with self.guard:
            self._send(encode("notice", level=level, message=message))

    def queue(self, message: str) -> None:
        """Tell all who wait where they are in the line."""
        for connection, asked in self.waiting:
            connection.sendall(encode("queued", request=asked, position=1, estimate=None, code="GpuInUse", message=message))

    def grant(self) -> None:
        """Let all who wait have their lease."""
        while self.waiting:
            connection, asked = self.waiting.pop()
            lent = {name: device(0)[name] for name in ("uuid", "index", "name", "memory", "simulated")}
            connection.sendall(encode("granted", request=asked, lease="lease-1", fence=1, devices=[lent], waited=1.0))

    def hang_up(self) -> None:
        """All connections end, as when a broker is killed."""
        with self.guard:
            for watcher in self.watchers:
                with contextlib.suppress(OSError):  # it went away by itself
                    watcher.shutdown(socket.SHUT_RDWR)
            self.watchers.clear()

    def _send(self, line: bytes) -> None:
        for watcher in list(self.watchers):
            try:
                watcher.sendall(line)
            except OSError:
                self.watchers.remove(watcher)

    def attend(self, lines: Any, connection: Any) -> None:
        """One connection."""
        for line in lines:
            message = decode(line)
            if message["op"] == "hello":
                with self.guard:
                    self.hellos.append(message)
                if self.refusal is not None:
                    connection.sendall(encode("refused", code="denied", message=self.refusal, remedy=""))
                    return
                devices = [
                    {name: one[name] for name in ("uuid", "index", "name", "memory", "simulated")} for one in self.said["devices"]
                ]
                welcome = {"broker": "b", "tier": "simulated", "devices": devices, "gpus": 1, "home": [], "leases": []}
                connection.sendall(encode("welcome", v=VERSION, **welcome))
            elif message["op"] == "acquire":
                self.waiting.append((connection, message["request"]))
            elif message["op"] in ("watch", "status"):
                with self.guard:
                    connection.sendall(encode("status", **self.said))
                    if message["op"] == "watch":
                        self.watchers.append(connection)


@contextmanager
def a_broker(path: Path) -> Iterator[SmallBroker]:
    broker = SmallBroker(path)

    class Attend(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if broker.away:
                return
            try:
                broker.attend(self.rfile, self.connection)
            except (OSError, json.JSONDecodeError):
                return

    with _Server(str(path), Attend) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield broker
        broker.hang_up()
        server.shutdown()
        thread.join(PATIENCE)

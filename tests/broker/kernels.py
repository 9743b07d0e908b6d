"""Fake kernels as tests hold them: processes of their own, driven line by line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carrel.core.domain.lease import LendingRules
from carrel.testing.waiting import PATIENCE
from carrel.testing.waiting import wait_until as eventually  # noqa: F401 - for the tests beside this
from support.broker_process import BrokerProcess, FakeJob

SCRIPT = Path(__file__).with_name("fake_kernel.py")


class FakeKernel:
    """One process: a tenant."""

    def __init__(
        self,
        broker: BrokerProcess,
        job: FakeJob,
        *,
        role: str = "kernel",
        environment: dict[str, str] | None = None,
        **hello: Any,
    ) -> None:
        about = {"v": 1, "role": role, "token": job.token, "kernel": "k1", "label": "notebook.ipynb", **hello}
        self.job = job
        self.requests = 0
        self.heard: list[dict[str, Any]] = []
        self._data = b""
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT), str(broker.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **broker.environment, **(environment or {}), "HELLO": json.dumps(about)},
        )
        self.welcome = self.expect("welcome", "refused")

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, op: str, **fields: Any) -> None:
        self.tell(json.dumps({"op": op, **fields}))

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def next(self, seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The next message, or None when none comes in time or the process has ended."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._data:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                return None
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return None
            self._data += piece
        line, self._data = self._data.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        self.heard.append(message)
        return message

    def expect(self, *ops: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next message that is one of `ops`; others are passed over."""
        deadline = time.monotonic() + seconds
        while True:
            message = self.next(max(0.0, deadline - time.monotonic()))
            assert message is not None, f"none of {ops} came; heard: {self.heard[-5:]}"
            if message["op"] in ops:
                return message

    def nothing(self, *ops: str, seconds: float = 0.3) -> None:
        """None of `ops` comes for a while."""
        deadline = time.monotonic() + seconds
        while (message := self.next(max(0.0, deadline - time.monotonic()))) is not None:
            assert message["op"] not in ops, message

    def ask(self, **fields: Any) -> str:
        self.requests += 1
        request = f"request-{self.requests}"
        self.say("acquire", **{"request": request, "gpus": 0, "cell": f"cell-{self.requests}", **fields})
        return request

    def queue(self, **fields: Any) -> dict[str, Any]:
        """Ask, and wait in line; returns what is said there."""
        self.ask(**fields)
        return self.expect("queued")

    def acquire(self, **fields: Any) -> dict[str, Any]:
        request = self.ask(**fields)
        while True:
            message = self.expect("granted", "refused")
            if message.get("request") == request:
                return message

    def release(self, lease: dict[str, Any], **fields: Any) -> None:
        self.say("release", **{"lease": lease["lease"], "fence": lease["fence"], "outcome": "ok", "cuda": True, **fields})
        self.expect("released")

    def cell(self, **fields: Any) -> dict[str, Any]:
        """One cell: a lease, and its end."""
        lease = self.acquire()
        assert lease["op"] == "granted", lease
        self.release(lease, **fields)
        return lease

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


def two_of(broker: BrokerProcess, kernels: Callable[..., FakeKernel]) -> tuple[FakeKernel, FakeKernel]:
    """Kernels in sessions of two users."""
    first, second = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2))
    return first, second


def paused(brokers: Callable[..., BrokerProcess], kernels: Callable[..., FakeKernel]) -> tuple[Any, ...]:
    """A cell was paused for one of another user: the broker, both kernels, the lease, and what the other was granted."""
    broker = brokers(rules=LendingRules(time_slice=3.0))
    first, second = two_of(broker, kernels)
    lease = first.acquire()
    second.queue()
    broker.advance(3.0)
    assert first.expect("paused")["lease"] == lease["lease"]
    return broker, first, second, lease, second.expect("granted")


def leases_of(broker: BrokerProcess) -> list[dict[str, Any]]:
    return list(broker.status()["leases"])


def tenant_of(broker: BrokerProcess, kernel: FakeKernel) -> dict[str, Any]:
    (found,) = [row for row in broker.status()["tenants"] if row["pid"] == kernel.pid]
    return dict(found)


def check_journal(broker: BrokerProcess) -> int:
    """No device was ever in two leases, and fences only grew; returns how many leases there were."""
    leases: dict[str, dict[str, Any]] = {}
    fences: dict[str, int] = {}
    last = 0
    for _at, rows, drops in broker.journal():
        restart = any(kind == "broker" for kind, _row in rows)
        if restart:
            # A journal begins with what is true then: it must be what the one before it said.
            repeated = {row["id"]: row for kind, row in rows if kind == "lease"}
            assert {name: row["fence"] for name, row in repeated.items()} == {name: row["fence"] for name, row in leases.items()}
        for kind, name in drops:
            if kind == "lease":
                del leases[name]
        for kind, row in rows:
            if kind != "lease":
                continue
            if fences.get(row["id"]) != row["fence"]:
                assert row["fence"] > last, f"fence {row['fence']} after {last}"
                last = fences[row["id"]] = row["fence"]
            leases[row["id"]] = row
        used = [device for row in leases.values() if row["state"] != "paused" for device in row["devices"]]
        assert len(used) == len(set(used)), f"a device is in two leases: {leases}"
    return len(fences)

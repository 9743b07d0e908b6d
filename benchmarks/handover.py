"""What a lease costs: `python benchmarks/handover.py`. A real broker, one simulated device, clients in processes of their own.

*Round trip*: an uncontended cell asks, is granted its resident device, gives it back. *Hand-over*: from the moment at which one
session gives the device back until another, which waits, reads that it has it; both are resident, so nothing is swapped.
*Decision*: one call of the lending policy on a node with 8 devices, 200 tenants and 100 requests.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from carrel.core.domain.lease import DeviceRoom, LeaseState, LendingSnapshot, Lent, Request, Residency, Tenant
from carrel.core.policy.lend import lend
from carrel.node.leases.protocol import decode, encode
from figure import Figure, median, percentile
from support.broker_process import BrokerProcess, FakeJob, start_broker

ROUNDS = 500
HANDOVERS = 200
GIB = 1024**3


class Client:
    """A tenant: this process, or the one that runs `waiter`."""

    def __init__(self, path: str, token: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")
        self.say("hello", v=1, role="kernel", token=token, kernel="k", label="bench.ipynb")
        self.hear("welcome")

    def say(self, op: str, **fields: Any) -> None:
        self.socket.sendall(encode(op, **fields))

    def hear(self, op: str) -> dict[str, Any]:
        while True:
            message = decode(self.lines.readline())
            if message["op"] == op:
                return message
            if message["op"] == "refused":
                raise RuntimeError(message["message"])


def waiter(path: str, token: str) -> None:
    """In a process of its own: ask whenever a line comes, say when the lease came, give it back at the next line."""
    client = Client(path, token)
    for number, _line in enumerate(sys.stdin):
        client.say("acquire", request=str(number), gpus=1)
        client.hear("queued")
        print("queued", flush=True)
        lease = client.hear("granted")
        print(time.monotonic(), flush=True)
        sys.stdin.readline()
        client.say("release", lease=lease["lease"], fence=lease["fence"], cuda=True)
        client.hear("released")
        print("released", flush=True)


def round_trips(client: Client) -> list[float]:
    """Milliseconds of each."""
    found = []
    for number in range(ROUNDS + 20):
        began = time.perf_counter()
        client.say("acquire", request=f"round-{number}", gpus=1)
        lease = client.hear("granted")
        client.say("release", lease=lease["lease"], fence=lease["fence"], cuda=True)
        client.hear("released")
        found.append((time.perf_counter() - began) * 1000)
    return found[20:]


def hand_overs(client: Client, broker: BrokerProcess, job: FakeJob) -> list[float]:
    """Milliseconds of each."""
    words = [sys.executable, __file__, "--waiter", str(broker.socket)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "T": job.token})
    assert other.stdin is not None
    assert other.stdout is not None
    found = []
    for number in range(HANDOVERS + 5):
        client.say("acquire", request=f"hand-{number}", gpus=1)
        lease = client.hear("granted")
        other.stdin.write("ask\n")
        other.stdin.flush()
        assert other.stdout.readline() == "queued\n"
        began = time.monotonic()
        client.say("release", lease=lease["lease"], fence=lease["fence"], cuda=True)
        client.hear("released")
        found.append((float(other.stdout.readline()) - began) * 1000)
        other.stdin.write("release\n")
        other.stdin.flush()
        assert other.stdout.readline() == "released\n"
    other.stdin.close()
    other.wait(timeout=30)
    other.stdout.close()
    return found[5:]


def decisions() -> list[float]:
    """Milliseconds of one decision."""
    dice = random.Random(1)
    devices = [DeviceRoom(uuid=f"gpu{number}", memory=80 * GIB) for number in range(8)]
    tenants = {}
    for number in range(200):
        residency = Residency.RESIDENT if number < 60 else dice.choice([Residency.NONE, Residency.SUSPENDED])
        home = () if residency is Residency.NONE else (f"gpu{number % 8}",)
        tenants[f"t{number}"] = Tenant(
            id=f"t{number}", owner=f"u{number % 23}", residency=residency, home=home, state=dict.fromkeys(home, 2 * GIB)
        )
    snapshot = LendingSnapshot(
        devices=devices,
        tenants=tenants,
        requests=[Request(id=f"r{n}", tenant=f"t{n + 60}", gpus=1 + (n % 7 == 0), asked_at=900 + n) for n in range(100)],
        leases=[Lent(id=f"l{n}", tenant=f"t{n}", devices=(f"gpu{n}",), state=LeaseState.ACTIVE, since=950) for n in range(7)],
        typical_lease=20.0,
    )
    found = []
    for _ in range(300):
        began = time.perf_counter()
        lend(snapshot, 1000.0)
        found.append((time.perf_counter() - began) * 1000)
    return found


def measure(scratch: Path) -> list[Figure]:
    """All figures of leases."""
    with start_broker(scratch / "broker", devices=1) as broker:
        client = Client(str(broker.socket), broker.session(1, owner="ada").token)
        rounds = round_trips(client)
        hands = hand_overs(client, broker, broker.session(2, owner="bob"))
        client.socket.close()
    choices = decisions()
    return [
        median("lease of a resident cell, ask and give back", rounds, "ms", at_most=0.5),
        percentile("lease of a resident cell, ask and give back, p95", rounds, "ms", 95),
        median("hand-over between two sessions without swapping", hands, "ms", at_most=20.0),
        percentile("hand-over between two sessions without swapping, p95", hands, "ms", 95, at_most=20.0),
        median("one lending decision: 8 GPUs, 200 tenants, 100 requests", choices, "ms", at_most=1.0),
    ]


def main() -> int:
    if sys.argv[1:2] == ["--waiter"]:
        waiter(sys.argv[2], os.environ["T"])
        return 0
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
        figures = measure(Path(scratch))
    if "--json" in sys.argv:
        print(json.dumps([figure.plain() for figure in figures], indent=2))
        return 0
    print("| figure | measured | spread | target | |\n|---|---|---|---|---|")
    for figure in figures:
        print(figure.row())
    return 0


if __name__ == "__main__":
    sys.exit(main())

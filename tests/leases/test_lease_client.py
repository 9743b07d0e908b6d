"""The blocking client against a real broker: waiting, giving up, a broker that is restarted, one that is not there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid, Unauthenticated, Unavailable, in_words
from carrel.node.leases.client import Broker, Wait
from carrel.node.leases.protocol import LONGEST, OBSERVER, decode, encode
from carrel.testing.waiting import PATIENCE, wait_until
from support.broker_process import BrokerProcess, start_broker

#: Another process that takes the device, says so, and gives it back when its stdin ends.
HOLDER = """
import sys
from carrel.node.leases.client import Broker
with Broker(sys.argv[1], sys.argv[2]) as broker:
    lease = broker.acquire(devices=sys.argv[3:])
    print(lease.fence, flush=True)
    sys.stdin.read()
    broker.release(lease)
    print("released", flush=True)
    sys.stdin.close()
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path / "broker", devices=1) as broker:
        yield broker


def holder(node: BrokerProcess, job: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLDER, str(node.socket), node.task(job, owner="eve").token, node.devices[0].uuid]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    return process


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=PATIENCE)


@pytest.mark.gate
def test_acquire_and_release(node: BrokerProcess) -> None:
    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], ends_by=time.time() + 60)
        assert lease is not None
        assert lease.devices == (node.devices[0].uuid,)
        assert [row["id"] for row in node.status()["leases"]] == [lease.id]
        assert broker.status()["leases"][0]["mine"] is True
        broker.release(lease)
        assert node.status()["leases"] == []
        broker.release(lease)  # once more does no harm


def test_waiting_says_why(node: BrokerProcess) -> None:
    other = holder(node, 2)
    waits: list[Wait] = []

    def on_wait(wait: Wait) -> None:
        waits.append(wait)
        if other.stdin is not None and not other.stdin.closed:
            other.stdin.close()

    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], on_wait=on_wait)
        assert lease is not None
        assert waits[0].position == 1
        assert waits[0].code == "GpuTask"
        assert "eve" not in waits[0].message
    other.wait(timeout=PATIENCE)
    assert other.stdout is not None
    other.stdout.close()


def test_giving_up(node: BrokerProcess) -> None:
    other = holder(node, 2)
    asked = threading.Event()
    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], on_wait=lambda _wait: asked.set(), stop=asked.is_set)
        assert lease is None
        assert node.status()["queue"] == []
    finish(other)


def test_a_broker_that_is_restarted_while_somebody_waits(node: BrokerProcess) -> None:
    other = holder(node, 2)
    steps: list[str] = []

    def on_wait(_wait: Wait) -> None:
        steps.append("waits")
        if len(steps) == 1:
            node.restart()
        elif other.stdin is not None and not other.stdin.closed:
            other.stdin.close()

    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], on_wait=on_wait)
        assert lease is not None
        assert len(steps) >= 2
        node.restart()
        assert [row["id"] for row in node.status()["leases"]] == [lease.id], "it is kept while nobody connects"
        broker.release(lease)
        assert node.status()["leases"] == []
    other.wait(timeout=PATIENCE)
    assert other.stdout is not None
    other.stdout.close()


def test_a_broker_that_has_forgotten_a_lease_is_asked_again(node: BrokerProcess) -> None:
    heard: list[str] = []

    def hears(word: str) -> bool:
        heard.extend(message["op"] for message in broker.hear())
        return word in heard

    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], lends=True)
        assert lease is not None
        node.kill()
        for path in (node.directory / "state").glob("journal*"):
            path.unlink()
        node.start()
        other = holder(node, 2)
        wait_until(lambda: hears("paused"), "the lease to be gone")
        wait_until(lambda: node.status()["queue"], "it to be in line")
        assert "resumed" not in heard
        finish(other)
        wait_until(lambda: hears("resumed"), "the lease to be back")
        (row,) = node.status()["leases"]
        assert row["job"] == 1
        node.restart()
        heard.clear()
        wait_until(lambda: hears("resumed"), "the lease to be known")
        assert [known["id"] for known in node.status()["leases"]] == [row["id"]]
        broker.release(lease)
        assert node.status()["leases"] == []


def test_what_is_set_aside_while_there_is_no_broker_is_aside_when_it_is_back(node: BrokerProcess) -> None:
    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], lends=True)
        assert lease is not None
        node.kill()
        broker.set_aside(lease)
        node.start()
        wait_until(lambda: any(message["op"] == "paused" and message["aside"] for message in broker.hear()), "the pause")
        assert [(row["state"], row["aside"]) for row in node.status()["leases"]] == [("paused", True)]
        assert node.status()["queue"] == []
        node.kill()
        broker.go_on(lease)
        node.start()
        wait_until(lambda: any(message["op"] == "resumed" for message in broker.hear()), "its devices")
        assert [(row["state"], row["aside"]) for row in node.status()["leases"]] == [("active", False)]


def test_a_forgotten_lease_that_is_aside_is_asked_for_when_it_goes_on(node: BrokerProcess) -> None:
    with Broker(node.socket, node.task(1).token) as broker:
        lease = broker.acquire(devices=[node.devices[0].uuid], lends=True)
        assert lease is not None
        broker.set_aside(lease)
        wait_until(lambda: any(message["op"] == "paused" for message in broker.hear()), "the pause")
        node.kill()
        for path in (node.directory / "state").glob("journal*"):
            path.unlink()
        node.start()
        wait_until(lambda: any(message["op"] == "paused" and message["aside"] for message in broker.hear()), "the new broker")
        assert (node.status()["leases"], node.status()["queue"]) == ([], [])
        broker.go_on(lease)
        wait_until(lambda: any(message["op"] == "resumed" for message in broker.hear()), "its devices")
        assert [row["job"] for row in node.status()["leases"]] == [1]


def test_closing_gives_everything_back(node: BrokerProcess) -> None:
    broker = Broker(node.socket, node.task(1).token)
    broker.acquire(devices=[node.devices[0].uuid])
    broker.close()
    wait_until(lambda: node.status()["leases"] == [], "the lease to end")


def test_refusals_are_errors(node: BrokerProcess) -> None:
    with Broker(node.socket, node.task(1).token) as broker, pytest.raises(Invalid, match="placement did not give"):
        broker.acquire(devices=["SIM-test-9"])
    with Broker(node.socket, "carrel-job.1.1." + "0" * 64) as broker, pytest.raises(Unauthenticated):
        broker.status()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (FileNotFoundError(2, "No such file or directory", "/run/b.sock"), "no such file or directory: '/run/b.sock'"),
        (RuntimeError("[Errno 111] Connection refused"), "connection refused"),  # what httpx passes on
        (OSError("IO is off."), "IO is off"),
        (TimeoutError(), "no answer came in time"),
        (EOFError(), "EOFError"),
    ],
)
def test_errors_of_the_system_in_words(error: Exception, words: str) -> None:
    assert in_words(error) == words


def test_no_broker_is_said_so(tmp_path: Path) -> None:
    with Broker(tmp_path / "none.sock", "x", patience=0.1) as broker:
        with pytest.raises(Unavailable, match=r"does not answer at \S+: no such file or directory\."):
            broker.status()
        assert broker.acquire(stop=lambda: True) is None


def test_watching_goes_on_over_a_restart(node: BrokerProcess) -> None:
    seen: list[int | None] = []
    news = threading.Condition()

    def on_status(status: dict[str, object] | None) -> None:
        with news:
            seen.append(None if status is None else len(status["leases"]))  # type: ignore[arg-type]
            news.notify_all()

    def wait_for(value: int | None) -> None:
        with news:
            assert news.wait_for(lambda: seen and seen[-1] == value, timeout=PATIENCE), seen

    watch = Broker(node.socket, node.node_token, OBSERVER).watch(on_status)
    wait_for(0)
    node.kill()
    wait_for(None)
    node.start()
    wait_for(0)
    other = holder(node, 2)
    wait_for(1)
    finish(other)
    wait_for(0)
    watch.close()


@pytest.mark.parametrize("line", [b"[]\n", b"3\n", b"{}\n", b"\xff\n", b'{"op": ["x"]}\n', b" " * (LONGEST + 1) + b"{}\n"])
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(ValueError, match="message|codec|JSON|object"):
        decode(line)


def test_messages_come_back() -> None:
    line = encode("hold", seconds=5)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == {"op": "hold", "seconds": 5}

"""Asking, waiting, giving back, coming and going: real brokers, real processes."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from kernels import FakeKernel, eventually, leases_of, tenant_of

from carrel.node.leases.client import Broker
from carrel.node.leases.protocol import LONGEST, OBSERVER, decode, encode
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


@pytest.mark.gate
def test_a_cell_gets_a_device_and_gives_it_back(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    kernel = kernels(broker, broker.session(1))
    assert kernel.welcome["tier"] == "simulated"
    assert len(kernel.welcome["home"]) == 1
    assert kernel.welcome["leases"] == []
    lease = kernel.acquire()
    assert lease["op"] == "granted"
    assert lease["devices"][0]["simulated"] is True
    assert "simulated" in lease["message"]
    assert [row["cell"] for row in leases_of(broker)] == ["cell-1"]
    kernel.release(lease)
    assert leases_of(broker) == []
    row = tenant_of(broker, kernel)
    assert (row["state"], row["cells"], row["bytes"]) == ("resident", 1, 2 * 1024**3)


def test_the_next_in_line_waits_with_a_position_and_is_next(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    first, second, third = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2, 3))
    lease = first.acquire()
    queued = second.queue()
    assert queued["position"] == 1
    assert queued["code"] == "GpuInUse"
    assert queued["message"].startswith("waiting for a GPU: 1st in line")
    assert "user1" not in queued["message"]
    assert third.queue()["position"] == 2
    first.release(lease)
    granted = second.expect("granted")
    assert granted["fence"] > lease["fence"]
    assert third.expect("queued")["position"] == 1
    second.release(granted)
    third.expect("granted")


def test_a_device_that_the_lab_has_drained_is_lent_to_no_cell_until_it_is_returned(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    uuid, reasons = broker.status()["devices"][0]["uuid"], {}
    reasons[uuid] = "Xid 79"
    watch = Broker(broker.socket, broker.node_token, OBSERVER).watch(lambda _status: None, drained=lambda: dict(reasons))
    eventually(lambda: broker.status()["devices"][0]["withheld"] == "drained: Xid 79")
    kernel = kernels(broker, broker.session(1))
    queued = kernel.queue()
    assert queued["code"] == "GpuWithheld"
    reasons.clear()
    kernel.expect("granted")
    assert broker.status()["devices"][0]["withheld"] is None
    watch.close()


def test_what_is_no_lab_drains_nothing(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    kernel = kernels(broker, broker.session(1))
    kernel.say("drained", devices={broker.status()["devices"][0]["uuid"]: "mine"})
    kernel.acquire()
    assert broker.status()["devices"][0]["withheld"] is None


def test_a_cancelled_request_leaves_the_line(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    lease = first.acquire()
    request = second.ask()
    second.expect("queued")
    second.say("cancel", request=request)
    assert second.expect("cancelled")["request"] == request
    first.release(lease)
    second.nothing("granted")
    assert broker.status()["queue"] == []


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_lease_ends_with_its_holder(brokers: Start, kernels: Kernels, end: str) -> None:
    broker = brokers()
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.acquire()
    second.queue()
    if end == "kill":
        first.kill()
    else:
        first.tell("!close")
    second.expect("granted")
    gone = eventually(lambda: first.pid not in [row["pid"] for row in broker.status()["tenants"]] or end == "close")
    assert gone


def test_the_same_request_is_the_same_lease(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    lease = kernel.acquire()
    kernel.say("acquire", request=lease["request"], gpus=0)
    again = kernel.expect("granted")
    assert (again["lease"], again["fence"]) == (lease["lease"], lease["fence"])


def test_a_stale_release_changes_nothing(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel, other = (kernels(broker, broker.session(number)) for number in (1, 2))
    old = kernel.cell()
    lease = kernel.acquire()
    kernel.release(old)
    other.say("release", lease=lease["lease"], fence=lease["fence"])
    other.expect("released")
    kernel.say("release", lease=lease["lease"], fence=lease["fence"] + 1)
    kernel.expect("released")
    assert [row["id"] for row in leases_of(broker)] == [lease["lease"]]


def test_several_devices_for_a_cell(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    kernel = kernels(broker, broker.session(1))
    kernel.say("home", gpus=2)
    assert len(kernel.expect("home")["devices"]) == 2
    lease = kernel.acquire()
    assert len(lease["devices"]) == 2
    kernel.release(lease)
    kernel.say("home", gpus=1)
    assert kernel.expect("refused")["code"] == "conflict", "its state is on two devices"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"gpus": 3}, "impossible"),
        ({"gpus": -1}, "invalid"),
        ({"gpus": "two"}, "invalid"),
        ({"devices": ["SIM-test-0"]}, "invalid"),
        ({"request": ""}, "invalid"),
    ],
)
def test_what_can_never_be_is_refused(brokers: Start, kernels: Kernels, fields: dict[str, object], code: str) -> None:
    broker = brokers(devices=2)
    kernel = kernels(broker, broker.session(1))
    kernel.ask(**fields)
    answer = kernel.expect("refused", "granted")
    assert answer["op"] == "refused"
    assert answer["code"] == code
    assert answer["message"]


def test_a_reserved_session_and_one_without_gpus_borrow_nothing(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    reserved = kernels(broker, broker.session(1, reserve=True))
    assert reserved.acquire()["op"] == "refused"
    none = kernels(broker, broker.session(2, gpus=0))
    assert none.acquire()["op"] == "refused"


def test_who_is_let_in(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    session, task = broker.session(1), broker.task(2)
    assert kernels(broker, task).welcome["code"] == "denied", "a task is no kernel"
    assert kernels(broker, session, token="carrel-job.1.1." + "0" * 64).welcome["code"] == "unauthenticated"
    assert kernels(broker, session, token="ü").welcome["code"] == "unauthenticated"
    assert kernels(broker, session, token=None).welcome["code"] == "unauthenticated"
    assert kernels(broker, session, role="king").welcome["code"] == "invalid"
    assert kernels(broker, session, v=2).welcome["code"] == "invalid"
    assert kernels(broker, session).welcome["op"] == "welcome"
    broker.end(session)
    refused = kernels(broker, session).welcome
    assert refused["code"] == "denied"
    assert "does not run" in refused["message"]


def test_a_task_has_its_devices_to_itself(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    kernel = kernels(broker, broker.session(1))
    kernel.cell()
    runner = kernels(broker, broker.task(2), role="runner")
    lease = runner.acquire(devices=["SIM-test-0"])
    assert lease["op"] == "granted"
    assert tenant_of(broker, kernel)["state"] == "suspended", "the state of the session was moved away first"
    assert kernel.queue()["code"] == "GpuTask"
    (device,) = broker.status()["devices"]
    assert device["wanted"] == 1
    assert device["residents"] == []
    runner.release(lease)
    assert kernel.expect("granted")["resumed"] is True


def test_a_runner_gets_only_what_placement_gave_it(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    runner = kernels(broker, broker.task(2, devices=1), role="runner")
    assert runner.acquire(devices=["SIM-test-1"])["code"] == "invalid"
    assert runner.acquire()["code"] == "invalid"


def test_nobody_sees_others_names(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    mine, theirs = broker.session(1, owner="ada"), broker.session(2, owner="bob")
    ada, bob = kernels(broker, mine), kernels(broker, theirs, label="secret-plans.ipynb")
    lease = bob.acquire()
    ada.queue()
    ada.say("status")
    seen = ada.expect("status")
    assert "bob" not in str(seen)
    assert "secret-plans" not in str(seen)
    (held,) = seen["leases"]
    assert (held["owner"], held["job"], held["cell"], held["mine"]) == ("", 0, "", False)
    assert [row["mine"] for row in seen["queue"]] == [True]
    everything = broker.status()
    assert {row["owner"] for row in everything["tenants"]} == {"ada", "bob"}
    bob.release(lease, blockers=["CALL ME AT 555", "CUDA IPC"])
    ada.say("status")
    told = ada.expect("status")
    assert "CALL ME" not in str(told)
    assert "CUDA IPC" in [row["why_not"] for row in told["tenants"]]


def test_the_history_of_a_session_is_its_own(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    session, other = broker.session(1), broker.session(2)
    kernel = kernels(broker, session)
    kernel.cell()
    lease = kernel.acquire()
    broker.advance(20.0)
    kernel.release(lease, outcome="error")
    history = broker.status(session.token)["history"]
    assert [(row["cell"], row["outcome"]) for row in history] == [("cell-2", "error"), ("cell-1", "ok")]
    assert broker.status(other.token)["history"] == []
    broker.restart()
    assert broker.status(session.token)["history"] == history
    assert tenant_of(broker, kernel)["gpu_seconds"] == 20.0


def test_watchers_see_changes(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, still=False)
    session = broker.session(1)
    watcher, kernel = kernels(broker, session, role="observer"), kernels(broker, session)
    watcher.say("watch")
    lease = kernel.acquire()
    while not watcher.expect("status")["leases"]:
        continue
    kernel.release(lease)
    while watcher.expect("status")["leases"]:
        continue
    watcher.ask()
    assert watcher.expect("refused")["code"] == "conflict", "an observer borrows nothing"


def test_nonsense_is_answered_and_harms_nobody(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    session = broker.session(1)
    kernel = kernels(broker, session)
    lease = kernel.acquire()
    hello = encode("hello", v=1, role="observer", token=session.token)
    bad = [b"\xff\xfe\n", b"[]\n", b"{}\n", b'{"op": 3}\n', b"x" * (LONGEST + 2), b"[" * 100_000 + b"\n", encode("acquire")]
    for data in [*bad, *(hello + line for line in bad)]:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(20)
            stream.connect(str(broker.socket))
            stream.sendall(data)
            answers = [decode(line)["op"] for line in stream.makefile("rb", buffering=0) if _last(line, stream)]
            assert answers[-1] == "refused", (data[:20], answers)
    kernel.say("dance")
    kernel.say("release", lease=["x"], fence="y")
    kernel.expect("released")
    kernel.say("hold", seconds="long")
    assert kernel.expect("refused")["code"] == "invalid"
    kernel.say("prepared", id=7, blockers=3)
    kernel.say("simulate", bytes="much")
    assert [row["id"] for row in leases_of(broker)] == [lease["lease"]]


def _last(line: bytes, stream: socket.socket) -> bool:
    """True for each line; after a refusal nothing more is read."""
    if b'"refused"' in line:
        stream.shutdown(socket.SHUT_RDWR)
    return True


def test_who_does_not_read_is_dropped_and_keeps_what_it_has(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1)
    kernel = kernels(broker, broker.session(1))
    lease = kernel.acquire()
    kernel.tell("!stop reading")
    for _ in range(12_000):
        kernel.say("status")
    eventually(lambda: "was dropped" in broker.log.read_text())
    assert [row["id"] for row in leases_of(broker)] == [lease["lease"]]
    kernel.kill()
    eventually(lambda: not leases_of(broker))

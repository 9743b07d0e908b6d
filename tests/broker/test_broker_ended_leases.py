"""Leases of sessions that are over: a broker keeps each until the lab has written it down."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kernels import FakeKernel, eventually, paused

from carrel.core.domain.lease import LeaseState
from carrel.node.broker.core.ended_leases import PAST
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rows import LeaseRow, TenantRow
from carrel.node.leases.protocol import OBSERVER, VERSION, decode, encode
from carrel.testing.waiting import PATIENCE
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


class Lab:
    """Watches as the lab does."""

    def __init__(self, broker: BrokerProcess, token: str | None = None) -> None:
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._stream.settimeout(PATIENCE)
        self._stream.connect(str(broker.socket))
        self._lines = self._stream.makefile("rb")
        self.say("hello", v=VERSION, role=OBSERVER, token=token or broker.node_token)
        self.hear("welcome")
        self.say("watch", past=True)
        self.hear("status")

    def say(self, op: str, **fields: Any) -> None:
        self._stream.sendall(encode(op, **fields))

    def hear(self, op: str) -> dict[str, Any]:
        while True:
            message = decode(self._lines.readline())
            if message["op"] == op:
                return message

    def past(self) -> list[dict[str, Any]]:
        """The leases of the next message."""
        return list(self.hear("past")["leases"])

    def heard_nothing_of(self, op: str) -> bool:
        """True when no such message came before the answer to a question that is asked now."""
        self.say("status")
        return decode(self._lines.readline())["op"] != op

    def close(self) -> None:
        self._lines.close()
        self._stream.close()


@contextmanager
def a_lab(broker: BrokerProcess, token: str | None = None) -> Iterator[Lab]:
    lab = Lab(broker, token)
    try:
        yield lab
    finally:
        lab.close()


@pytest.mark.gate
def test_the_lab_hears_of_leases_that_are_over_together_and_takes_each_once(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    session = broker.session(3, gpus=2, attempt=2)
    with a_lab(broker) as lab:
        kernel = kernels(broker, session)
        began = broker.moment
        assert began is not None
        for _ in range(2):
            lease = kernel.acquire()
            broker.advance(0.25)
            kernel.release(lease)
        broker.advance(1.0)
        first, second = lab.past()
        assert (first["n"], first["job"], first["attempt"], first["gpus"]) == (1, 3, 2, 2)
        assert (first["asked"], first["waited"], first["computed"], first["over"], first["seen"]) == (
            began,
            0.0,
            0.25,
            began + 0.25,
            began + 0.25,
        )
        assert (first["type"], first["memory"]) == (broker.devices[0].type, broker.devices[0].memory)
        assert second["n"] == 2
        assert second["process"] == first["process"]
        assert "cell" not in first
        lab.say("took", until=2)
    with a_lab(broker) as lab:
        assert lab.heard_nothing_of("past")
    broker.restart()
    kernel.expect("welcome")
    with a_lab(broker) as lab:
        kernel.cell()
        broker.advance(1.0)
        assert [row["n"] for row in lab.past()] == [3]


def test_what_no_lab_has_written_down_is_told_again(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    kernel.cell()
    with a_lab(broker) as lab:
        assert [row["n"] for row in lab.past()] == [1], "it was over before this lab came"
    broker.kill()
    broker.restart()
    kernel.expect("welcome")
    with a_lab(broker) as lab:
        assert [row["n"] for row in lab.past()] == [1]
        lab.say("took", until=0)
        assert lab.heard_nothing_of("past")
        broker.advance(10.0)
        assert [row["n"] for row in lab.past()] == [1], "it could not be written down before"
        lab.say("took", until=1)
        kernel.cell()
        broker.advance(1.0)
        assert [row["n"] for row in lab.past()] == [2]


def test_the_end_of_a_process_is_the_end_of_its_lease_where_a_broker_saw_it(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    with a_lab(broker) as lab:
        kernel.acquire()
        broker.advance(5.0)
        kernel.kill()
        eventually(lambda: broker.status()["tenants"] == [])
        broker.advance(1.0)
        (row,) = lab.past()
    assert row["outcome"] in ("killed", "aborted"), "its connection may be over first"
    assert (row["computed"], row["over"]) == (5.0, row["asked"] + 5.0)


def test_an_end_that_nobody_saw_is_not_told_as_one(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    kernel, other = kernels(broker, broker.session(1)), kernels(broker, broker.session(2))
    kernel.acquire()
    broker.advance(20.0)
    other.cell()  # the last that the broker writes down
    broker.kill()
    kernel.kill()
    broker.advance(3600.0)
    broker.restart()
    with a_lab(broker) as lab:
        rows = {row["job"]: row for row in lab.past()}
    assert rows[1]["over"] is None
    assert rows[1]["seen"] == rows[1]["asked"] + 20.0
    assert rows[1]["computed"] == 20.0
    assert rows[2]["over"] == rows[2]["seen"]


def test_a_pause_is_no_time_of_the_cell(brokers: Start, kernels: Kernels) -> None:
    broker, first, second, lease, granted = paused(brokers, kernels)
    broker.advance(2.0)
    second.release(granted)
    first.expect("resumed")
    broker.advance(4.0)
    first.release(lease)
    with a_lab(broker) as lab:
        found = {row["job"]: row for row in lab.past()}
    assert (found[1]["waited"], found[1]["computed"], found[1]["over"] - found[1]["asked"]) == (0.0, 7.0, 9.0)
    assert (found[2]["waited"], found[2]["computed"]) == (3.0, 2.0)


def test_tasks_and_strangers(brokers: Start, kernels: Kernels) -> None:
    """A task's use is that of its attempt. And a session's own observer is told of nobody's leases."""
    broker = brokers()
    session = broker.session(2)
    runner = kernels(broker, broker.task(1), role="runner")
    runner.release(runner.acquire(devices=[broker.devices[0].uuid]))
    kernels(broker, session).cell()
    with a_lab(broker) as lab:
        assert [row["job"] for row in lab.past()] == [2]
    with a_lab(broker, session.token) as lab:
        assert lab.heard_nothing_of("past")


@pytest.mark.parametrize("more", [0, 50])
def test_without_a_lab_the_oldest_go_and_their_numbers_are_missing(more: int) -> None:
    ledger = Ledger(make_id="b")
    lines = [ledger.everything(0.0)]
    tenant = TenantRow(id="t", pid=1, start=1, uid=1, job=1, attempt=1, owner="ada", role="kernel")
    ledger.add_tenant(tenant)
    for number in range(1, PAST + more + 1):
        lease = LeaseRow(
            id=f"l{number}", fence=0, tenant="t", request="", devices=("a",), state=LeaseState.ACTIVE, asked_at=1.0, since=1.0
        )
        ledger.add_lease(lease)
        ledger.drop_lease(lease, 2.0, outcome="ok")
        line = ledger.changes(2.0)
        assert line is not None
        lines.append(line)
    for read in (lines, [ledger.everything(3.0)]):
        again = Ledger(make_id="c")
        again.replay(read)
        assert [row["n"] for row in again.past.rows] == list(range(more + 1, PAST + more + 1))
        assert again.past.number == PAST + more

"""Tasks that give way to cells: real brokers, processes that act as runners and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kernels import FakeKernel, eventually, leases_of, tenant_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.units import GIB
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]

#: A task gives way as soon as somebody asks.
AT_ONCE = LendingRules(task_turn=0.0, task_share=0.0)


def runner_of(broker: BrokerProcess, kernels: Kernels, lends: bool = True) -> tuple[FakeKernel, dict[str, Any]]:
    runner = kernels(broker, broker.task(1, devices=1), role="runner")
    lease = runner.acquire(devices=[broker.devices[0].uuid], lends=lends)
    assert lease["op"] == "granted"
    return runner, lease


@pytest.mark.gate
def test_a_task_is_paused_for_a_cell_and_goes_on(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, rules=AT_ONCE)
    runner, lease = runner_of(broker, kernels)
    kernel = kernels(broker, broker.session(2, owner="bob"))
    granted = kernel.acquire()
    assert granted["op"] == "granted"
    assert runner.expect("paused")["lease"] == lease["lease"]
    assert tenant_of(broker, runner)["state"] == "resident", "both fit: nothing is moved"
    assert {row["role"]: row["state"] for row in leases_of(broker)} == {"kernel": "active", "runner": "paused"}
    kernel.release(granted)
    back = runner.expect("resumed")
    assert back["lease"] == lease["lease"]
    assert back["fence"] > granted["fence"]


def test_a_task_that_does_not_lend_keeps_its_gpu(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, rules=AT_ONCE)
    runner, _lease = runner_of(broker, kernels, lends=False)
    kernel = kernels(broker, broker.session(2))
    assert kernel.queue()["code"] == "GpuTask"
    runner.tell("!close")
    kernel.expect("granted")


def test_a_task_has_its_turn_first(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, rules=LendingRules(task_turn=3600.0))
    runner_of(broker, kernels)
    kernel = kernels(broker, broker.session(2))
    queued = kernel.queue()
    assert queued["code"] == "GpuTask"
    assert "has its turn, then lends the GPU" in queued["message"]
    assert queued["estimate"] == 3600.0


def test_what_does_not_fit_beside_the_cell_is_moved_away_and_back(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, rules=AT_ONCE, state=10 * GIB)
    runner, lease = runner_of(broker, kernels)
    kernel = kernels(broker, broker.session(2))
    kernel.queue()
    broker.advance(60.0)  # what was moved lately stays for a while
    granted = kernel.expect("granted")
    assert runner.expect("paused")["lease"] == lease["lease"]
    assert tenant_of(broker, runner)["state"] == "suspended"
    kernel.release(granted)
    runner.expect("resumed")
    assert tenant_of(broker, runner)["state"] == "resident"


def test_a_paused_task_survives_a_killed_broker(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, rules=AT_ONCE)
    runner, lease = runner_of(broker, kernels)
    kernel = kernels(broker, broker.session(2))
    granted = kernel.acquire()
    runner.expect("paused")
    broker.kill()
    broker.restart()
    welcome = runner.expect("welcome")
    assert [(row["lease"], row["state"]) for row in welcome["leases"]] == [(lease["lease"], "paused")]
    kernel.expect("welcome")
    kernel.release(granted)
    assert runner.expect("resumed")["lease"] == lease["lease"]


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_task_that_ends_while_it_is_paused_leaves_nothing(brokers: Start, kernels: Kernels, end: str) -> None:
    broker = brokers(devices=1, rules=AT_ONCE)
    runner, _lease = runner_of(broker, kernels)
    kernel = kernels(broker, broker.session(2))
    granted = kernel.acquire()
    runner.expect("paused")
    if end == "kill":
        runner.kill()
    else:
        runner.tell("!close")
    eventually(lambda: [row["role"] for row in leases_of(broker)] == ["kernel"])
    kernel.release(granted)
    assert leases_of(broker) == []
    assert kernel.cell()["op"] == "granted"

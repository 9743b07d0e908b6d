"""Where state cannot be moved: the lease stays, with an idle timer, and nothing is lost without a warning."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from kernels import FakeKernel, eventually, leases_of, tenant_of, two_of

from carrel.core.domain.units import GIB
from carrel.testing.waiting import PATIENCE
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


@pytest.mark.gate
def test_the_lease_stays_with_an_idle_kernel_that_has_a_state(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    kernel = kernels(broker, broker.session(1))
    assert kernel.welcome["tier"] == "hold"
    assert kernel.welcome["hold_time"] == 1800.0
    kernel.cell(cuda=True)
    (held,) = leases_of(broker)
    assert held["state"] == "held"
    assert held["held_until"] > held["since"] + 1700
    lease = kernel.acquire()
    assert [row["state"] for row in leases_of(broker)] == ["active"]
    kernel.release(lease)
    assert tenant_of(broker, kernel)["cells"] == 2
    assert [row["state"] for row in leases_of(broker)] == ["held"]


def test_without_a_state_the_lease_ends_with_the_cell(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    kernel = kernels(broker, broker.session(1))
    kernel.cell(cuda=False)
    assert leases_of(broker) == []
    assert tenant_of(broker, kernel)["state"] == "none"


def test_the_idle_timer_warns_and_then_ends_the_kernel(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    broker.advance(2 * broker.config.hold_time)  # its time is over, but nobody waits
    first.nothing("notice", "lost")
    assert second.queue()["code"] == "GpuHeld"
    warning = first.expect("notice")
    assert warning["level"] == "warning"
    assert "Others wait" in warning["message"]
    assert "In 5 min the kernel is ended" in warning["message"]
    (held,) = leases_of(broker)
    assert held["wanted_since"] is not None
    broker.advance(240.0)
    assert "In 1 min the kernel is ended" in first.expect("notice")["message"]
    broker.advance(60.0)
    assert "idle timer" in first.expect("lost")["message"]
    assert first.process.poll() is None, "it has a moment to show why"
    broker.advance(1.0)
    second.expect("granted")
    assert first.process.wait(timeout=PATIENCE) == -signal.SIGTERM


def test_a_cell_in_time_keeps_the_device(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    second.queue()
    for _ in range(3):
        broker.advance(broker.config.hold_time - 1.0)
        first.expect("notice")
        first.cell()
        eventually(lambda: leases_of(broker)[0]["wanted_since"])
    assert first.process.poll() is None
    broker.advance(broker.config.hold_time)
    first.expect("lost")
    broker.advance(1.0)
    second.expect("granted")


def test_a_kernel_that_ignores_the_end_is_killed(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    first.process.send_signal(signal.SIGSTOP)  # SIGTERM waits for ever
    second.queue()
    broker.advance(broker.config.hold_time)
    broker.advance(1.0)
    assert first.process.poll() is None
    broker.advance(broker.config.grace)
    second.expect("granted")
    assert first.process.wait(timeout=PATIENCE) == -signal.SIGKILL


def test_holding_by_choice_ends_without_harm(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=12 * GIB)
    first, second = two_of(broker, kernels)
    first.say("hold", seconds=1200)
    assert first.expect("held")["until"] > 0
    first.cell()
    assert [row["state"] for row in leases_of(broker)] == ["held"]
    assert second.queue()["code"] == "GpuHeld"
    broker.advance(1000.0)
    assert first.expect("notice")["level"] == "info"
    broker.advance(200.0)
    second.expect("granted")
    assert tenant_of(broker, first)["state"] == "suspended"


def test_holding_is_taken_back_and_has_a_limit(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    kernel.say("hold", seconds=100_000)
    assert "at most" in kernel.expect("refused")["remedy"]
    kernel.say("hold", seconds=600)
    kernel.expect("held")
    kernel.cell()
    assert leases_of(broker)
    kernel.say("hold", seconds=0)
    assert kernel.expect("held")["until"] is None
    assert eventually(lambda: leases_of(broker) == [])


def test_closing_the_connection_does_not_free_a_state_that_stays(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    kernel = kernels(broker, broker.session(1))
    kernel.acquire()
    kernel.say("touched")
    kernel.tell("!close")
    kernel2 = kernels(broker, broker.session(2))
    kernel2.cell(cuda=False)

"""Where state cannot be moved: the lease stays, with an idle timer, and nothing is lost without a warning."""

from __future__ import annotations

import signal
from collections.abc import Callable

from kernels import FakeKernel, eventually, leases_of, tenant_of

from carrel.domain.units import GIB
from carrel.testing.broker_process import BrokerProcess
from carrel.testing.waiting import PATIENCE

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


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
    broker = brokers(never_suspend=True, hold_time=1.5, grace=5.0)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    assert first.process.poll() is None
    first.nothing("notice", "lost", seconds=2.5)  # its time is over, but nobody waits
    second.ask()
    assert second.expect("queued")["code"] == "GpuHeld"
    warning = first.expect("notice")
    assert warning["level"] == "warning"
    assert "Others wait" in warning["message"]
    (held,) = leases_of(broker)
    assert held["wanted_since"] is not None
    assert "idle timer" in first.expect("lost")["message"]
    second.expect("granted")
    assert first.process.wait(timeout=PATIENCE) == -15


def test_a_cell_in_time_keeps_the_device(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True, hold_time=2.0)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    second.ask()
    for _ in range(3):
        first.expect("notice")
        first.cell()
    assert first.process.poll() is None
    first.expect("lost")
    second.expect("granted")


def test_a_kernel_that_ignores_the_end_is_killed(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True, hold_time=0.5, grace=0.5)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    first.process.send_signal(signal.SIGSTOP)  # SIGTERM waits for ever
    second.ask()
    second.expect("granted")
    assert first.process.wait(timeout=PATIENCE) == -9


def test_holding_by_choice_ends_without_harm(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=12 * GIB)
    first, second = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2))
    first.say("hold", seconds=2)
    assert first.expect("held")["until"] > 0
    first.cell()
    assert [row["state"] for row in leases_of(broker)] == ["held"]
    second.ask()
    assert second.expect("queued")["code"] == "GpuHeld"
    assert first.expect("notice")["level"] == "info"
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

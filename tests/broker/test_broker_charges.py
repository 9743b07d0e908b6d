"""What sessions are charged for the devices that their cells borrow, as the lab's own observer reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels import FakeKernel, eventually, leases_of, paused, tenant_of

from carrel.core.domain.lease import LeaseState
from carrel.node.broker.core.ledger import CHARGES, Ledger
from carrel.node.broker.core.rows import LeaseRow, TenantRow
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


def charged(broker: BrokerProcess, job: int = 1, attempt: int = 1) -> float:
    found = {(row["job"], row["attempt"]): row["seconds"] for row in broker.status()["charges"]}
    return float(found.get((job, attempt), 0.0))


@pytest.mark.gate
def test_a_cell_is_charged_for_each_device_from_its_grant_to_its_release(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    session = broker.session(1, gpus=2)
    kernel = kernels(broker, session)
    assert broker.status()["charges"] == []
    lease = kernel.acquire()
    broker.advance(4.0)
    assert charged(broker) == 8.0
    broker.advance(5.5)
    kernel.release(lease)
    (row,) = broker.status()["charges"]
    assert (row["job"], row["attempt"], row["owner"]) == (1, 1, "alice")
    assert row["seconds"] == tenant_of(broker, kernel)["gpu_seconds"] == 19.0
    (cell,) = broker.status(session.token)["history"]
    assert cell["held"] == 9.5


def test_the_cells_of_one_session_are_charged_together_and_the_charge_outlives_them(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    session = broker.session(1)
    first, second = kernels(broker, session), kernels(broker, session)
    first.acquire()
    broker.advance(7.0)
    second.acquire()
    broker.advance(10.0)
    assert charged(broker) == 27.0
    first.kill()
    second.kill()
    eventually(lambda: broker.status()["tenants"] == [])
    assert charged(broker) == 27.0
    broker.restart()
    assert charged(broker) == 27.0


def test_a_pause_is_not_charged(brokers: Start, kernels: Kernels) -> None:
    broker, first, second, lease, granted = paused(brokers, kernels)
    broker.advance(2.0)
    assert (charged(broker, 1), charged(broker, 2)) == (3.0, 2.0)
    second.release(granted)
    first.expect("resumed")
    broker.advance(4.0)
    assert (charged(broker, 1), charged(broker, 2)) == (7.0, 2.0)
    first.release(lease)


@pytest.mark.parametrize("by_choice", [True, False])
def test_a_device_that_is_held_is_charged(brokers: Start, kernels: Kernels, by_choice: bool) -> None:
    broker = brokers(never_suspend=not by_choice)
    kernel = kernels(broker, broker.session(1))
    if by_choice:
        kernel.say("hold", seconds=600)
        kernel.expect("held")
    kernel.cell()
    assert [row["state"] for row in leases_of(broker)] == ["held"]
    broker.advance(10.0)
    assert charged(broker) == 10.0
    kernel.cell()
    broker.advance(20.0)
    kernel.kill()
    eventually(lambda: leases_of(broker) == [])
    assert charged(broker) == 30.0


def test_a_task_is_not_charged_here(brokers: Start, kernels: Kernels) -> None:
    """Its attempt is: it holds the devices that placement gave it."""
    broker = brokers()
    runner = kernels(broker, broker.task(1), role="runner")
    lease = runner.acquire(devices=[broker.devices[0].uuid])
    eventually(lambda: leases_of(broker)[0]["state"] == "active")
    broker.advance(10.0)
    assert broker.status()["charges"] == []
    runner.release(lease)
    assert broker.status()["charges"] == []


def test_a_restart_neither_forgets_nor_charges_twice(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    kernel.cell()
    lease = kernel.acquire()
    broker.advance(6.0)
    broker.kill()
    broker.advance(3.0)
    broker.restart()
    kernel.expect("welcome")
    broker.advance(1.0)
    assert charged(broker) == 10.0, "the cell has gone on"
    kernel.release(lease)
    assert tenant_of(broker, kernel)["gpu_seconds"] == 10.0
    for _ in range(2):
        broker.advance(100.0)
        broker.restart()
        kernel.expect("welcome")
        assert charged(broker) == 10.0


def test_nobody_is_charged_for_the_time_in_which_no_broker_ran_and_the_holder_died(brokers: Start, kernels: Kernels) -> None:
    """After a power cut the machine may come back days later."""
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    lease = kernel.acquire()
    broker.advance(30.0)
    kernel.release(lease)
    kernel.acquire()
    broker.advance(20.0)
    broker.kill()
    kernel.kill()
    broker.advance(3 * 24 * 3600.0)
    broker.restart()
    eventually(lambda: broker.status()["tenants"] == [])
    assert charged(broker) == 30.0


def test_charges_are_for_the_lab_alone(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    session = broker.session(1)
    kernels(broker, session).cell()
    assert broker.status()["charges"]
    assert broker.status(session.token)["charges"] == []


def test_of_sessions_that_are_over_only_the_latest_charges_are_kept() -> None:
    ledger = Ledger(make_id="b")
    lines = [ledger.everything(0.0)]
    for number in range(1, CHARGES + 51):
        tenant = TenantRow(id=f"t{number}", pid=number, start=1, uid=1, job=number, attempt=1, owner="ada", role="kernel")
        ledger.add_tenant(tenant)
        lease = LeaseRow(
            id=f"l{number}",
            fence=0,
            tenant=tenant.id,
            request="",
            devices=("a",),
            state=LeaseState.ACTIVE,
            asked_at=number,
            since=number,
        )
        ledger.add_lease(lease)
        ledger.drop_tenant(tenant, number + 0.5)
        line = ledger.changes(number + 0.5)
        assert line is not None
        lines.append(line)
    assert len(ledger.charged(1000.0)) <= CHARGES + 1
    again = Ledger(make_id="c")
    again.replay(lines)
    again.everything(1000.0)
    assert sorted(row.job for row in again.charged(1000.0).values()) == list(range(51, CHARGES + 51))
    assert all(row.seconds == 0.5 for row in again.charged(1000.0).values())

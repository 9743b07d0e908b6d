"""A broker that is killed and started again: nobody who computes notices, nobody loses a place, nothing is leaked."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kernels import FakeKernel, check_journal, eventually, leases_of, paused, tenant_of, two_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.units import GIB, MIB
from carrel.node.broker.journal import read_lines
from carrel.testing.waiting import PATIENCE
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


@pytest.mark.gate
def test_a_lease_and_the_line_survive(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    first, second, third = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2, 3))
    lease = first.acquire()
    second.queue()
    third.queue()
    id_before = first.welcome["broker"]
    broker.restart()
    again = first.expect("welcome")
    assert again["broker"] == id_before
    (kept,) = again["leases"]
    assert (kept["lease"], kept["fence"], kept["state"]) == (lease["lease"], lease["fence"], "active")
    assert second.expect("queued")["position"] == 1
    eventually(lambda: [row["job"] for row in broker.status()["queue"]] == [2, 3])
    first.release(lease)
    assert second.expect("granted")["fence"] > lease["fence"]


def test_a_holder_that_died_meanwhile_is_noticed(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.acquire()
    second.queue()
    broker.kill()
    first.kill()
    broker.restart()
    second.expect("granted")
    assert {row["pid"] for row in broker.status()["tenants"]} == {second.pid}


def test_a_holder_that_does_not_connect_keeps_its_lease_while_it_lives(brokers: Start, kernels: Kernels) -> None:
    """It may hold Python's lock for minutes while its cell computes; no missing sign of life ends a lease."""
    broker = brokers(rules=LendingRules(time_slice=0))
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    lease = first.acquire()
    first.process.send_signal(signal.SIGSTOP)
    broker.restart()
    assert second.queue()["code"] == "GpuInUse"
    broker.advance(24 * 3600.0)
    assert [row["id"] for row in leases_of(broker)] == [lease["lease"]]
    first.process.send_signal(signal.SIGCONT)
    assert first.expect("welcome")["leases"][0]["lease"] == lease["lease"]
    first.release(lease)
    second.expect("granted")


def test_who_waited_and_does_not_come_back_loses_its_place(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    lease = first.acquire()
    second.queue()
    second.process.send_signal(signal.SIGSTOP)
    broker.restart()
    first.expect("welcome")
    broker.advance(broker.config.reconnect_time)
    last = {}

    def dropped() -> bool:
        for _at, rows, drops in read_lines(broker.directory / "state" / "journal.jsonl"):
            last.update({row["id"]: True for kind, row in rows if kind == "request"})
            last.update({name: False for kind, name in drops if kind == "request"})
        return last == {next(iter(last)): False}

    eventually(dropped)
    first.release(lease)
    second.process.send_signal(signal.SIGCONT)
    second.expect("granted")  # it asks again, as a new request


def test_states_in_host_memory_are_still_known(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=12 * GIB)
    first, second = two_of(broker, kernels)
    first.cell()
    second.cell()
    broker.restart()
    first.expect("welcome")
    assert tenant_of(broker, first)["state"] == "suspended"
    assert first.acquire()["resumed"] is True
    assert tenant_of(broker, second)["state"] == "suspended"


def test_a_move_that_was_cut_off_is_repeated(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=12 * GIB, rate=float(MIB))  # a move takes hours
    slow = broker.config.simulation
    quick = replace(slow, rate=100.0 * GIB)
    first, second = two_of(broker, kernels)
    first.cell()
    second.ask()
    eventually(lambda: tenant_of(broker, first)["state"] == "suspending")
    broker.restart(simulation=quick)
    second.release(second.expect("granted"))
    second.kill()
    broker.restart(simulation=slow)
    first.expect("welcome")
    first.expect("welcome")
    request = first.ask()
    eventually(lambda: tenant_of(broker, first)["state"] == "resuming")
    broker.restart(simulation=quick)
    granted = first.expect("granted")
    assert granted["request"] == request
    assert granted["resumed"] is True


def test_a_paused_cell_goes_on_after_a_restart(brokers: Start, kernels: Kernels) -> None:
    broker, first, second, lease, granted = paused(brokers, kernels)
    broker.restart()
    (kept,) = first.expect("welcome")["leases"]
    assert (kept["lease"], kept["state"]) == (lease["lease"], "paused")
    second.expect("welcome")
    second.release(granted)
    assert first.expect("resumed")["fence"] > granted["fence"]


def test_an_end_by_the_idle_timer_is_carried_out_after_a_restart(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(never_suspend=True)
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    first.cell()
    second.queue()
    broker.advance(broker.config.hold_time)
    assert '"ending":true' in (broker.directory / "state" / "journal.jsonl").read_text()
    assert first.process.poll() is None
    broker.restart()
    second.expect("granted")
    assert first.process.wait(timeout=PATIENCE) == -signal.SIGTERM


def test_an_unfinished_line_is_no_line(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    lease = kernel.acquire()
    broker.kill()
    with (broker.directory / "state" / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"at": 1, "set": [], "drop": [["lease", "')
    broker.restart()
    assert kernel.expect("welcome")["leases"][0]["lease"] == lease["lease"]


def test_a_damaged_line_does_not_hide_those_after_it(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    path = broker.directory / "state" / "journal.jsonl"
    kernel.cell()
    early = path.stat().st_size
    lease = kernel.acquire()
    broker.kill()
    whole = path.read_bytes()
    data = bytearray(whole)
    place = data.rfind(b'"history"', 0, early)
    data[place + 1] ^= 1
    path.write_bytes(data)
    broker.restart()
    assert [row["lease"] for row in kernel.expect("welcome")["leases"]] == [lease["lease"]]
    (kept,) = path.parent.glob("journal.jsonl.0*")
    kept.write_bytes(whole)  # the check of every broker's journals is of what it wrote


def test_the_journal_is_begun_anew_when_it_is_long(brokers: Start, kernels: Kernels, tmp_path: Path) -> None:
    broker = brokers(keep_journals=2)
    kernel = kernels(broker, broker.session(1))
    for _ in range(3):
        kernel.cell()
        broker.restart()
        kernel.expect("welcome")
    kept = sorted(path.name for path in (broker.directory / "state").glob("journal.jsonl*"))
    assert kept == ["journal.jsonl", "journal.jsonl.000002", "journal.jsonl.000003"]
    assert kernel.cell()["fence"] == 4


def test_it_ends_when_the_lab_is_removed(brokers: Start) -> None:
    broker = brokers()
    shutil.rmtree(broker.directory / "state")
    broker.advance(5.0)
    assert broker.process is not None
    assert broker.process.wait(timeout=PATIENCE) == 0
    assert "was removed" in broker.log.read_text()
    (broker.directory / "state").mkdir()
    assert check_journal(broker) == 0


def test_one_broker_for_a_directory(brokers: Start) -> None:
    broker = brokers(still=False)
    first = broker.process
    broker.process = None
    try:
        broker.start()  # the first one answers on the socket
    finally:
        second, broker.process = broker.process, first
    assert second is not None
    assert second.wait(timeout=PATIENCE) == 3
    assert "another broker" in broker.log.read_text()


def test_what_cannot_be_written_down_is_not_done(brokers: Start, kernels: Kernels) -> None:
    """A full disk: the broker rather ends than lends what it would not remember. Then it goes on where it was."""
    broker = brokers()
    first, second = (kernels(broker, broker.session(number)) for number in (1, 2))
    lease = first.acquire()
    assert broker.process is not None
    size = (broker.directory / "state" / "journal.jsonl").stat().st_size
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (size + 10, size + 10))
    first.say("release", lease=lease["lease"], fence=lease["fence"], cuda=True)
    second.ask()
    assert broker.process.wait(timeout=PATIENCE) != 0
    broker.start()
    assert first.expect("welcome")["leases"][0]["lease"] == lease["lease"]
    second.expect("queued")
    first.release(lease)
    second.expect("granted")

"""Whose state is where: moved when somebody needs the room, brought back for the next cell, and every way it can go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels import FakeKernel, eventually, leases_of, paused, tenant_of, two_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.units import GIB
from support.broker_process import BrokerProcess

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]
#: States so large that only one fits a device.
LARGE = 12 * GIB


def two(broker: BrokerProcess, kernels: Kernels) -> tuple[FakeKernel, FakeKernel]:
    """Two sessions of two users; the first had a cell, and its state is on the device."""
    first, second = two_of(broker, kernels)
    first.cell()
    return first, second


@pytest.mark.gate
def test_states_stay_while_there_is_room(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=2 * GIB)
    first, second = two(broker, kernels)
    second.cell()
    again = first.cell()
    assert again["resumed"] is False
    (device,) = broker.status()["devices"]
    assert len(device["residents"]) == 2
    assert device["used"] == 4 * GIB


def test_a_state_is_moved_for_another_and_brought_back(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE)
    first, second = two(broker, kernels)
    request = second.ask()
    assert second.expect("queued")["code"] == "GpuMoving"
    prepare = first.expect("prepare")
    assert prepare["timeout"] == 5.0
    lease = second.expect("granted")
    assert lease["request"] == request
    assert tenant_of(broker, first)["state"] == "suspended"
    second.release(lease)
    back = first.acquire()
    assert back["resumed"] is True
    assert "brought back" in back["message"]
    assert tenant_of(broker, second)["state"] == "suspended"
    first.release(back)


def test_a_kernel_that_does_not_answer_is_not_waited_for_long(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE)
    first, second = two(broker, kernels)
    first.tell("!deaf")
    second.ask()
    timeout = first.expect("prepare")["timeout"]
    broker.advance(timeout)
    second.expect("granted")


def test_a_state_that_cannot_move_holds_its_device(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE)
    first = kernels(broker, broker.session(1, owner="ada"), blockers=["managed memory"])
    first.cell()
    second = kernels(broker, broker.session(2, owner="bob"))
    second.ask()
    eventually(lambda: tenant_of(broker, first)["why_not"] == "managed memory")
    held = eventually(lambda: [row for row in leases_of(broker) if row["state"] == "held"])
    assert held[0]["tenant"] == tenant_of(broker, first)["id"]
    eventually(lambda: [row["code"] for row in broker.status()["queue"]] == ["GpuHeld"])
    assert "managed memory" in first.expect("notice")["message"]
    again = first.acquire()
    assert again["op"] == "granted", "its own cells go on meanwhile"
    first.release(again, blockers=["managed memory"])
    second.nothing("granted")
    first.kill()
    second.expect("granted")


def test_a_long_cell_is_paused_and_goes_on(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(rules=LendingRules(time_slice=3.0))
    first, second = two_of(broker, kernels)
    lease = first.acquire()
    request = second.ask()
    second.expect("queued")
    broker.advance(3.0)
    assert first.expect("paused")["lease"] == lease["lease"]
    granted = second.expect("granted")
    assert granted["request"] == request
    eventually(lambda: [row["resumes"] for row in broker.status()["queue"]] == [lease["lease"]])
    second.release(granted)
    resumed = first.expect("resumed")
    assert resumed["lease"] == lease["lease"]
    assert resumed["fence"] > granted["fence"] > lease["fence"]
    first.release({**lease, "fence": resumed["fence"]})
    assert leases_of(broker) == []
    (entry,) = broker.status(first.job.token)["history"]
    assert entry["outcome"] == "ok"


def test_a_paused_cell_that_ends_needs_no_device(brokers: Start, kernels: Kernels) -> None:
    broker, first, second, lease, granted = paused(brokers, kernels)
    first.release(lease, outcome="error")
    assert broker.status()["queue"] == []
    second.release(granted)
    first.nothing("resumed")
    assert leases_of(broker) == []


def test_a_state_in_host_memory_comes_back_on_a_free_device_like_its_home(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2, state=10 * GIB)
    first, second, third = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2, 3))
    first.cell()
    second.cell()
    long = third.acquire()  # there was room for it on one device only after a move
    away, other = (first, second) if tenant_of(broker, first)["state"] == "suspended" else (second, first)
    old, new = tenant_of(broker, away)["home"], tenant_of(broker, other)["home"]
    assert [device["uuid"] for device in long["devices"]] == old
    other.kill()
    lease = away.acquire()
    assert lease["resumed"] is True
    assert [device["uuid"] for device in lease["devices"]] == tenant_of(broker, away)["home"] == new != old
    away.release(lease)
    broker.restart()
    assert tenant_of(broker, away)["home"] == new
    assert away.acquire()["devices"] == lease["devices"]


def test_host_memory_is_a_limit(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE, rules=LendingRules(host_memory=4 * GIB))
    first, second = two(broker, kernels)
    assert second.queue()["code"] == "HostMemoryFull"
    first.kill()
    second.expect("granted")


def test_a_task_whose_device_cannot_be_cleared_is_refused_where_it_can_be_placed_elsewhere(
    brokers: Start, kernels: Kernels
) -> None:
    broker = brokers(state=LARGE, rules=LendingRules(host_memory=4 * GIB))
    first = kernels(broker, broker.session(1, owner="ada"))
    first.cell()
    (device,) = broker.devices
    assert broker.status()["host"] == {
        "limit": 4 * GIB,
        "left": 4 * GIB,
        "states": 0,
        "pool": None,
        "disk": None,
        "disk_problem": "",
    }
    task = kernels(broker, broker.task(2, owner="bob"), role="runner")
    refused = task.acquire(devices=[device.uuid], elsewhere=True)
    assert (refused["op"], refused["code"]) == ("refused", "blocked")
    assert "cannot be had for it now: host memory has no room" in refused["message"]
    assert broker.status()["queue"] == []
    assert task.queue(devices=[device.uuid])["code"] == "HostMemoryFull", "one that was stopped has nowhere else to go, and waits"
    first.kill()
    task.expect("granted")


def test_a_cell_that_met_a_full_device_gets_all_of_it_next(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=2 * GIB)
    first, second = two(broker, kernels)
    second.cell(oom=True)
    assert tenant_of(broker, first)["state"] == "resident"
    second.cell()
    assert tenant_of(broker, first)["state"] == "suspended"


def test_a_made_up_state_has_the_size_that_it_says(brokers: Start, kernels: Kernels) -> None:
    broker = brokers()
    kernel = kernels(broker, broker.session(1))
    kernel.say("simulate", bytes=5 * GIB)
    kernel.cell()
    assert tenant_of(broker, kernel)["bytes"] == 5 * GIB
    none = kernels(broker, broker.session(2))
    none.say("simulate", bytes=0)
    none.cell()
    assert tenant_of(broker, none)["state"] == "none"


def test_a_task_that_has_not_begun_does_not_wait_for_a_cell_while_another_gpu_is_free(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2)
    cell = kernels(broker, broker.session(1, owner="ada"))
    lease = cell.acquire()
    (there,) = [device["uuid"] for device in lease["devices"]]
    task = kernels(broker, broker.task(2, devices=2, owner="bob"), role="runner")
    refused = task.acquire(devices=[there], elsewhere=True)
    assert (refused["op"], refused["code"]) == ("refused", "blocked")
    assert "a cell of another session computes" in refused["message"]
    (other,) = {device.uuid for device in broker.devices} - {there}
    assert task.acquire(devices=[other], elsewhere=True)["op"] == "granted"


def test_what_is_kept_in_reserve_is_given_back_before_anybody_is_moved(brokers: Start, kernels: Kernels) -> None:
    """14 of 16 GiB, of which 10 are the cache of an allocator: another 8 GiB fit beside what is left."""
    broker = brokers(rules=LendingRules(host_memory=0))
    first, second, third = (kernels(broker, broker.session(number, owner=f"user{number}")) for number in (1, 2, 3))
    first.say("simulate", bytes=14 * GIB, cached=10 * GIB)
    first.cell()
    assert tenant_of(broker, first)["cached"] == 10 * GIB
    second.say("simulate", bytes=8 * GIB)
    second.cell()
    assert first.expect("prepare")
    row = tenant_of(broker, first)
    assert (row["state"], row["bytes"], row["cached"]) == ("resident", 4 * GIB, 0)
    third.say("simulate", bytes=4 * GIB)
    third.cell()
    assert broker.status()["devices"][0]["used"] == 16 * GIB


def test_who_does_not_answer_has_nothing_in_reserve(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(rules=LendingRules(host_memory=0))
    first, second = two_of(broker, kernels)
    first.say("simulate", bytes=14 * GIB, cached=10 * GIB)
    first.cell()
    first.tell("!deaf")
    second.say("simulate", bytes=8 * GIB)
    second.ask()
    broker.advance(first.expect("prepare")["timeout"])
    while second.expect("queued")["code"] != "HostMemoryFull":
        continue
    assert tenant_of(broker, first)["cached"] == 0


def test_a_cell_that_nothing_helps_stops_waiting(brokers: Start, kernels: Kernels) -> None:
    """Two kernels of 10 GiB on one GPU of 16, and 8 GiB of host memory: no way for the second, and it costs no kernel."""
    broker = brokers(state=10 * GIB, rules=LendingRules(host_memory=8 * GIB), hold_time=60.0)
    first, second = two(broker, kernels)
    assert second.queue()["code"] == "HostMemoryFull"
    broker.advance(60.0)
    over = second.expect("refused")
    assert over["code"] == "HostMemoryFull"
    assert "stopped waiting" in over["message"]
    assert "host memory has no room" in over["message"]
    assert "8G of it are left" in over["message"]
    assert "Shut down kernels" in over["remedy"]
    assert broker.status()["queue"] == []
    assert first.cell()["op"] == "granted", "whose state lies there goes on"
    first.kill()
    assert second.acquire()["op"] == "granted"


# --- the disk ---------------------------------------------------------------------------------------------------------------


def of_size(broker: BrokerProcess, kernels: Kernels, *sizes: int) -> list[FakeKernel]:
    """Kernels that each had a cell, whose states have these sizes in GiB."""
    found = []
    for number, size in enumerate(sizes, 1):
        found.append(kernels(broker, broker.session(number, owner=f"user{number}")))
        found[-1].say("simulate", bytes=size * GIB)
        found[-1].cell()
        broker.advance(10.0)  # one has lain idle longer than the next
    return found


def have(broker: BrokerProcess, *states: str) -> None:
    """Wait until the states of the sessions are these."""

    def those() -> bool:
        return [row["state"] for row in sorted(broker.status()["tenants"], key=lambda row: row["job"])] == list(states)

    eventually(those)


def test_states_that_host_memory_cannot_take_go_to_the_disk_and_all_take_turns(brokers: Start, kernels: Kernels) -> None:
    """Three kernels of 10 GiB on one GPU of 16, 8 GiB of host memory, and a disk."""
    broker = brokers(rules=LendingRules(host_memory=8 * GIB, state_disk=64 * GIB))
    found = of_size(broker, kernels, 10, 10, 10)
    for kernel in found * 2:
        assert kernel.cell()["op"] == "granted"
    have(broker, "spilled", "spilled", "resident")
    disk = {"limit": 64 * GIB, "left": 44 * GIB}
    host = {"limit": 8 * GIB, "left": 8 * GIB, "states": 0, "pool": None, "disk": disk, "disk_problem": ""}
    assert broker.status()["host"] == host


def test_what_has_lain_in_host_memory_longest_goes_on_to_the_disk(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(rules=LendingRules(host_memory=14 * GIB, state_disk=64 * GIB))
    first, second, third = of_size(broker, kernels, 12, 13, 14)
    have(broker, "spilled", "suspended", "resident")
    assert first.cell()["op"] == "granted", "it comes back, and the others make way"
    have(broker, "resident", "spilled", "suspended")
    first.kill()
    assert second.cell()["op"] == "granted"
    assert third.cell()["op"] == "granted"


def test_a_cell_is_paused_to_the_disk_and_goes_on(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(rules=LendingRules(time_slice=3.0, host_memory=GIB, state_disk=64 * GIB))
    first, second = of_size(broker, kernels, 10, 10)
    lease = first.acquire()
    second.queue()
    broker.advance(3.0)
    first.expect("paused")
    second.release(second.expect("granted"))
    first.release({**lease, "fence": first.expect("resumed")["fence"]})
    have(broker, "resident", "spilled")


def test_states_on_the_disk_outlive_a_killed_broker(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(rules=LendingRules(host_memory=8 * GIB, state_disk=64 * GIB))
    first, _second = of_size(broker, kernels, 10, 10)
    broker.restart()
    have(broker, "spilled", "resident")
    assert first.cell()["op"] == "granted"


def test_a_disk_that_takes_nothing_is_tried_again_and_a_damaged_state_is_lost_by_name(brokers: Start, kernels: Kernels) -> None:
    full = brokers(rules=LendingRules(host_memory=12 * GIB, state_disk=64 * GIB), faults={"disk_full": 0.5}, seed=3)
    of_size(full, kernels, 12, 12, 12)
    eventually(lambda: sorted(row["state"] for row in full.status()["tenants"]) == ["resident", "spilled", "suspended"])
    damaged = brokers(rules=LendingRules(host_memory=8 * GIB, state_disk=64 * GIB), faults={"disk_lost": 1.0})
    first, _second = of_size(damaged, kernels, 10, 10)
    refused = first.acquire()
    assert refused["op"] == "refused"
    assert "damaged" in refused["message"]
    have(damaged, "lost", "spilled")


def test_where_the_disk_is_full_too_the_cell_reads_since_when_what_helps_and_until_when(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=10 * GIB, rules=LendingRules(host_memory=8 * GIB, state_disk=5 * GIB), hold_time=60.0)
    first, second = two(broker, kernels)
    queued = second.queue()
    assert queued["code"] == "HostMemoryFull"
    assert "neither host memory nor the disk has room" in queued["message"]
    broker.advance(20.0)
    assert "this has been so for 20 s; " in second.expect("queued")["message"]
    broker.advance(40.0)
    over = second.expect("refused")
    assert "neither host memory nor the disk has room" in over["message"]
    assert first.cell()["op"] == "granted", "its state is where it was"


# --- faults -----------------------------------------------------------------------------------------------------------------


def test_a_lock_that_times_out_is_tried_again(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE, faults={"lock_timeout": 0.6}, seed=1, still=False)
    first, second = two(broker, kernels)
    second.ask()
    second.expect("granted")
    assert tenant_of(broker, first)["state"] == "suspended"
    assert "retry" in broker.log.read_text()


def test_a_lost_state_is_said_and_never_tried_again(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE, faults={"lost": 1.0})
    first, second = two(broker, kernels)
    second.cell()
    first.ask()
    assert first.expect("refused")["code"] == "lost"
    assert "Restart the kernel" in first.expect("lost")["message"]
    assert first.acquire()["code"] == "lost"
    assert tenant_of(broker, first)["state"] == "lost"
    second.kill()
    assert kernels(broker, broker.session(3)).acquire()["op"] == "granted", "the device is free for others"


def test_a_restore_that_does_not_begin_is_tried_again(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(state=LARGE, faults={"restore_retry": 0.5}, seed=2, still=False)
    first, second = two(broker, kernels)
    second.cell()
    for _ in range(2):
        lease = first.acquire()
        assert lease["op"] == "granted"
        first.release(lease)
        second.cell()
    assert "resume" in broker.log.read_text()
    assert "retry" in broker.log.read_text()

"""A broker on a node of a cluster: Slurm says of which GPUs a session has a share."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels import FakeKernel, tenant_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.units import GIB
from carrel.node.broker.config import write_config
from support.broker_process import BrokerProcess, FakeJob

Start = Callable[..., BrokerProcess]
Kernels = Callable[..., FakeKernel]


@pytest.mark.gate
def test_cells_borrow_the_gpu_of_their_share_and_no_other(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=3, shared=True)
    wanted = broker.devices[1].uuid
    first, second = (kernels(broker, broker.session(number, owner=f"user{number}", shares=(1,))) for number in (1, 2))
    assert first.welcome["home"] == [wanted]
    lease = first.acquire()
    assert [device["uuid"] for device in lease["devices"]] == [wanted]
    # Other GPUs are free, and not its own.
    assert second.queue()["code"] == "GpuInUse"
    first.release(lease)
    granted = second.expect("granted")
    assert [device["uuid"] for device in granted["devices"]] == [wanted]
    elsewhere = kernels(broker, broker.session(3, shares=(2,)))
    assert [device["uuid"] for device in elsewhere.acquire()["devices"]] == [broker.devices[2].uuid]


def test_more_than_the_share_is_refused(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=3, shared=True)
    kernel = kernels(broker, broker.session(1, shares=(1,)))
    kernel.ask(gpus=2)
    assert "a share of 1 in Slurm" in kernel.expect("refused")["message"]
    kernel.say("home", gpus=2)
    assert "a share of 1 in Slurm" in kernel.expect("refused")["message"]


def test_the_share_is_remembered_by_a_broker_that_was_killed(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=3, shared=True)
    kernel = kernels(broker, broker.session(1, shares=(2,)))
    kernel.release(kernel.acquire())
    broker.restart()
    assert tenant_of(broker, kernel)["home"] == [broker.devices[2].uuid]


@pytest.mark.parametrize("shares", [(), (7,), (0, 7)])
def test_a_session_without_a_share_of_what_is_lent_is_refused(brokers: Start, kernels: Kernels, shares: tuple[int, ...]) -> None:
    broker = brokers(devices=2, shared=True)
    kernel = kernels(broker, broker.session(1, shares=shares))
    assert kernel.welcome["op"] == "refused"
    assert "not lent here" in kernel.welcome["message"]


def test_everybody_may_connect_and_nobody_gets_in_without_a_token(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(shared=True)
    assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o666
    job = broker.session(1, shares=(0,))
    broker.end(job)
    assert kernels(broker, job).welcome["op"] == "refused"
    own = brokers()
    assert stat.S_IMODE(own.socket.stat().st_mode) == 0o600


#: A task can be paused at once, and for nearly all of its time.
LENDS = LendingRules(task_turn=0.0, most_lent=0.99)


def test_a_task_gives_the_gpu_of_its_shares_to_cells(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=3, shared=True, rules=LENDS)
    assert broker.status()["tasks_lend"]
    runner = kernels(broker, broker.task(1, shares=(1,)), role="runner")
    # It need not say so, and cannot name devices: Slurm has.
    lease = runner.acquire(devices=[broker.devices[0].uuid], lends=False)
    assert [device["uuid"] for device in lease["devices"]] == [broker.devices[1].uuid]
    elsewhere = kernels(broker, broker.session(2, owner="bob", shares=(2,)))
    elsewhere.release(elsewhere.acquire())
    broker.advance(60.0)  # what it lends it has earned
    kernel = kernels(broker, broker.session(3, owner="bob", shares=(1,)))
    granted = kernel.acquire()
    assert [device["uuid"] for device in granted["devices"]] == [broker.devices[1].uuid]
    assert runner.expect("paused")["lease"] == lease["lease"]
    broker.kill()
    broker.restart()
    assert [row["state"] for row in runner.expect("welcome")["leases"]] == ["paused"]
    kernel.expect("welcome")
    kernel.release(granted)
    assert runner.expect("resumed")["lease"] == lease["lease"]


def test_what_a_state_takes_to_leave_is_no_time_of_the_tasks(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, shared=True, rules=LENDS, state=10 * GIB, rate=1.0 * GIB)
    runner = kernels(broker, broker.task(1, shares=(0,)), role="runner")
    lease = runner.acquire()
    broker.advance(1000.0)
    kernels(broker, broker.session(2, shares=(0,))).acquire()
    rows = [row for _at, rows, _drops in broker.journal() for _kind, row in rows if row.get("id") == lease["lease"]]
    assert next(row["used"] for row in rows if row["state"] == "paused") == pytest.approx(990.0)


def test_a_task_that_has_nothing_to_spare_is_not_paused(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, shared=True, rules=replace(LENDS, most_lent=0.1, task_turn=3600.0))
    runner = kernels(broker, broker.task(1, shares=(0,)), role="runner")
    runner.acquire(lends=True)
    kernel = kernels(broker, broker.session(2, shares=(0,)))
    queued = kernel.queue()
    assert queued["code"] == "GpuTask"
    assert queued["estimate"] > 9 * 3500, "an hour of a cell is earned by nine of the task"


def test_where_no_task_lends_runners_are_refused(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, shared=True, rules=replace(LENDS, most_lent=0.0))
    assert not broker.status()["tasks_lend"]
    runner = kernels(broker, broker.task(1, shares=(0,)), role="runner")
    assert "has its GPUs from Slurm" in runner.acquire(lends=True)["message"]


def test_a_paused_task_has_its_gpu_again_where_no_task_lends_any_more(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=1, shared=True, rules=LENDS)
    runner = kernels(broker, broker.task(1, shares=(0,)), role="runner")
    lease = runner.acquire(lends=True)
    broker.advance(60.0)
    kernel = kernels(broker, broker.session(2, shares=(0,)))
    granted = kernel.acquire()
    runner.expect("paused")
    broker.config = replace(broker.config, rules=replace(LENDS, most_lent=0.0))
    write_config(broker.directory / "config.json", broker.config)
    broker.restart()
    runner.expect("welcome")
    kernel.expect("welcome")
    # It is taken back in the middle of the cell.
    assert runner.expect("resumed")["lease"] == lease["lease"]
    assert kernel.expect("paused")["lease"] == granted["lease"]


def test_whole_gpus_and_the_runners_of_sessions_are_no_tenants(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2, shared=True, rules=LENDS)
    for job in (broker.task(1), broker.session(2, shares=(0,))):
        assert "has its GPUs from Slurm" in kernels(broker, job, role="runner").welcome["message"]
    assert "not a session" in kernels(broker, broker.task(3, shares=(0,))).welcome["message"]


def test_of_two_tasks_that_name_a_device_the_second_holds_up_nobody(brokers: Start, kernels: Kernels) -> None:
    broker = brokers(devices=2, shared=True, rules=LENDS)
    first = kernels(broker, broker.task(1, shares=(0,)), role="runner")
    first.acquire(lends=True)
    second = kernels(broker, broker.task(2, owner="bob", shares=(0,)), role="runner")
    second.ask(lends=True)
    assert "Another task has" in second.expect("refused")["message"]


def test_a_task_that_runs_as_its_owner_is_known_by_its_user(brokers: Start, kernels: Kernels, tmp_path: Path) -> None:
    broker = brokers(devices=2, shared=True, rules=LENDS)
    job = broker.task(1, shares=(1,))
    (Path(broker.config.spool) / "1").rename(tmp_path / "1")
    place = str(tmp_path / "1" / "1")
    assert "not a session" in kernels(broker, job, attempt=place).welcome["message"]
    runner = kernels(broker, job, role="runner", attempt=place)
    assert [device["uuid"] for device in runner.acquire(lends=True)["devices"]] == [broker.devices[1].uuid]
    assert tenant_of(broker, runner)["owner"] == f"uid:{os.getuid()}"
    # A process of it with the residency library is one of its runner's.
    assert kernels(broker, job, role="residency", attempt=place).welcome["op"] == "welcome"
    assert kernels(broker, job, role="residency").welcome["op"] == "refused"


def theirs(broker: BrokerProcess, directory: Path, number: int = 1) -> tuple[FakeJob, Path]:
    """A session whose files are not in the lab's spool but where its owner has them."""
    job = broker.session(number, shares=(1,))
    (Path(broker.config.spool) / str(number)).rename(directory / str(number))
    return job, directory / str(number) / "1"


def test_a_session_that_runs_as_its_owner_is_known_by_its_user(brokers: Start, kernels: Kernels, tmp_path: Path) -> None:
    broker = brokers(devices=3, shared=True)
    job, place = theirs(broker, tmp_path)
    kernel = kernels(broker, job, attempt=str(place))
    lease = kernel.acquire()
    assert [device["uuid"] for device in lease["devices"]] == [broker.devices[1].uuid]
    # Not by the name that its files say.
    assert tenant_of(broker, kernel)["owner"] == f"uid:{os.getuid()}"
    kernel.release(lease)
    assert [(row["job"], row["attempt"]) for row in broker.status()["charges"]] == [(1, 1)]
    broker.end(job)
    assert "does not run" in kernels(broker, job, attempt=str(place)).welcome["message"]


def test_a_worker_of_a_pool_borrows_what_slurm_gave_it_shares_of(brokers: Start, kernels: Kernels, tmp_path: Path) -> None:
    broker = brokers(devices=2, shared=True)
    job = broker.worker(1, shares=(1,))
    worker = kernels(broker, job)
    lease = worker.acquire()
    assert [device["uuid"] for device in lease["devices"]] == [broker.devices[1].uuid]
    worker.release(lease)
    assert [(row["job"], row["attempt"]) for row in broker.status()["charges"]] == [(1, 1)]
    # One that runs as its owner is known by its files.
    other = broker.worker(2, shares=(1,))
    (Path(broker.config.spool) / "2").rename(tmp_path / "2")
    place = str(tmp_path / "2" / "1")
    theirs = kernels(broker, other, attempt=place)
    assert [device["uuid"] for device in theirs.acquire()["devices"]] == [broker.devices[1].uuid]
    assert "has its GPUs from Slurm" in kernels(broker, other, role="runner", attempt=place).welcome["message"]


def rewrite(place: Path, **changes: Any) -> None:
    launch = json.loads((place / "launch.json").read_text())
    (place / "launch.json").write_text(json.dumps(launch | changes))


def put_pipe(place: Path) -> None:
    (place / "launch.json").unlink()
    os.mkfifo(place / "launch.json")


def put_link(place: Path) -> None:
    (place / "launch.json").rename(place / "real")
    (place / "launch.json").symlink_to("real")


SPOILED: list[Callable[[Path], Any]] = [
    put_pipe,
    put_link,
    lambda place: rewrite(place, job_id=1000),
    lambda place: rewrite(place, shares=[-1]),
    lambda place: rewrite(place, shares="1"),
    lambda place: rewrite(place, shares=[7]),
    lambda place: rewrite(place, resources={"memory": -5}),
    lambda place: rewrite(place, task={"session": {"gpus": -1}}),
    lambda place: rewrite(place, task=[]),
    lambda place: (place / "launch.json").write_text("[" * 100_000),
    lambda place: (place / "launch.json").write_text(" " * 2_000_000),
]


def test_what_an_owner_can_write_harms_no_broker(brokers: Start, kernels: Kernels, tmp_path: Path) -> None:
    broker = brokers(devices=3, shared=True)
    for number, spoil in enumerate(SPOILED, 1):
        job, place = theirs(broker, tmp_path, number)
        spoil(place)
        assert kernels(broker, job, attempt=str(place)).welcome["op"] == "refused", number
    good, place = theirs(broker, tmp_path, 99)
    for path in ("relative", "/", 7, "/nowhere", "\0"):
        assert kernels(broker, good, attempt=path).welcome["op"] == "refused", path
    assert kernels(broker, good, attempt=str(place)).welcome["op"] == "welcome"

"""Real runners of tasks that have shares of a GPU from Slurm, with a broker on their node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels import FakeKernel

from carrel.core.control.launching import job_token
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Continued, Launch, Paused
from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.core.domain.resources import Resources
from carrel.core.spool import Spool
from carrel.engines.local import LocalEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.node.runner.lease import LONGEST_WAIT, take_lease
from carrel.testing.builders import EngineListener, LabHome, make_launch
from support.broker_process import BrokerProcess

Kernels = Callable[..., FakeKernel]
#: As Slurm names what it gives: by position.
GIVEN = (Device(uuid="0", index=0, type="gpu", name="gpu", memory=0),)
STEPS = "while [ ! -e go ]; do sleep 0.05; done; echo over"


class Node:
    """A node of a cluster: its broker, and what starts runners there as Slurm's batch script does."""

    def __init__(self, root: Path, broker: BrokerProcess) -> None:
        self.home, self.broker = LabHome(root), broker
        self.spool = Spool(Path(broker.config.spool))
        self.engine = LocalEngine(
            spool=self.spool,
            node=this_node(),
            run_dir=self.home.run,
            environ=os.environ,
            locks=DeviceLocks(root / "locks"),
            cgroups=False,
        )
        self.ear = EngineListener(self.engine)

    def start(self, command: str = STEPS, **fields: Any) -> Launch:
        launch = make_launch(self.home, command, devices=GIVEN, shares=(0,), lends=True, remote=True, **fields)
        launch = replace(launch, paths=replace(launch.paths, broker=str(self.broker.socket)))
        self.engine.start(launch, token=job_token(self.broker.secret, launch.job_id, launch.attempt))
        return launch

    def log(self, launch: Launch) -> str:
        return self.spool.attempt(launch.job_id, launch.attempt).log.read_text()

    def let_go(self, launch: Launch) -> None:
        (self.spool.attempt(launch.job_id, launch.attempt).work / "go").touch()


@pytest.fixture
def nodes(tmp_path: Path, brokers: Callable[..., BrokerProcess]) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start(**rules: Any) -> Node:
        given = {"task_turn": 0.0, "most_lent": 0.99, **rules}
        started.append(Node(tmp_path / "lab", brokers(devices=1, shared=True, rules=LendingRules(**given))))
        return started[-1]

    yield start
    for node in started:
        node.engine.close()


def cell_after(node: Node, launch: Launch, kernels: Kernels) -> tuple[FakeKernel, dict[str, Any]]:
    """A cell that has the GPU of the task, which has earned it in a minute of the broker's time."""
    node.ear.wait(launch, lambda _story: node.broker.status()["leases"])
    node.broker.advance(60.0)
    kernel = kernels(node.broker, node.broker.session(9, owner="bob", shares=(0,)))
    granted = kernel.acquire()
    node.ear.wait(launch, lambda story: story.first(Paused))
    return kernel, granted


@pytest.mark.gate
def test_a_task_is_paused_for_a_cell_and_ends_well(nodes: Callable[..., Node], kernels: Kernels) -> None:
    node = nodes()
    launch = node.start(resources=Resources(gpus=1, cpus=1, memory=512 * 1024**2, time=3600))
    kernel, granted = cell_after(node, launch, kernels)
    kernel.release(granted)
    node.ear.wait(launch, lambda story: story.first(Continued))
    node.let_go(launch)
    assert node.ear.ended(launch).state is JobState.COMPLETED
    assert "Cells of notebooks had its GPUs once" in node.log(launch)


def test_its_walltime_runs_on_and_ends_it_while_a_cell_computes(nodes: Callable[..., Node], kernels: Kernels) -> None:
    node = nodes()
    # For the broker its end is far away.
    node.broker.advance(-100_000.0)
    launch = node.start(resources=Resources(gpus=1, cpus=1, memory=512 * 1024**2, time=15))
    cell_after(node, launch, kernels)
    ended = node.ear.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.TIMEOUT, "TimeLimit")


def test_a_task_that_the_broker_refuses_goes_on_with_what_slurm_gave_it(nodes: Callable[..., Node]) -> None:
    node = nodes(most_lent=0.0)
    launch = node.start("echo over")
    assert node.ear.ended(launch).state is JobState.COMPLETED
    assert "It does not lend its GPU to cells: Job 1 has its GPUs from Slurm." in node.log(launch)


def test_a_task_does_not_wait_for_cells_while_slurms_limit_runs(nodes: Callable[..., Node], kernels: Kernels) -> None:
    node = nodes()
    kernel = kernels(node.broker, node.broker.session(9, owner="bob", shares=(0,)))
    kernel.acquire()
    job = node.broker.task(1, shares=(0,))
    launch = make_launch(node.home, "true", devices=GIVEN, shares=(0,), lends=True)
    moment, waits = [0.0], []

    def told(message: str) -> None:
        waits.append(message)
        moment[0] = LONGEST_WAIT

    with pytest.raises(Unavailable, match="have not left it within 180 s"):
        take_lease(
            replace(launch, paths=replace(launch.paths, broker=str(node.broker.socket))),
            job.token,
            report=told,
            stop=lambda: False,
            deadline=3600.0,
            monotonic=lambda: moment[0],
            elsewhere=True,
            attempt="",
        )
    assert "a cell of another session computes" in waits[0]
    assert [row["role"] for row in node.broker.status()["leases"]] == ["kernel"]

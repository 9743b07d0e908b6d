"""Machines that are made for jobs: asked for when a job waits for nothing else, kept for another like it, given back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from small_fabric import SmallLab, blocks, gpus, host, in_file

from carrel.core.control.composing import Composer
from carrel.core.control.job_machines import JobMachines
from carrel.core.domain.composition import CompositionState, MachineRules
from carrel.core.domain.errors import Impossible, Invalid, Unavailable
from carrel.core.domain.fabric import BlockKind
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.parts import compose_of, wishes_of
from carrel.core.domain.placement import Waiting
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB
from carrel.engines.fabric import Fault, SimulatedFabric

PARTS = [*blocks(BlockKind.CPU, 3, memory=64 * GIB), *gpus(4), *blocks(BlockKind.STORAGE, 2, type="nvme"), *host("h1", 1)]
GRACE = 10


@dataclass
class Jobs:
    """A lab's jobs, and the machines that are made for them."""

    lab: SmallLab
    rules: MachineRules = field(default_factory=lambda: MachineRules(longest=36000, machines=2, linger=60, shortest=100))
    known: dict[int, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """The lab was killed and is started anew."""
        self.lab.start_again()
        self.machines = JobMachines(self.lab.composer, self.rules, grace=GRACE)

    def submit(self, *, owner: str = "ada", **asked: object) -> int:
        """A job in line."""
        number = len(self.known) + 1
        resources = Resources(**{"gpus": 2, "time": 3600, "compose": "machine", "memory": GIB, **asked})  # type: ignore[arg-type]
        self.known[number] = Job(
            id=number,
            kind=JobKind.TASK,
            owner=owner,
            account="physics",
            name="train",
            qos="batch",
            resources=resources,
            state=JobState.PENDING,
            reason=Reason(code="Submitted", message=""),
            submitted_at=self.lab.now,
        )
        return number

    def end(self, number: int) -> None:
        """A job is over."""
        self.known[number] = replace(self.known[number], state=JobState.COMPLETED)

    def settle(self) -> None:
        """The loop asks, and the fabric's thread does what it can."""
        line = [job for job in self.known.values() if job.state is JobState.PENDING and not self.machines.node(job.id)]
        self.machines.ask([Waiting(id=j.id, owner=j.owner, qos=j.qos, resources=j.resources, submitted_at=0.0) for j in line])
        for _ in range(100):
            if not (self.machines.turn(self.known.get) | self.lab.composer.turn()):
                return
        raise AssertionError("It does not come to rest.")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(SmallLab(SimulatedFabric(in_file(tmp_path), PARTS)))


def test_a_machine_is_made_for_a_job_and_goes_when_it_is_over(jobs: Jobs) -> None:
    job = jobs.submit(compose="nvme=1", gpu_type="a100", cpus=8)
    jobs.settle()
    assert jobs.machines.node(job) == "c1"
    one = jobs.lab.one(1)
    assert (one.owner, one.account, one.job, one.time) == ("ada", "physics", job, 3600 + GRACE)
    assert jobs.lab.machine(1) == {"east-cpu-0", "east-a100-0", "east-a100-1", "east-storage-0"}
    jobs.lab.used.add("c1")
    jobs.lab.now += 200
    jobs.settle()
    jobs.end(job)
    jobs.lab.used.clear()
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.RUNNING
    jobs.lab.now += 60
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.COMPLETED
    assert jobs.lab.one(1).reason == "job 1 is over"


def test_the_next_job_that_asks_for_the_same_has_the_machine_of_the_last(jobs: Jobs) -> None:
    first = jobs.submit()
    jobs.settle()
    jobs.end(first)
    second, other = jobs.submit(), jobs.submit(owner="bob", gpus=1)
    jobs.settle()
    assert [jobs.machines.node(job) for job in (first, second, other)] == ["", "c1", "c2"]
    jobs.end(second)
    jobs.settle()
    jobs.lab.now += 61  # it has to live for 100 s
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.RUNNING
    jobs.lab.now += 40
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.COMPLETED


def test_what_others_wait_for_is_not_kept_for_the_next_job(jobs: Jobs) -> None:
    first = jobs.submit(gpus=4)
    jobs.settle()
    jobs.lab.used.add("c1")
    other = jobs.lab.ask("4 gpu")
    jobs.settle()
    jobs.lab.now += 200
    jobs.end(first)
    jobs.lab.used.clear()
    second = jobs.submit(gpus=4)
    jobs.settle()
    assert jobs.lab.state(other) is CompositionState.RUNNING
    assert jobs.machines.node(second) == ""


def test_what_a_job_waits_for_is_found_when_the_fabric_answers_again(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.submit(gpus=4)
    jobs.settle()
    second = jobs.submit(gpus=4)
    jobs.machines.ask([Waiting(id=second, owner="ada", qos="batch", resources=jobs.known[second].resources, submitted_at=0.0)])

    def is_away(*_: object) -> None:
        raise Unavailable("The fabric does not answer.")

    with monkeypatch.context() as away:
        away.setattr(Composer, "promise", is_away)
        with pytest.raises(Unavailable):
            jobs.machines.turn(jobs.known.get)
    assert jobs.machines.turn(jobs.known.get)
    assert jobs.machines.waits()[second].why.startswith("machine 2 is made for it (needs 4 GPUs")


def test_what_never_comes_keeps_no_machine_from_the_next_job(jobs: Jobs, tmp_path: Path) -> None:
    sick = [replace(block, fault="XID 79") if block.name == "east-a100-3" else block for block in PARTS]
    jobs.lab.fabric = SimulatedFabric(in_file(tmp_path), sick)
    jobs.start_again()
    first = jobs.submit()
    jobs.settle()
    waits = jobs.lab.ask("4 gpu")
    jobs.settle()
    jobs.end(first)
    jobs.settle()
    second = jobs.submit()
    jobs.settle()
    assert jobs.machines.node(second) == "c1"
    assert jobs.lab.state(waits) is CompositionState.PENDING


def test_a_lent_block_is_not_kept_for_a_job_that_is_longer_than_it_is_lent_for(tmp_path: Path) -> None:
    parts = [*blocks(BlockKind.CPU, 2, memory=64 * GIB), *gpus(2)]
    jobs = Jobs(SmallLab(SimulatedFabric(in_file(tmp_path), [replace(one, owner="vision", lent=3700) for one in parts])))
    first = jobs.submit(gpus=1)
    jobs.settle()
    jobs.end(first)
    longer = jobs.submit(gpus=1, time=4000)
    jobs.settle()
    assert jobs.machines.node(longer) == ""


def test_a_machine_that_was_given_back_is_not_kept_for_the_next_job(jobs: Jobs) -> None:
    first = jobs.submit()
    jobs.settle()
    jobs.lab.used.add("c1")
    jobs.lab.composer.release(jobs.lab.one(1), "released by ada", CompositionState.CANCELLED)
    jobs.end(first)
    jobs.lab.used.clear()
    second = jobs.submit()
    jobs.settle()
    assert jobs.machines.node(second) == "c2"
    assert (jobs.lab.state(1), jobs.lab.one(1).reason) == (CompositionState.CANCELLED, "released by ada")


def test_what_waits_says_for_what_and_until_when(jobs: Jobs) -> None:
    first, second = jobs.submit(gpus=3), jobs.submit(gpus=3)
    third = jobs.submit(gpus=1)
    jobs.settle()
    waits = jobs.machines.waits()
    assert waits[second].why == "machine 2 is made for it (needs 3 GPUs; at most 1 is free together (zone east))"
    assert waits[second].expected == jobs.lab.one(1).end
    assert waits[third].why == "its owner has 2 machines from parts, and may have 2"
    jobs.end(second)
    jobs.settle()
    assert jobs.lab.state(2) is CompositionState.CANCELLED
    assert jobs.machines.node(first)
    assert jobs.machines.node(third)


def test_a_lab_that_was_killed_makes_nothing_twice(jobs: Jobs) -> None:
    job = jobs.submit()
    jobs.machines.ask([Waiting(id=job, owner="ada", qos="batch", resources=jobs.known[job].resources, submitted_at=0.0)])
    jobs.machines.turn(jobs.known.get)
    jobs.lab.composer.turn()
    jobs.start_again()
    jobs.settle()
    assert jobs.machines.node(job) == "c1"
    assert len(jobs.lab.records.all()) == 1
    jobs.end(job)
    jobs.start_again()
    jobs.lab.now += 200
    jobs.settle()
    jobs.lab.now += 200
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.COMPLETED


def test_a_machine_that_cannot_be_made_is_tried_again_later(tmp_path: Path) -> None:
    faults = [Fault(block="east-a100-*", what="refused", times=2)]
    jobs = Jobs(SmallLab(SimulatedFabric(in_file(tmp_path), PARTS, faults)))
    job = jobs.submit(gpus=3)
    jobs.settle()
    assert jobs.lab.state(1) is CompositionState.FAILED
    assert "refused it" in jobs.machines.waits()[job].why
    jobs.lab.now += 61
    jobs.settle()
    assert jobs.machines.node(job) == "c2"


def test_a_slice_has_a_share_of_its_machine(jobs: Jobs) -> None:
    asked = Resources(gpus=1, gpu_memory=10 * GIB, time=60, compose="slice")
    (node,) = jobs.machines.nodes_for((), "ada", "physics", asked)
    assert [device.type for device in node.devices] == ["a100-1g.10gb"]
    assert (node.cpus, node.memory) == (16, 128 * GIB)
    job = jobs.submit(gpus=1, gpu_type="a100", compose="slice=2g.10gb")
    jobs.settle()
    assert jobs.lab.one(1).blocks == ("h1-gpu0/2g.10gb@4",)
    assert jobs.machines.node(job) == "c1"


def test_what_can_never_be_made_is_refused(jobs: Jobs) -> None:
    jobs.rules = replace(jobs.rules, max_gpus_per_user=3)
    jobs.start_again()
    for error, asked in (
        (Impossible, {"gpus": 4}),
        (Impossible, {"gpus": 5}),
        (Impossible, {"time": 36001}),
        (Impossible, {"memory": 65 * GIB}),
        (Invalid, {"nodes": 2}),
        (Invalid, {"gpus": 0, "compose": "slice"}),
        (Invalid, {"gpus": 1, "compose": "slice"}),
    ):
        resources = Resources(**{"gpus": 1, "compose": "machine", **asked})  # type: ignore[arg-type]
        with pytest.raises(error):
            jobs.machines.nodes_for((), "ada", "physics", resources)


@pytest.mark.parametrize("text", ["", "gpus=1", "nvme", "nvme=0", "nvme=x", "island=1", "island spread", "nvme=99999999"])
def test_words_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="compose"):
        wishes_of(Resources(gpus=1, compose=text))


@pytest.mark.parametrize("text", ["machine", "island", "slice=1g.10gb", "nvme=2", "spread, nvme=1, nics=2"])
def test_what_a_machine_was_made_for_can_be_said_again(text: str) -> None:
    assert compose_of(wishes_of(Resources(gpus=2, compose=text))) == text

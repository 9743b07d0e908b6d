"""Jobs of a class that rotates take turns: the real programs are stopped and go on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.lab_process import LabProcess, start_lab
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest

RULES = """
[qos.turns]
rotate = "1s"

[qos.stays]
"""
#: Says each step that it makes, until it may end.
STEPS = "echo started >> $HERE.started; while [ ! -e $HERE.go ]; do echo step >> $HERE.steps; sleep 0.05; done"


class Lab:
    """A lab with two simulated GPUs that can be killed and started again."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        (home / "carrel.toml").write_text(RULES)
        self.home = home
        self.process = self._start()
        self.client = Client(url=self.process.url, token=self.process.token)

    def _start(self) -> LabProcess:
        return start_lab(self.home, "--cpus", "8", simulate_gpus=2)

    def kill_and_restart(self) -> None:
        self.client.close()
        self.process.kill()
        self.process = self._start()
        self.client = Client(url=self.process.url, token=self.process.token)

    def submit(self, name: str, qos: str = "turns", gpus: int = 2, *, preemptible: bool = True) -> int:
        directory = self.home.parent / name
        directory.mkdir()
        (directory / "work.sh").write_text(STEPS)
        return self.client.submit_project(
            directory / "work.sh",
            qos=qos,
            resources=ResourceRequest(gpus=gpus, memory="64M"),
            variables={"HERE": str(directory / "is")},
            preemptible=preemptible,
        ).id

    def let_end(self, name: str) -> None:
        (self.home.parent / name / "is.go").touch()

    def steps(self, name: str) -> int:
        file = self.home.parent / name / "is.steps"
        return file.stat().st_size if file.exists() else 0

    def starts(self, name: str) -> int:
        return (self.home.parent / name / "is.started").read_text().count("started")

    def until(self, job_id: int, happened: Callable[[JobDetail], bool]) -> JobDetail:
        return wait_until(lambda: job if happened(job := self.client.job(job_id)) else None, lambda: self.client.job(job_id))  # type: ignore[return-value]

    def runs(self, job_id: int) -> JobDetail:
        return self.until(job_id, lambda job: job.state == "RUNNING" and job.reason == "Running")

    def stop(self) -> None:
        self.client.close()
        self.process.stop()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab")
    yield lab
    for job in lab.client.jobs():
        if not job.ended:
            lab.client.cancel(job.id)
    lab.stop()


def test_who_has_had_less_goes_next_and_the_other_goes_on_where_it_was(lab: Lab) -> None:
    long = lab.submit("long")
    lab.runs(long)
    short = lab.submit("short")
    lab.runs(short)
    job = lab.until(long, lambda job: job.queue is not None)
    assert (job.state, job.reason, job.queue.position if job.queue else None) == ("SUSPENDED", "Suspended", 1)
    assert job.message.startswith("suspended for "), job.message
    assert " after it ran for " in job.message
    assert "; needs 2 GPUs on one node; none is free" in job.message
    seen = lab.steps("long")
    lab.let_end("short")
    assert lab.client.wait(short, timeout=PATIENCE).state == "COMPLETED"
    lab.runs(long)
    wait_until(lambda: lab.steps("long") > seen)
    lab.let_end("long")
    done = lab.client.wait(long, timeout=PATIENCE)
    assert (done.state, done.attempt, lab.starts("long")) == ("COMPLETED", 1, 1), done.message
    assert done.pauses == 1
    told = [event.data["message"] for event in lab.client.events(long) if event.type == "progress"]
    assert any(f"job {short} of its QoS has had less" in text for text in told), told


def test_a_job_goes_on_on_other_gpus_where_its_own_are_in_use(lab: Lab) -> None:
    jobs = {lab.submit(name, gpus=1): name for name in ("first", "second")}
    devices = {one: lab.runs(one).devices for one in jobs}
    third = lab.submit("third", gpus=1, preemptible=False)
    taken = lab.runs(third).devices
    (stopped,) = [one for one in jobs if devices[one] == taken]
    (other,) = jobs.keys() - {stopped}
    lab.let_end(jobs[other])
    assert lab.runs(stopped).devices == devices[other]
    lab.let_end(jobs[stopped])
    lab.let_end("third")
    assert [lab.client.wait(one, timeout=PATIENCE).state for one in (stopped, other, third)] == ["COMPLETED"] * 3
    assert [lab.starts(name) for name in ("first", "second", "third")] == [1, 1, 1]
    assert lab.client.job(stopped).attempts[0].devices == devices[other]


def test_who_cannot_be_interrupted_and_other_classes_keep_their_place(lab: Lab) -> None:
    keeps, stays = lab.submit("keeps", gpus=1, preemptible=False), lab.submit("stays", qos="stays", gpus=1)
    lab.runs(keeps)
    lab.runs(stays)
    waits = lab.submit("waits", gpus=1)
    wait_until(lambda: lab.steps("keeps") > 300 and lab.steps("stays") > 300)  # both have had more than their second
    assert (lab.client.job(waits).state, lab.client.job(keeps).state) == ("PENDING", "RUNNING")
    assert lab.client.job(stays).state == "RUNNING"


@pytest.mark.chaos
@pytest.mark.parametrize("when", ["Preempting", "Suspended", "Resuming"])
def test_a_server_that_is_killed_while_jobs_take_turns_loses_none_and_runs_none_twice(lab: Lab, when: str) -> None:
    long = lab.submit("long")
    lab.runs(long)
    short = lab.submit("short")
    if when == "Preempting":
        wait_until(lambda: lab.client.job(long).reason in ("Preempting", "Suspended"))
        lab.kill_and_restart()
    lab.runs(short)
    if when == "Suspended":
        lab.until(long, lambda job: job.state == "SUSPENDED")
        seen = lab.steps("long")
        lab.kill_and_restart()
        assert lab.client.job(long).state == "SUSPENDED"
        assert lab.steps("long") == seen
    lab.let_end("short")
    if when == "Resuming":
        wait_until(lambda: lab.client.job(short).ended)
        lab.kill_and_restart()
    assert lab.client.wait(short, timeout=PATIENCE).state == "COMPLETED"
    lab.runs(long)
    lab.let_end("long")
    done = lab.client.wait(long, timeout=PATIENCE)
    assert (done.state, done.attempt) == ("COMPLETED", 1), done.message
    assert [lab.starts(name) for name in ("long", "short")] == [1, 1]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_again_and_again_between_turns_loses_none(lab: Lab) -> None:
    names = ("one", "two", "three")
    jobs = {lab.submit(name): name for name in names}
    for _ in range(4):  # of about six turns until all have had as much
        known = [lab.client.job(one).reason for one in jobs]
        wait_until(lambda known=known: [lab.client.job(one).reason for one in jobs] != known)  # type: ignore[misc]
        lab.kill_and_restart()
    for name in names:
        lab.let_end(name)
    for one, name in jobs.items():
        done = lab.client.wait(one, timeout=PATIENCE)
        assert (done.state, done.attempt, lab.starts(name)) == ("COMPLETED", 1, 1), done.message

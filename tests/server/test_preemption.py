"""Work that goes before other work takes its place, and nothing is lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.small_lab import MortalLab

RULES = """
[qos.desk]
preempts = ["batch", "rack"]

[qos.batch]
preempt_mode = "requeue"
preempt_grace = "40s"

[qos.rack]
preempt_mode = "suspend"
"""
#: Counts to 60, one step at a time when $GO is there, and goes on from where it was when it was interrupted.
COUNT = """
trap 'kill $! 2>/dev/null; echo saved $step; exit 75' TERM
file=$CARREL_CHECKPOINT_DIR/step
step=$(cat $file 2>/dev/null || echo 0)
echo begins at $step >> $WITNESS
while [ $step -lt 3 ]; do
  step=$((step + 1)); echo $step > $file; echo step $step
  while [ ! -e $WITNESS.go$step ]; do sleep 0.05 & wait $!; done
done
echo counted to $step
"""
TICK = "echo started >> $WITNESS; while [ ! -e $WITNESS.go ]; do echo tick >> $WITNESS.ticks; sleep 0.05; done"


class Lab(MortalLab):
    """A lab with two simulated GPUs."""

    def __init__(self, home: Path, rules: str = RULES) -> None:
        super().__init__(home, "--cpus", "8", rules=rules, simulate_gpus=2)
        self.witness = home.parent / "witness"

    def task(self, script: str, qos: str, gpus: int = 2, **more: Any) -> int:
        resources = ResourceRequest(gpus=gpus, memory="64M")
        return self.submit(script, qos=qos, resources=resources, variables={"WITNESS": str(self.witness)}, **more).id


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab")
    yield lab
    lab.stop()


def touch(lab: Lab, name: str) -> None:
    Path(f"{lab.witness}.{name}").touch()


@pytest.mark.gate
def test_who_is_requeued_writes_a_checkpoint_and_goes_on_from_it(lab: Lab) -> None:
    touch(lab, "go1")
    batch = lab.task(COUNT, "batch")
    wait_until(lambda: "step 2" in lab.log(batch))
    desk = lab.task("echo here", "desk")
    assert lab.ended(desk).state == "COMPLETED"
    touch(lab, "go2")
    touch(lab, "go3")
    done = lab.ended(batch)
    assert (done.state, done.attempt) == ("COMPLETED", 2), done.message
    assert lab.witness.read_text() == "begins at 0\nbegins at 2\n"
    job = lab.client.job(batch)
    first, second = job.attempts
    assert (first.state, first.reason, first.exit_code, second.state) == ("PREEMPTED", "Preempted", 75, "COMPLETED")
    assert first.message.startswith('A job of QoS "desk" took its place after ')
    assert 'SIGTERM: a job of QoS "desk" takes this place; SIGKILL in 40 s.' in lab.log(batch, attempt=1)
    assert "saved 2" in lab.log(batch, attempt=1)
    told = [event.data["message"] for event in lab.client.events(batch) if event.type == "progress"]
    assert any(text.startswith(f'Job {desk} of QoS "desk" takes this job\'s GPUs. This job has 40 s to end') for text in told), (
        told
    )
    wait_until(lambda: not any((lab.home / "spool" / str(batch)).glob("checkpoint")))


def test_who_waits_reads_who_gives_way(lab: Lab) -> None:
    batch = lab.task("trap '' TERM; echo deaf; while [ ! -e $WITNESS.go ]; do sleep 0.05; done", "batch")
    wait_until(lambda: "deaf" in lab.log(batch))
    desk = lab.task("echo here", "desk")
    job = lab.until(desk, lambda job: "giving way" in job.message)
    assert '; 1 job of QoS "batch" is giving way, at most ' in job.message
    assert (job.state, job.reason) == ("PENDING", "Resources")
    assert lab.client.job(batch).reason == "Preempting"
    touch(lab, "go")
    # It ended by itself, and well: it is not done again.
    assert lab.ended(batch).state == "COMPLETED"
    assert lab.client.job(batch).attempt == 1
    assert lab.ended(desk).state == "COMPLETED"


def test_who_is_suspended_goes_on_where_it_was(lab: Lab) -> None:
    rack = lab.task(TICK, "rack")
    ticks = Path(f"{lab.witness}.ticks")
    wait_until(ticks.exists)
    desk = lab.task("while [ ! -e $WITNESS.desk ]; do sleep 0.05; done", "desk")
    lab.until(desk, lambda job: job.state == "RUNNING")
    job = lab.client.job(rack)
    assert (job.state, job.reason) == ("SUSPENDED", "Suspended")
    assert job.message == f'Job {desk} of QoS "desk" took this job\'s GPUs. This job resumes by itself when they are free.'
    assert lab.client.job(desk).devices == job.devices
    size = ticks.stat().st_size
    other = lab.task("true", "batch")  # it comes later, and stays behind
    lab.kill_and_restart()
    assert ticks.stat().st_size == size
    assert lab.client.job(rack).state == "SUSPENDED"
    touch(lab, "desk")
    lab.until(rack, lambda job: job.state == "RUNNING")
    assert lab.client.job(other).state == "PENDING"
    wait_until(lambda: ticks.stat().st_size > size)
    touch(lab, "go")
    done = lab.ended(rack)
    assert (done.state, done.attempt) == ("COMPLETED", 1), done.message
    assert lab.witness.read_text() == "started\n"
    assert lab.ended(other).state == "COMPLETED"
    assert "SIGSTOP" in lab.log(rack)
    assert "SIGCONT" in lab.log(rack)


def test_who_cannot_be_interrupted_is_not_touched(lab: Lab) -> None:
    batch = lab.task(TICK, "batch", preemptible=False)
    lab.until(batch, lambda job: job.state == "RUNNING")
    assert not lab.client.job(batch).preemptible
    desk = lab.task("true", "desk")
    other = lab.task(TICK, "batch", gpus=0)
    lab.until(other, lambda job: job.state == "RUNNING")
    third = lab.task("true", "desk", gpus=0)
    assert lab.ended(third).state == "COMPLETED"
    assert (lab.client.job(batch).reason, lab.client.job(desk).state) == ("Running", "PENDING")
    touch(lab, "go")
    assert lab.ended(batch).state == "COMPLETED"
    assert lab.ended(desk).state == "COMPLETED"
    assert len(lab.client.job(batch).attempts) == 1


@pytest.mark.chaos
def test_a_server_that_is_killed_while_jobs_give_way_loses_none_and_runs_none_twice(lab: Lab) -> None:
    slow = "trap 'while [ ! -e $WITNESS.go ]; do sleep 0.05; done; exit 1' TERM; echo started >> $WITNESS; "
    batch = lab.task(slow + "if [ $CARREL_ATTEMPT = 2 ]; then exit 0; fi; while :; do sleep 0.05; done", "batch")
    lab.until(batch, lambda job: job.state == "RUNNING")
    desk = lab.task("echo here >> $WITNESS", "desk")
    lab.until(batch, lambda job: job.reason == "Preempting")
    lab.kill_and_restart()
    assert lab.client.job(batch).reason == "Preempting"
    touch(lab, "go")
    assert lab.ended(desk).state == "COMPLETED"
    done = lab.ended(batch)
    assert (done.state, done.attempt) == ("COMPLETED", 2), done.message
    assert lab.witness.read_text().splitlines() == ["started", "here", "started"]


def test_a_session_that_reserves_takes_from_batch_without_any_rules(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", "")
    try:
        batch = lab.task(TICK, "batch")
        normal = lab.task("true", "normal", gpus=1)
        wait_until(Path(f"{lab.witness}.ticks").exists)
        lab.until(batch, lambda job: job.state == "RUNNING")  # one that is still prepared is requeued
        session = lab.client.start_session(SessionRequest(gpus=2, reserve=True, kind="terminal", memory="256M")).job.id
        lab.until(session, lambda job: job.state == "RUNNING")
        assert lab.client.job(batch).state == "SUSPENDED"
        assert lab.client.job(normal).state == "PENDING"
        lab.client.cancel(session)
        lab.until(batch, lambda job: job.state == "RUNNING")
        lab.client.cancel(batch)
        assert lab.ended(normal).state == "COMPLETED"
    finally:
        lab.stop()


@pytest.mark.chaos
def test_a_server_killed_at_random_moments_while_places_change_hands(lab: Lab) -> None:
    chance = random.Random(20261122)
    script = (
        "echo $CARREL_JOB_ID $CARREL_ATTEMPT >> $WITNESS; for i in $(seq {count}); do sleep 0.1; done; echo over $CARREL_JOB_ID"
    )
    jobs: dict[int, str] = {}
    for _ in range(4):
        for qos, count in (("batch", 12), ("rack", 12), ("desk", 4), ("rack", 5), ("desk", 3)):
            jobs[lab.task(script.format(count=count), qos, gpus=chance.choice([1, 2]))] = qos
        # Somewhere within what five jobs do, never the same.
        threading.Event().wait(chance.uniform(0.1, 1.0))
        lab.kill_and_restart()
    for job_id in jobs:
        done = lab.ended(job_id)
        assert done.state == "COMPLETED", done
    begun = Counter(tuple(map(int, line.split())) for line in lab.witness.read_text().splitlines())
    assert set(begun.values()) == {1}, "an attempt ran twice"
    for job_id, qos in jobs.items():
        *before, last = lab.client.job(job_id).attempts
        assert last.state == "COMPLETED"
        assert all(attempt.state == "PREEMPTED" for attempt in before)
        assert not before or qos != "desk"
        assert (job_id, last.number) in begun
        assert lab.log(job_id).count("over") == 1


def test_who_is_stopped_can_be_cancelled(lab: Lab) -> None:
    rack = lab.task(TICK, "rack")
    wait_until(Path(f"{lab.witness}.ticks").exists)
    desk = lab.task("while [ ! -e $WITNESS.desk ]; do sleep 0.05; done", "desk")
    lab.until(rack, lambda job: job.state == "SUSPENDED")
    lab.until(desk, lambda job: job.state == "RUNNING")
    lab.client.cancel(rack)
    assert lab.ended(rack).state == "CANCELLED"
    assert lab.client.job(desk).state == "RUNNING"
    touch(lab, "desk")
    assert lab.ended(desk).state == "COMPLETED"

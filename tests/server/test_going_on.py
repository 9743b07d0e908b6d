"""A task that writes checkpoints goes on after its walltime, while it gets on and as often as it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import start_lab

#: One step for each attempt, and told to end when it has been made; done when there are three.
STEPS = """
trap 'kill $! 2>/dev/null; echo told to end; exit 75' TERM
step=$(cat $CARREL_CHECKPOINT_DIR/step 2>/dev/null || echo 0)
echo begins at $step
if [ $step -ge 2 ]; then echo done; exit 0; fi
echo $((step + 1)) > $CARREL_CHECKPOINT_DIR/step
sleep 600 & wait $!
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    process = start_lab(tmp_path / "lab", "--cpus", "4", simulate_gpus=0)
    client = Client(url=process.url, token=process.token)
    yield client
    client.close()
    process.stop()


def run(client: Client, tmp_path: Path, script: str, **more: object) -> JobDetail:
    directory = tmp_path / "work"
    directory.mkdir(exist_ok=True)
    (directory / "work.sh").write_text(script)
    resources = ResourceRequest(memory="64M", time="6s")
    job = client.submit_project(directory / "work.sh", resources=resources, **more)  # type: ignore[arg-type]
    client.wait(job.id, timeout=PATIENCE)
    return client.job(job.id)


@pytest.mark.gate
def test_it_goes_on_from_its_checkpoint_and_says_so(client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, STEPS, requeue=5, warning="3s")
    assert (job.state, job.attempt, job.requeues_left) == ("COMPLETED", 3, 3), job
    assert [attempt.state for attempt in job.attempts] == ["TIMEOUT", "TIMEOUT", "COMPLETED"]
    logs = [b"".join(client.log(job.id, attempt=number)).decode() for number in (1, 2, 3)]
    assert [log.splitlines()[0] for log in logs] == ["begins at 0", "begins at 1", "begins at 2"]
    assert "SIGTERM: the walltime ends in 3 s." in logs[0]
    assert "told to end" in logs[0]
    told = [event.data["message"] for event in client.events(job.id) if event.data.get("reason") == "Requeued"]
    assert [text.split("; ")[-1] for text in told] == ["it may do so 4 more times.", "it may do so 3 more times."]
    wait_until(lambda: not list((tmp_path / "lab" / "spool").glob(f"{job.id}/checkpoint")))


def test_it_ends_when_its_turns_are_used_up(client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, STEPS, requeue=1)
    assert (job.state, job.attempt, job.requeues_left) == ("TIMEOUT", 2, 0), job
    assert job.message.endswith("It has gone on as often as it asked for.")


def test_an_attempt_that_left_its_checkpoint_as_it_was_is_the_last_one(client: Client, tmp_path: Path) -> None:
    job = run(client, tmp_path, "ls $CARREL_CHECKPOINT_DIR; sleep 600", requeue=5)
    assert (job.state, job.reason, job.attempt, job.requeues_left) == ("TIMEOUT", "TimeLimit", 1, 5), job
    assert "It does not go on: this attempt changed nothing in its checkpoint directory." in job.message

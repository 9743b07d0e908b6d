"""What the outbox is given for each turn of a job's life."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.core.control.news import interpret
from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.comparison import Agreement, Verification
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Ended, EnvironmentReady, Journaled, JournalRecord, Observation, Sampled, Started, Usage
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import GitState, ReplayOf, TaskSpec, TrackingTarget, VariantOf
from carrel.core.domain.user import User
from carrel.core.spool.layout import Spool
from carrel.lab.store.outbox import KINDS
from carrel.lab.tracking.describe import Describer
from carrel.lab.tracking.status import status_of

pytestmark = pytest.mark.quick

JOB = Job(
    id=7,
    kind=JobKind.TASK,
    owner="ann@example.org",
    account="physics",
    name="digits",
    qos="batch",
    resources=Resources(cpus=2, memory=1_000_000_000, gpus=1),
    state=JobState.CONFIGURING,
    reason=Reason(code="Preparing", message=""),
    submitted_at=1000.5,
    attempt=1,
    node="n1",
    devices=("GPU-a",),
)
TASK = TaskSpec(
    entry_point="main", command="python train.py", snapshot="sha256:ab", parameters={"epochs": "5"}, experiment="trials"
)
ANN = User(subject="ann@example.org", name="Ann")


@pytest.fixture
def describer() -> Describer:
    return Describer(
        lab_id="lab-1", spool=Spool(Path("/spool")), blob=lambda digest: Path("/blobs") / digest, url="http://lab:1/"
    )


def told(describer: Describer, job: Job, *records: tuple[float, JournalRecord], task: TaskSpec = TASK) -> Sequence[OutboxEntry]:
    entries = tuple(Journaled(at=at, record=record) for at, record in records)
    observation = Observation(job_id=job.id, attempt=job.attempt, entries=entries, offset=1)
    return describer.change(job, task, interpret(job, observation, log_size=0, now=records[-1][0]), observation)


def of_kind(entries: Sequence[OutboxEntry], kind: str) -> list[dict[str, Any]]:
    assert all(entry.kind in KINDS for entry in entries)
    assert all(entry.payload["owner"] == JOB.owner for entry in entries)
    json.dumps([dict(entry.payload) for entry in entries])  # the store writes it down as JSON
    return [dict(entry.payload) for entry in entries if entry.kind == kind]


def test_a_submission_makes_a_run(describer: Describer) -> None:
    git = GitState(commit="c0ffee", branch="main", remote="https://example.org/r.git", dirty=True, diff="--- a\n+++ b\n")
    entries = describer.submission(JOB, replace(TASK, git=git), ANN)
    (run,) = of_kind(entries, "create_run")
    assert (run["experiment"], run["run_name"], run["start_time"], run["params"]) == (
        "trials",
        "digits",
        1000500,
        {"epochs": "5"},
    )
    tags = run["tags"]
    assert (tags["carrel.lab"], tags["carrel.job_id"], tags["carrel.snapshot"]) == ("lab-1", "7", "sha256:ab")
    assert (tags["mlflow.user"], tags["mlflow.source.git.commit"], tags["carrel.git.dirty"]) == ("Ann", "c0ffee", "true")
    assert tags["carrel.url"] == "http://lab:1/jobs/7"
    assert "adopt" not in run
    assert of_kind(entries, "artifact")[0]["text"] == git.diff


def test_the_run_of_a_replay_says_what_it_repeats(describer: Describer) -> None:
    entries = describer.submission(JOB, replace(TASK, replay_of=ReplayOf(lab="2d23d8fa769d", job=12)), ANN)
    assert of_kind(entries, "create_run")[0]["tags"]["carrel.replay_of"] == "2d23d8fa769d/12"


def test_a_run_of_mlflow_run_is_taken_over_and_keeps_its_own_tags(describer: Describer) -> None:
    task = replace(TASK, tracking=TrackingTarget(run_id="r1", experiment_id="2"))
    (run,) = of_kind(describer.submission(JOB, task, ANN), "create_run")
    assert run["adopt"] == "r1"
    assert not {"mlflow.user", "mlflow.source.name"} & set(run["tags"])


def test_each_element_of_an_array_has_a_run_of_its_own(describer: Describer) -> None:
    element = replace(JOB, element=ArrayElement(array_id=5, index=3, array="1-3"))
    (run,) = of_kind(describer.submission(element, TASK, ANN), "create_run")
    assert run["run_name"] == "digits_3"
    assert (run["tags"]["carrel.array_job_id"], run["tags"]["carrel.array_task_id"]) == ("5", "3")
    assert "mlflow.parentRunId" not in run["tags"]
    given = replace(TASK, tracking=TrackingTarget(run_id="r1", experiment_id="4"))
    (run,) = of_kind(describer.submission(element, given, ANN), "create_run")
    assert "adopt" not in run
    assert (run["tags"]["mlflow.parentRunId"], run["experiment_id"]) == ("r1", "4")


def test_variants_are_below_the_run_of_their_search_which_says_what_was_found(describer: Describer) -> None:
    variant = VariantOf(first="3", second="4", changes=("parameter lr",))
    task = replace(TASK, variant_of=variant)
    (run,) = of_kind(describer.submission(JOB, task, ANN), "create_run")
    search = run["parent"]
    assert (search["run_name"], search["naming"]["carrel.why"]) == ("why 3 4: digits", "3, 4")
    (entry,) = describer.search(replace(JOB, ended_at=9.0), task, variant, "explained", "The cause is parameter lr.")
    assert (entry.payload["parent"]["naming"], entry.payload["status"]) == (search["naming"], "FINISHED")
    assert entry.payload["tags"]["mlflow.note.content"] == "The cause is parameter lr."
    elsewhere = replace(task, tracking=TrackingTarget(run_id="r1", experiment_id="2", uri="https://elsewhere"))
    assert describer.search(JOB, elsewhere, variant, "explained", "") == ()


def test_of_a_run_elsewhere_nothing_is_told(describer: Describer) -> None:
    task = replace(TASK, tracking=TrackingTarget(run_id="r1", experiment_id="2", uri="https://elsewhere"))
    assert describer.submission(JOB, task, ANN) == ()
    assert told(describer, JOB, (2000.0, Started(pid=1)), task=task) == ()
    assert describer.submission(replace(JOB, kind=JobKind.SESSION), TASK, ANN) == ()


def test_the_start_tells_environment_hardware_and_seeds(describer: Describer) -> None:
    ready = EnvironmentReady(digest="sha256:e", lock="sha256:l", python="3.11.7", built=True, seconds=2.0)
    started = Started(pid=1, hardware={"cpu": "EPYC"}, seeds={"PYTHONHASHSEED": "0"})
    entries = told(describer, JOB, (1999.0, ready), (2000.0, started))
    (update,) = of_kind(entries, "update")
    assert update["tags"] == {
        "carrel.environment": "sha256:e",
        "carrel.python": "3.11.7",
        "carrel.state": "RUNNING",
        "carrel.node": "n1",
        "carrel.gpus": "GPU-a",
        "carrel.attempt": "1",
        "carrel.hardware.cpu": "EPYC",
        "carrel.seed.PYTHONHASHSEED": "0",
    }
    assert of_kind(entries, "artifact")[0]["path"] == "/blobs/sha256:l"


def test_samples_become_mlflows_system_metrics(describer: Describer) -> None:
    running = replace(JOB, state=JobState.RUNNING, started_at=2000.0)
    first = Usage(cpu_seconds=1.0, memory=250_000_000, gpu_utilization={"GPU-a": 90.0}, gpu_memory={"GPU-a": 2_000_000_000})
    told(describer, running, (2005.0, Sampled(usage=first)))
    (update,) = of_kind(told(describer, running, (2010.0, Sampled(usage=replace(first, cpu_seconds=6.0)))), "update")
    values = {metric["key"]: metric["value"] for metric in update["metrics"]}
    assert values == {
        "system/system_memory_usage_megabytes": 250.0,
        "system/system_memory_usage_percentage": 25.0,
        "system/gpu_0_utilization_percentage": 90.0,
        "system/gpu_0_memory_usage_megabytes": 2000.0,
        "system/cpu_utilization_percentage": pytest.approx(50.0),  # 5 s of CPU in 5 s, of two
    }
    assert {(metric["timestamp"], metric["step"]) for metric in update["metrics"]} == {(2010000, 10)}


@pytest.mark.parametrize(("nodes", "where"), [(1, ""), (2, "n3/")])
def test_gpus_of_a_clusters_nodes_are_told_by_node_and_position(describer: Describer, nodes: int, where: str) -> None:
    running = replace(
        JOB,
        state=JobState.RUNNING,
        started_at=2000.0,
        node="slurm:gpu",
        devices=(),
        resources=replace(JOB.resources, nodes=nodes),
    )
    usage = Usage(memory=250_000_000, gpu_utilization={"n3/gpu1": 90.0}, gpu_memory={"n3/gpu1": 2_000_000_000, "odd": 1})
    (update,) = of_kind(told(describer, running, (2005.0, Sampled(usage=usage))), "update")
    assert {metric["key"]: metric["value"] for metric in update["metrics"]} == {
        "system/system_memory_usage_megabytes": 250.0,
        "system/system_memory_usage_percentage": 25.0 / nodes,
        f"system/{where}gpu_1_utilization_percentage": 90.0,
        f"system/{where}gpu_1_memory_usage_megabytes": 2000.0,
    }


def test_the_run_of_a_job_that_gave_way_goes_on(describer: Describer) -> None:
    running = replace(JOB, state=JobState.RUNNING, started_at=2000.0)
    ended = Ended(state=JobState.PREEMPTED, reason=Reason(code="Preempted", message="Its place was taken."), exit_code=3)
    entries = told(describer, running, (3000.0, ended))
    assert of_kind(entries, "end_run") == []
    assert of_kind(entries, "update")[0]["tags"]["carrel.state"] == "PENDING"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.COMPLETED, "FINISHED"),
        (JobState.CANCELLED, "KILLED"),
        (JobState.FAILED, "FAILED"),
        (JobState.TIMEOUT, "FAILED"),
        (JobState.OUT_OF_MEMORY, "FAILED"),
        (JobState.NODE_FAIL, "FAILED"),
    ],
)
def test_every_end_has_a_status(describer: Describer, state: JobState, status: str) -> None:
    assert status_of(state) == status
    running = replace(JOB, state=JobState.RUNNING, started_at=2000.0)
    ended = Ended(state=state, reason=Reason(code="X", message="It is over."), exit_code=3)
    entries = told(describer, running, (3000.0, ended))
    assert entries[-1].kind == "end_run"
    assert (entries[-1].payload["status"], entries[-1].payload["end_time"]) == (status, 3_000_000)
    assert of_kind(entries, "artifact")[0]["path"] == "/spool/7/1/log"
    assert of_kind(entries, "update")[0]["tags"]["carrel.reason"] == "It is over."
    assert of_kind(entries, "update")[0]["tags"]["carrel.exit_code"] == "3"


def test_a_requeue_is_no_end(describer: Describer) -> None:
    running = replace(JOB, state=JobState.RUNNING, started_at=2000.0, retries_left=1)
    ended = Ended(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 3."), exit_code=3)
    entries = told(describer, running, (3000.0, ended))
    assert not of_kind(entries, "end_run")
    assert of_kind(entries, "artifact")[0]["artifact_path"] == "carrel/attempt-1/log.txt"
    assert of_kind(entries, "update")[-1]["tags"]["carrel.state"] == "PENDING"


def test_a_job_that_never_started_ends_its_run(describer: Describer) -> None:
    reason = Reason(code="Cancelled", message="Cancelled by ann.")
    gone = replace(JOB, state=JobState.CANCELLED, attempt=0, ended_at=1500.0, reason=reason)
    entries = describer.withdrawn(gone, TASK)
    assert (entries[-1].kind, entries[-1].payload["status"]) == ("end_run", "KILLED")


def test_what_is_too_long_for_mlflow_is_cut_visibly(describer: Describer) -> None:
    task = replace(TASK, parameters={"text": "x" * 7000}, command="y" * 9000)
    (run,) = of_kind(describer.submission(JOB, task, ANN), "create_run")
    assert len(run["params"]["text"]) == 6000
    assert run["params"]["text"].endswith("…")
    assert len(run["tags"]["carrel.command"]) == 8000


def test_of_an_attempt_that_slurm_had_no_room_for_mlflow_hears_nothing(describer: Describer) -> None:
    reason = Reason(code="AssocMaxSubmitJobLimit", message="Slurm takes no more jobs for now.")
    ended = Ended(state=JobState.PREEMPTED, reason=reason)
    news = Observation(job_id=JOB.id, attempt=JOB.attempt, entries=(Journaled(at=70.0, record=ended),), offset=1)
    change = interpret(JOB, news, log_size=0, now=70.0)
    assert change.state is JobState.PENDING
    assert describer.change(JOB, TASK, change, news) == []


def test_what_came_of_repeating_a_job_is_a_tag_of_its_run(describer: Describer) -> None:
    said = Verification(
        at=1.0,
        by="ann",
        repetitions=(8, 9),
        agreement=Agreement.WITHIN_TOLERANCE,
        outputs=1,
        metrics=2,
        tolerance=1e-6,
        ignored=("*.log",),
    )
    (entry,) = describer.verified(JOB, TASK, said)
    tag = {"carrel.verified": "equal within 1e-06 in 2 repetitions, *.log apart"}
    assert (entry.kind, entry.payload) == ("update", {"owner": JOB.owner, "tags": tag})
    parted = replace(said, agreement=Agreement.DIFFERENT, step=40, repetitions=(8,), ignored=())
    assert parted.words == "different from step 40 on in 1 repetition"


def test_a_variant_names_the_jobs_between_which_it_stands(describer: Describer) -> None:
    made = describer.submission(JOB, replace(TASK, variant_of=VariantOf(first="12", second="13:1", changes=("x",))), ANN)
    assert made[0].payload["tags"]["carrel.variant_of"] == "12, 13:1"

"""What a lab remembers, as a trace."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, TraceJob
from carrel.simulate.traces.history import history_trace
from carrel.wire import v1

NOW = 1_790_000_000.0
USUAL = {"gpus": 1, "cpus": 4, "memory": 1024**3, "time": 3600, "nodes": 1, "gpu_type": None}
RULES = LabRules(
    qos={"normal": QoS(name="normal"), "interactive": QoS(name="interactive", kinds=frozenset({JobKind.SESSION}))},
    default_qos="normal",
    session_qos="interactive",
)


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(NOW + seconds, UTC)


def recorded(
    number: int, submitted: float, started: float | None, ended: float | None, *, before: int = 0, **more: object
) -> v1.JobView:
    """Times are seconds after `NOW`; with so many attempts `before`, of which the lab does not tell in a list."""
    asked = {name: more.pop(name, usual) for name, usual in USUAL.items()}
    fields = {"kind": "task", "owner": "ada", "account": "physics", "name": "train", "qos": "normal"}
    view = {
        **fields,
        **more,
        "id": number,
        "submitted_at": moment(submitted),
        "ended_at": moment(ended),
        "attempt": before + 1,
        "resources": v1.ResourceView(**asked),  # type: ignore[arg-type]
    }
    last = {"started_at": moment(started), "ended_at": moment(ended)}
    if not before:
        return v1.JobView.model_construct(**{**view, **last})
    return v1.JobDetail.model_construct(**view, attempts=[v1.AttemptView.model_construct(**last)], started_at=moment(submitted))


def test_a_job_is_what_was_asked_for_and_how_long_it_ran() -> None:
    trace = history_trace([recorded(7, 100, 150, 400.5)], "this lab")
    assert trace.jobs == [
        TraceJob(
            id=7,
            submitted=0,
            duration=250.5,
            gpus=1,
            cpus=4,
            memory=1024**3,
            time=3600,
            user="ada",
            account="physics",
            name="train",
            qos="normal",
        )
    ]
    assert (trace.name, trace.cluster, trace.notes) == ("history of this lab", None, [])


def test_jobs_are_in_the_order_of_submission_from_the_first_that_ran() -> None:
    jobs = [recorded(3, 50, 60, 70), recorded(1, 10, None, 20), recorded(2, 50, 55, 56), recorded(4, 30, 40, 90)]
    trace = history_trace(jobs, "this lab")
    assert [(job.id, job.submitted) for job in trace.jobs] == [(4, 0), (2, 20), (3, 20)]


def test_the_notes_say_what_is_not_as_it_was() -> None:
    jobs = [
        recorded(1, 0, 10, 20),
        recorded(2, 0, None, 20),  # cancelled while it waited
        recorded(3, 0, 10, None),  # still runs
        recorded(4, 0, 500, 600, before=2),
        recorded(5, 0, 10, 20, kind="session", gpus=0, qos="interactive"),
        recorded(6, 0, 10, 20, gpu_type="h200"),
    ]
    trace = history_trace(jobs, "this lab")
    assert [job.id for job in trace.jobs] == [1, 4, 5, 6]
    assert trace.jobs[1].duration == 100
    assert trace.notes == [
        "Jobs that never started or have not ended, left out: 2.",
        "Jobs that were tried several times, of which only the last attempt counts: 1.",
        "Sessions, which hold what they reserved and not what their cells borrow: 1.",
        "Jobs that asked for a type of GPU and get any here: 1.",
    ]


@pytest.mark.parametrize("jobs", [[], [recorded(1, 0, None, None)], [recorded(1, 0, 5, None), recorded(2, 0, None, 9)]])
def test_a_lab_in_which_nothing_has_ended_has_no_history(jobs: list[v1.JobView]) -> None:
    with pytest.raises(Invalid, match=rf"history of this lab is no job that has ended \({len(jobs)} jobs in all\)"):
        history_trace(jobs, "this lab")


def test_a_clock_that_was_set_back_gives_no_negative_duration() -> None:
    (job,) = history_trace([recorded(1, 0, 100, 90)], "this lab").jobs
    assert job.duration == 0


def test_sessions_hold_what_they_reserved_and_no_processors() -> None:
    session = {"kind": "session", "qos": "interactive", "time": 86400}
    jobs = [
        recorded(1, 0, 0, 1000, gpus=2, cpus=16, **session),  # a reservation of all GPUs
        recorded(2, 1, 1, 1000, gpus=0, cpus=16, owner="bob", **session),  # borrows for its cells
        recorded(3, 2, 1000, 1100, gpus=1, owner="cyd"),
    ]
    trace = history_trace(jobs, "this lab")
    assert [job.cpus for job in trace.jobs] == [0, 0, 4]
    nodes = nodes_of(Cluster(nodes=1, gpus_per_node=2))
    outcome = simulate_lab(RULES, trace, nodes)
    assert {run.id: (run.start, run.gpus) for run in outcome.runs} == {1: (0, 2), 2: (1, 0), 3: (1000, 1)}


def test_what_ran_alone_runs_as_it_did() -> None:
    """Where nobody had to wait, the simulation tells the history."""
    jobs = [recorded(number, 500 * number, 500 * number, 500 * number + 300) for number in range(20)]
    trace = history_trace(jobs, "this lab")
    outcome = simulate_lab(RULES, trace, nodes_of(Cluster(nodes=1, gpus_per_node=1)))
    assert [(run.start, run.end) for run in outcome.runs] == [(500 * number, 500 * number + 300) for number in range(20)]


def test_a_class_that_there_is_no_more_is_the_default() -> None:
    trace = history_trace([recorded(1, 0, 10, 20, qos="gone")], "this lab")
    outcome = simulate_lab(RULES, trace, nodes_of(Cluster(nodes=1, gpus_per_node=1)))
    assert (len(outcome.runs), outcome.refused) == (1, [])


def test_a_group_has_the_gpus_of_all_its_nodes() -> None:
    (job,) = history_trace([recorded(1, 0, 10, 20, nodes=2, gpus=4)], "this lab").jobs
    assert (job.gpus, job.cpus, job.memory) == (8, 8, 2 * 1024**3)

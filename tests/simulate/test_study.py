"""Work under the lab's rules beside EASY, before and after a change, and notebooks by the broker's policy."""

from __future__ import annotations

from itertools import pairwise

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.notebooks.cells import NotebookSession
from carrel.simulate.study import as_json, as_rows, compare_change, compare_notebooks, compare_policies
from carrel.simulate.tables import change_table, notebooks_table, policies_table
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.what_if import with_gpus
from generator import generate_jobs

RULES = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0)
NODES = nodes_of(Cluster(nodes=2, gpus_per_node=4))
TRACE = generate_jobs(3, jobs=80, gpus=8, load=0.8)
CELLS = Trace(name="some notebooks", jobs=())


class Told:
    """Keeps what is told of the progress."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.done: list[float] = []

    def __call__(self, what: str, done: float) -> None:
        self.parts.append(what)
        self.done.append(done)


def test_both_policies_run_all_jobs_and_tell_how_far_they_are() -> None:
    told = Told()
    found = compare_policies(TRACE, NODES, RULES, facts={"Rules": "here"}, progress=told)
    assert [one.policy for one in found.policies] == ["easy", "carrel"]
    assert {one.jobs for one in found.policies} == {80}
    assert (found.title, found.facts) == (f"{TRACE.name}, on 8 GPUs", {"Rules": "here"})
    assert list(dict.fromkeys(told.parts)) == ["easy", "carrel"]
    assert all(before <= after for before, after in pairwise(told.done))
    assert 0 < told.done[0] < told.done[-1] <= 1
    heads, rows = policies_table(found.policies)
    assert heads == [
        "Policy",
        "Jobs",
        "Mean wait",
        "Median wait",
        "p95 wait",
        "Mean JCT",
        "p95 JCT",
        "Slowdown",
        "Used",
        "Fairness",
    ]
    assert [row[:2] for row in rows] == [["easy", "80"], ["carrel", "80"]]


def test_nodes_may_be_of_any_sizes() -> None:
    unequal = (*NODES, Node(name="odd", cpus=64, memory=1024**4, devices=NODES[0].devices[:1]))
    found = compare_policies(TRACE, unequal, RULES, facts={}, progress=Told())
    assert found.title.endswith(", on 9 GPUs")


def test_a_lab_without_gpus_runs_what_needs_none() -> None:
    jobs = Trace(
        name="two", jobs=[TraceJob(id=1, submitted=0, duration=5, gpus=0), TraceJob(id=2, submitted=0, duration=5, gpus=1)]
    )
    login = (Node(name="login", cpus=64, memory=1024**4),)
    found = compare_policies(jobs, login, RULES, facts={}, progress=Told())
    assert [one.jobs for one in found.policies] == [1, 1]
    assert found.refused["carrel"] == [(2, "The job asks for 1 GPU, but this lab has none.")]
    assert as_json(found)["policies"][1]["refusals"] == [{"reason": "The job asks for 1 GPU, but this lab has none.", "jobs": 1}]


def test_a_change_is_told_by_its_name_and_nothing_else_changes() -> None:
    told = Told()
    same = compare_change(TRACE, (NODES, RULES), (NODES, RULES), "nothing", facts={}, progress=told)
    now, then = same.policies
    assert (now.policy, then.policy) == ("carrel now", "carrel with nothing")
    heads, rows = change_table(now, then)
    assert heads == ["", "Now", "Then", "Change"]
    assert {row[-1] for row in rows} <= {"0 %", "", "+0.0 points", "–"}
    assert same.title == f"What if nothing: {TRACE.name}, on 8 GPUs"
    assert told.done[-1] == 1


def test_more_gpus_shorten_waits() -> None:
    more = compare_change(TRACE, (NODES, RULES), (with_gpus(NODES, "+8"), RULES), "gpus=+8", facts={}, progress=Told())
    now, then = more.policies
    assert now.wait_seconds is not None
    assert then.wait_seconds is not None
    assert (now.gpus, then.gpus) == (8, 16)
    assert then.wait_seconds.mean < now.wait_seconds.mean
    rows = {row[0]: list(row[1:]) for row in change_table(now, then)[1]}
    assert rows["GPUs"] == ["8", "16", "+100.0 %"]
    assert rows["Wait, mean"][2].startswith("-")
    assert rows["GPUs in use"][2].endswith(" points")
    assert rows["Times stopped"] == ["0", "0", ""]


def test_who_goes_to_another_class_is_noted() -> None:
    rules = LabRules(
        qos={"a": QoS(name="a", max_gpus_per_user=1), "b": QoS(name="b"), "c": QoS(name="c", kinds=frozenset({JobKind.SESSION}))},
        default_qos="a",
        session_qos="c",
    )
    wide = sum(job.gpus > 1 for job in TRACE.jobs)
    found = compare_change(TRACE, (NODES, RULES), (NODES, rules), "limits", facts={}, progress=Told())
    assert found.trace.notes[len(TRACE.notes) :] == [
        f'carrel with limits: jobs that QoS "a" does not let in and "b" does: {wide}.'
    ]


def test_rows_for_programs_have_a_column_for_each_number_in_every_case() -> None:
    first, second = as_rows(compare_policies(TRACE, NODES, RULES, facts={}, progress=Told()))
    assert first.keys() == second.keys()
    assert (first["policy"], second["policy"], second["jobs"]) == ("easy", "carrel", 80)
    assert {"wait_seconds_mean", "completion_seconds_p95", "bounded_slowdown_max", "finish_time_fairness"} <= first.keys()
    wide = Trace(name="none fits", jobs=[TraceJob(id=1, submitted=0, duration=5, gpus=99)])
    empty, _ = as_rows(compare_policies(wide, NODES, RULES, facts={}, progress=Told()))
    assert empty.keys() == first.keys()
    assert empty["wait_seconds_mean"] is None


def sessions(many: int) -> list[NotebookSession]:
    """Each computes for half of its time; all begin within a minute."""
    return [
        NotebookSession(name=str(number), gpus=1, opens=9.0 * number, thinks=[0.0, *[50.0] * 20], computes=[50.0] * 21)
        for number in range(many)
    ]


def test_notebooks_run_on_the_fewest_gpus_that_serve_them_within_a_minute() -> None:
    told = Told()
    found = compare_notebooks(CELLS, sessions(6), facts={}, progress=told)
    (row,) = found.notebooks
    assert found.gpus == row.gpus == row.gpus_for_p95_wait_of_60_seconds < row.gpus_for_p95_wait_of_0_seconds <= 6
    assert (told.done[0], told.done[-1]) == (0, 1)
    assert found.facts == {"Sessions": "6"}
    assert row.fresh_starts + row.warm_starts + row.cold_starts == 6 * 21
    assert row.gpu_hours_of_cells == pytest.approx(6 * 21 * 50 / 3600)
    heads, (cells,) = notebooks_table(found.notebooks)
    assert dict(zip(heads, cells, strict=True))["GPUs here"] == str(found.gpus)
    assert as_rows(found)[0]["request_wait_seconds_p95"] == as_json(found)["notebooks"][0]["request_wait_seconds"]["p95"]


def test_notebooks_on_too_few_gpus_are_refused_before_anything_is_counted() -> None:
    told = Told()
    wide = NotebookSession(name="7.1", gpus=8, opens=0, thinks=[0.0], computes=[60.0])
    with pytest.raises(Invalid, match=r"Session 7\.1 needs 8 GPUs at once and there are 4"):
        compare_notebooks(CELLS, [wide], facts={}, gpus=4, progress=told)
    assert told.parts == []


def test_no_sessions_are_refused() -> None:
    with pytest.raises(Invalid, match="There are no sessions"):
        compare_notebooks(CELLS, [], facts={}, progress=Told())

"""One trace several times: under policies, before and after a change, in the modes of notebooks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.generator import generate_jobs
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.notebooks.forming import form_sessions, named_sessions
from carrel.simulate.notebooks.generator import generate_week
from carrel.simulate.notebooks.modes import EAGER, LAZY, RESERVATION
from carrel.simulate.policies import CARREL, EASY, POLICIES, policies_for
from carrel.simulate.report import compare, page
from carrel.simulate.study import compare_change, compare_notebooks, compare_policies
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.what_if import with_gpus

RULES = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0)
NODES = nodes_of(Cluster(nodes=2, gpus_per_node=4))
TRACE = generate_jobs(3, jobs=80, gpus=8, load=0.8)


class Told:
    """Keeps what is told of the progress."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.done: list[float] = []

    def __call__(self, what: str, done: float) -> None:
        self.parts.append(what)
        self.done.append(done)


def test_every_policy_runs_all_jobs_and_tells_how_far_it_is() -> None:
    told = Told()
    found = compare_policies(TRACE, NODES, RULES, list(POLICIES), facts={"Seed": "3"}, progress=told)
    assert [outcome.policy for outcome in found.outcomes] == list(POLICIES)
    assert {len(outcome.runs) for outcome in found.outcomes} == {80}
    assert found.title == f"{TRACE.name}, on 8 GPUs"
    assert found.facts == {"Seed": "3"}
    assert list(dict.fromkeys(told.parts)) == list(POLICIES)
    assert all(before <= after for before, after in pairwise(told.done))
    assert 0 < told.done[0] < told.done[-1] <= 1
    assert "srtf" in page(found)


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(Invalid, match='There is no policy "lottery"'):
        compare_policies(TRACE, NODES, RULES, ["fifo", "lottery"], facts={})


def test_unequal_nodes_are_for_those_who_take_them() -> None:
    unequal = (*NODES, Node(name="odd", cpus=64, memory=1024**4, devices=NODES[0].devices[:1]))
    assert policies_for(unequal) == [EASY, CARREL]
    assert policies_for((*NODES, Node(name="login", cpus=64, memory=1024**4))) == list(POLICIES)
    assert policies_for((Node(name="login", cpus=64, memory=1024**4),)) == [EASY, CARREL]
    found = compare_policies(TRACE, unequal, RULES, policies_for(unequal), facts={})
    assert found.title.endswith(", on 9 GPUs")
    with pytest.raises(Invalid, match='The policy "fifo" knows equal nodes only; these have 1 and 4 GPUs'):
        compare_policies(TRACE, unequal, RULES, ["fifo"], facts={})


def test_a_lab_without_gpus_runs_what_needs_none() -> None:
    jobs = Trace(
        name="two", jobs=[TraceJob(id=1, submitted=0, duration=5, gpus=0), TraceJob(id=2, submitted=0, duration=5, gpus=1)]
    )
    login = (Node(name="login", cpus=64, memory=1024**4),)
    (outcome,) = compare_policies(jobs, login, RULES, ["carrel"], facts={}).outcomes
    assert [run.id for run in outcome.runs] == [1]
    assert outcome.refused == [(2, "The job asks for 1 GPU, but this lab has none.")]


def test_a_change_is_told_by_its_name_and_nothing_else_changes() -> None:
    told = Told()
    same = compare_change(TRACE, (NODES, RULES), (NODES, RULES), "nothing", facts={}, progress=told)
    now, then = same.measures()
    assert (now.policy, then.policy) == ("carrel now", "carrel with nothing")
    changes = {row[-1] for row in compare(now, then).rows}
    assert changes <= {"0 %", "", "+0.0 points", "–"}
    assert same.title == f"What if nothing: {TRACE.name}, on 8 GPUs"
    assert told.done[-1] == 1


def test_more_gpus_shorten_waits() -> None:
    more = compare_change(TRACE, (NODES, RULES), (with_gpus(NODES, "+8"), RULES), "gpus=+8", facts={})
    now, then = more.measures()
    assert now.waits is not None
    assert then.waits is not None
    assert (now.gpus, then.gpus) == (8, 16)
    assert then.waits.mean < now.waits.mean


def test_who_goes_to_another_class_is_noted() -> None:
    rules = LabRules(
        qos={"a": QoS(name="a", max_gpus_per_user=1), "b": QoS(name="b"), "c": QoS(name="c", kinds=frozenset({JobKind.SESSION}))},
        default_qos="a",
        session_qos="c",
    )
    wide = sum(job.gpus > 1 for job in TRACE.jobs)
    found = compare_change(TRACE, (NODES, RULES), (NODES, rules), "limits", facts={})
    assert found.trace.notes[len(TRACE.notes) :] == [
        f'carrel with limits: jobs that QoS "a" does not let in and "b" does: {wide}.'
    ]


def test_a_small_difference_between_nothing_and_nothing_is_none() -> None:
    found = compare_policies(TRACE, NODES, RULES, ["fifo", "carrel"], facts={})
    before, after = found.measures()
    row = next(row for row in compare(before, after).rows if row[0] == "GPU-hours lost")
    assert row[1:] == ["0", "0", ""]


def test_notebooks_are_compared_on_the_fewest_gpus_with_which_some_mode_serves_within_a_minute() -> None:
    trace = generate_week(1, scale=0.1)
    sessions = named_sessions(trace.jobs)
    told = Told()
    found = compare_notebooks(trace, sessions, facts={}, modes=(RESERVATION, EAGER, LAZY), progress=told)
    minute = [row.gpus_for_a_minute for row in found.notebooks]
    assert found.cluster_gpus == min(count for count in minute if count is not None)
    assert {row.result.gpus for row in found.notebooks} == {found.cluster_gpus}
    for row in found.notebooks:
        assert row.gpus_for_a_minute is not None
        assert row.gpus_without_waits is not None
        assert row.gpus_for_a_minute <= row.gpus_without_waits
    assert all(before <= after for before, after in pairwise(told.done))
    assert (told.done[0], told.done[-1]) == (0, 1)
    assert found.facts["Sessions"] == f"{len(sessions):,}"


def test_notebooks_on_too_few_gpus_are_refused_before_anything_is_counted() -> None:
    told = Told()
    cells = [TraceJob(id=1, submitted=0, duration=60, gpus=8)]
    with pytest.raises(Invalid, match="needs 8 GPUs at once and there are 4"):
        compare_notebooks(Trace(name="one", jobs=cells), form_sessions(cells), facts={}, gpus=4, progress=told)
    assert told.parts == []


def test_no_sessions_are_refused() -> None:
    with pytest.raises(Invalid, match="There are no sessions"):
        compare_notebooks(Trace(name="none", jobs=[]), [], facts={})

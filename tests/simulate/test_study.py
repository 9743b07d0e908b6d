"""Work under the lab's rules beside EASY, before and after a change."""

from __future__ import annotations

from carrel.core.domain.node import Node
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.study import as_json, compare_change, compare_policies
from carrel.simulate.tables import change_table
from carrel.simulate.trace import Cluster, Trace, TraceJob
from generator import generate_jobs

RULES = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0)
NODES = nodes_of(Cluster(nodes=2, gpus_per_node=4))
TRACE = generate_jobs(3, jobs=80, gpus=8, load=0.8)


def untold(_what: str, _done: float) -> None:
    pass


def test_nodes_may_be_of_any_sizes() -> None:
    unequal = (*NODES, Node(name="odd", cpus=64, memory=1024**4, devices=NODES[0].devices[:1]))
    found = compare_policies(TRACE, unequal, RULES, facts={}, progress=untold)
    assert found.title.endswith(", on 9 GPUs")


def test_a_lab_without_gpus_runs_what_needs_none() -> None:
    jobs = Trace(
        name="two", jobs=[TraceJob(id=1, submitted=0, duration=5, gpus=0), TraceJob(id=2, submitted=0, duration=5, gpus=1)]
    )
    login = (Node(name="login", cpus=64, memory=1024**4),)
    found = compare_policies(jobs, login, RULES, facts={}, progress=untold)
    assert [one.jobs for one in found.policies] == [1, 1]
    assert found.refused["carrel"] == [(2, "The job asks for 1 GPU, but this lab has none.")]
    assert as_json(found)["policies"][1]["refusals"] == [{"reason": "The job asks for 1 GPU, but this lab has none.", "jobs": 1}]


def test_a_change_is_told_by_its_name_and_nothing_else_changes() -> None:
    told: list[float] = []
    same = compare_change(
        TRACE, (NODES, RULES), (NODES, RULES), "nothing", facts={}, progress=lambda _what, done: told.append(done)
    )
    now, then = same.policies
    assert (now.policy, then.policy) == ("carrel now", "carrel with nothing")
    heads, rows = change_table(now, then)
    assert heads == ["", "Now", "Then", "Change"]
    assert {row[-1] for row in rows} <= {"0 %", "", "+0.0 points", "–"}
    assert same.title == f"What if nothing: {TRACE.name}, on 8 GPUs"
    assert told[-1] == 1

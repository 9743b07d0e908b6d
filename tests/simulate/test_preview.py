"""What other rules would have done, by class of service and by user."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.preview import compare
from carrel.simulate.trace import Cluster, Trace, TraceJob

RULES = LabRules(
    qos={"long": QoS(name="long"), "short": QoS(name="short")}, default_qos="long", session_qos="long", share_weight=0.0
)
NODES = nodes_of(Cluster(nodes=1, gpus_per_node=1))
#: A long job runs, and another and a short one of somebody else's wait behind it.
TRACE = Trace(
    name="a day",
    jobs=[
        TraceJob(id=1, submitted=0, duration=3600, gpus=1, user="ada", qos="long"),
        TraceJob(id=2, submitted=10, duration=3600, gpus=1, user="ada", qos="long"),
        TraceJob(id=3, submitted=20, duration=60, gpus=1, user="bob", qos="short"),
    ],
)


def test_waits_and_shares_of_the_gpus_are_told_for_each_class_and_user() -> None:
    first = replace(RULES, qos={**RULES.qos, "short": QoS(name="short", priority=1000)})
    found = compare(TRACE, NODES, RULES, first)
    rows = {row["name"]: row for row in (*found["qos"], *found["users"])}
    assert [row["name"] for row in found["users"]] == ["ada", "bob"]
    assert rows["short"]["now"]["mean_wait_seconds"] == 7180
    assert rows["short"]["then"]["mean_wait_seconds"] == 3580
    assert (rows["ada"]["now"]["p95_wait_seconds"], rows["ada"]["then"]["p95_wait_seconds"]) == (3590, 3650)
    assert rows["long"]["now"]["utilisation"] == pytest.approx(7200 / 7260)
    assert found["all"][0]["now"]["utilisation"] == pytest.approx(1)


def test_jobs_that_a_class_lets_in_no_more_are_counted() -> None:
    none = replace(RULES, qos={name: QoS(name=name, max_gpus=0) for name in RULES.qos})
    found = compare(TRACE, NODES, RULES, none)
    refused = {row["name"]: (row["now"]["refused"], row["then"]["refused"]) for row in found["users"]}
    assert refused == {"ada": (0, 2), "bob": (0, 1)}
    assert found["users"][0]["then"]["mean_wait_seconds"] is None

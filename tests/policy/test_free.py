"""What is free for a user: each number is what comes out when it is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from policy_labs import GIB, NOW, holding, lab, node, snapshots, waiting

from carrel.core.domain.placement import FreeGpus, Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.explain import explain
from carrel.core.policy.free import Free
from carrel.core.policy.placer import Placer
from support.examples import examples

HOUR = 3600
DAY = 24 * HOUR


def free_in(snapshot: Snapshot, **asked: Any) -> list[FreeGpus]:
    outcome = Placer.of(snapshot).look(NOW)
    return list(Free(outcome, NOW, explain).of(waiting(2**62, 1, **{"time": DAY, **asked})))


@pytest.mark.gate
def test_what_is_free_of_each_type_for_how_long_and_when_one_more_is() -> None:
    course = Reservation(
        name="course", begin=NOW + 4.5 * HOUR, end=NOW + 9 * HOUR, nodes=("n1",), users=frozenset({"zed"}), accounts=frozenset()
    )
    nodes = [node("n1", "a100", "a100", "a100"), node("n2", "h200")]
    busy = [holding(8, "n1", "n1-0", left=2 * HOUR), holding(9, "n2", "n2-0", left=HOUR)]
    a100, h200 = free_in(lab(nodes, [], busy, reservations=(course,)))
    assert (a100.type, a100.count, a100.now, a100.time) == ("a100", 3, 2, 4 * HOUR)
    assert "course" in a100.why_no_longer
    assert a100.start == NOW + 2 * HOUR
    assert (h200.now, h200.time, h200.start) == (0, 0, NOW + HOUR)
    assert h200.why_no_more


def test_an_idle_lab_is_free_for_as_long_as_the_class_allows() -> None:
    assert free_in(lab([node("n1", "a100", "a100")], [])) == [FreeGpus(type="a100", count=2, now=2, time=DAY)]


def test_limits_and_what_is_kept_for_others_count() -> None:
    snapshot = lab([node("n1", *["a100"] * 4)], [], qos={"batch": QoS(name="batch", max_gpus_per_user=1)})
    (found,) = free_in(snapshot)
    assert (found.now, found.count) == (1, 4)
    assert "1 of at most 1 GPU" in found.why_no_more
    large = waiting(1, 4, owner="other", ago=60)
    (found,) = free_in(lab([node("n1", *["a100"] * 4)], [large], [holding(9, "n1", "n1-0", left=HOUR / 4)]), time=DAY)
    assert found.time <= HOUR / 4, "what runs longer would be in the way of the job that is promised all four"


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(snapshots())
def test_so_many_start_and_no_longer_one_does(snapshot: Snapshot) -> None:
    one = waiting(2**62, 1, memory=GIB, time=DAY)
    outcome = Placer.of(snapshot).look(NOW)
    for found in Free(outcome, NOW, explain).of(one):

        def starts(many: int, time: float, kind: str = found.type) -> int:
            placer = Placer.of(outcome.picture, outcome.order)
            tried = range(one.id, one.id + many)
            wanted = replace(one.resources, gpus=1, gpu_type=kind, time=int(time))
            for number in tried:
                placer.wait(Waiting(**{**_fields(one), "id": number, "resources": wanted}))
            return sum(start.job_id in tried for start in placer.look(NOW).starts)

        assert starts(found.count, 300) == found.now
        if found.now:
            assert starts(1, found.time) == 1
            assert not found.why_no_longer or starts(1, DAY) == 0
        else:
            assert starts(1, 300) == 0


def _fields(job: Waiting) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Waiting.__dataclass_fields__}

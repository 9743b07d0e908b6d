"""What is foreseen of turns, beside what the simulated lab then does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from policy_labs import NOW, holding, lab, waiting

from carrel.core.control import scheduler
from carrel.core.domain.expectation import Expected
from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import Snapshot, Wait
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.core.policy import course
from carrel.core.policy.explain import explain
from carrel.core.policy.placer import Placer
from carrel.core.policy.rotation import Turn
from carrel.core.policy.runtime import RunTimes
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.testing.examples import examples

HOUR = 3600.0
DAY = 24 * HOUR
#: Seconds by which floating point may be off.
CLOSE = 5.0


@dataclass(frozen=True)
class Start:
    """What one owner was told before the correction, and what happened; seconds after they asked."""

    job_id: int
    foreseen: tuple[float, float, float]
    real: float


def simulated(monkeypatch: pytest.MonkeyPatch, jobs: Sequence[TraceJob], *, gpus: int, nodes: int = 1) -> list[Start]:
    """Those who had to wait in a lab that knows how long jobs run."""
    known = {job.name: job.duration for job in jobs}

    class Known(RunTimes):
        def remaining(self, _owner: str, name: str, limit: float, elapsed: float = 0.0) -> Expected | None:
            # A walltime counts from where a job goes on, so what it had before is in both.
            left = max(1.0, min(known[name], limit) - elapsed)
            return Expected(median=left, low=left, high=left, of=99)

    monkeypatch.setattr(scheduler, "RunTimes", Known)
    rules = LabRules(
        qos={"turns": QoS(name="turns", rotate=3600), "plain": QoS(name="plain")},
        default_qos="turns",
        session_qos="plain",
        share_weight=0.0,
    )
    told: dict[int, tuple[Wait, float]] = {}
    outcome = simulate_lab(
        rules,
        Trace(name="random", jobs=jobs),
        nodes_of(Cluster(nodes=nodes, gpus_per_node=gpus)),
        answer=lambda wait, now: told.__setitem__(wait.job_id, (wait, now)),
    )
    found = []
    for run in outcome.runs:
        if run.id in told and told[run.id][0].foreseen is not None:
            wait, now = told[run.id]
            assert wait.foreseen is not None
            low, middle, high = wait.foreseen
            found.append(Start(job_id=run.id, foreseen=(low - now, middle - now, high - now), real=run.start - now))
    return found


def traced(number: int, at: float, hours: float, gpus: int = 1, qos: str = "turns") -> TraceJob:
    return TraceJob(
        id=number, submitted=at, duration=hours * HOUR, gpus=gpus, user=f"user-{number % 3}", name=f"job-{number}",
        time=30 * 86400, qos=qos,
    )  # fmt: skip


def test_a_newcomer_is_told_when_the_turn_of_the_other_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = simulated(monkeypatch, [traced(1, 0.0, 100.0), traced(2, 600.0, 5.0)], gpus=1)
    assert found.real == pytest.approx(3000.0, abs=CLOSE)
    assert found.foreseen == pytest.approx((3000.0,) * 3, abs=CLOSE)


def test_who_stands_behind_a_class_that_rotates_is_told_when_room_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [traced(1, 0.0, 3.0), traced(2, 600.0, 2.0), traced(3, 700.0, 1.0, qos="plain")]
    for one in simulated(monkeypatch, jobs, gpus=1):
        assert one.foreseen[1] == pytest.approx(one.real, abs=CLOSE)


def on_one_gpu(ran: float, *, suspendable: bool = True) -> tuple[Snapshot, Turn]:
    """A job that has run for so long and may run for ten days, and one that waits; both take turns."""
    held = replace(holding(1, "n1", "SIM-0", left=10 * DAY), suspendable=suspendable)
    turn = Turn(held=held, again=replace(waiting(1, ago=DAY), ran=ran), since=NOW - ran)
    device = Device(uuid="SIM-0", index=0, type="h200", name="H200", memory=2**37, simulated=True)
    machine = Node(name="n1", cpus=64, memory=2**40, devices=(device,))
    return lab([machine], [waiting(9)], [held], qos={"batch": QoS(name="batch", rotate=3600)}), turn


def first_told(snapshot: Snapshot, turn: Turn) -> Wait:
    (wait,) = explain(Placer.of(snapshot).look(NOW), lambda *_: None, turns=[turn]).pending
    return wait


def test_where_no_run_time_is_known_turns_are_foreseen_with_walltimes() -> None:
    wait = first_told(*on_one_gpu(ran=600.0))
    assert wait.estimated_start == NOW + 3000
    assert wait.estimated_range is None
    assert wait.reason.message.endswith("; about 50 min")


def test_what_keeps_its_place_is_not_foreseen_to_be_stopped() -> None:
    assert first_told(*on_one_gpu(ran=600.0, suspendable=False)).estimated_start == NOW + 10 * DAY


def test_stops_that_are_foreseen_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "MOST_STOPS", 0)
    assert first_told(*on_one_gpu(ran=600.0)).estimated_start == NOW + 10 * DAY


def test_a_job_that_was_stopped_runs_on_for_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is expected to be over an hour after it began; the time for which it was stopped does not count."""
    jobs = [traced(1, 0.0, 2.0), traced(2, 7000.0, 0.5), traced(3, 7200.0, 1.0)]
    for one in simulated(monkeypatch, jobs, gpus=1):
        assert one.foreseen[1] == pytest.approx(one.real, abs=CLOSE)


def random_jobs(seed: int) -> tuple[list[TraceJob], int, int]:
    """Jobs of minutes to days in a small lab. The last third is there at once: nobody comes after them."""
    drawn = Random(seed)
    gpus, nodes = drawn.choice((1, 2, 4)), drawn.choice((1, 2))
    many, last = drawn.randint(4, 14), drawn.uniform(0, 2 * DAY)
    moments = sorted(drawn.uniform(0, last) for _ in range(many)) + [last] * (many // 2)
    return (
        [
            traced(
                number,
                at,
                drawn.choice((0.2, 1.0, 5.0, 30.0, 100.0)) * drawn.uniform(0.5, 1.5),
                gpus=drawn.choice((1, 1, 1, gpus)),
                qos=drawn.choice(("turns", "turns", "turns", "plain")),
            )
            for number, at in enumerate(moments, start=1)
        ],
        gpus,
        nodes,
    )


def of_the_last(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[Start]:
    jobs, gpus, nodes = random_jobs(seed)
    last = {job.id for job in jobs if job.submitted == jobs[-1].submitted}
    return [one for one in simulated(monkeypatch, jobs, gpus=gpus, nodes=nodes) if one.job_id in last]


@pytest.mark.parametrize("seed", range(examples(40)))
def test_where_run_times_are_known_and_nobody_comes_the_first_turn_is_when_it_was_told(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for one in of_the_last(monkeypatch, seed):
        assert one.foreseen[1] == pytest.approx(one.real, abs=CLOSE), seed

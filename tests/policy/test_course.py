"""What is foreseen, beside what the simulated lab then does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest

from carrel.core.control import scheduler
from carrel.core.domain.expectation import Expected
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.core.policy.runtime import RunTimes
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace, TraceJob
from support.examples import examples

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
            left = max(1.0, min(known[name], limit) - elapsed)
            return Expected(median=left, low=left, high=left, of=99)

    monkeypatch.setattr(scheduler, "RunTimes", Known)
    rules = LabRules(
        qos={"plain": QoS(name="plain"), "other": QoS(name="other", max_gpus_per_user=2)},
        default_qos="plain",
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
            low, middle, high = wait.foreseen
            found.append(Start(job_id=run.id, foreseen=(low - now, middle - now, high - now), real=run.start - now))
    return found


def traced(number: int, at: float, hours: float, gpus: int = 1, qos: str = "plain") -> TraceJob:
    return TraceJob(
        id=number, submitted=at, duration=hours * HOUR, gpus=gpus, user=f"user-{number % 3}", name=f"job-{number}",
        time=30 * 86400, qos=qos,
    )  # fmt: skip


def test_a_newcomer_is_told_when_the_other_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = simulated(monkeypatch, [traced(1, 0.0, 100.0), traced(2, 600.0, 5.0)], gpus=1)
    assert found.real == pytest.approx(100 * HOUR - 600, abs=CLOSE)
    assert found.foreseen == pytest.approx((found.real,) * 3, abs=CLOSE)


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
                qos=drawn.choice(("plain", "plain", "other")),
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
def test_where_run_times_are_known_and_nobody_comes_the_start_is_when_it_was_told(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for one in of_the_last(monkeypatch, seed):
        assert one.foreseen[1] == pytest.approx(one.real, abs=CLOSE), seed

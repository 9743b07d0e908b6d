"""The lab's own scheduler on a virtual clock: it decides what the field's policies and its own rules say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baselines import simulate_baseline
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.qos import JobKind, PreemptMode, QoS
from carrel.core.domain.rules import BACKFILL_TIMES, LabRules
from carrel.simulate.lab import simulate_lab, simulation
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.simulation import nodes_for
from carrel.simulate.lab.walltime import USUAL, usual_walltime
from carrel.simulate.measures import measure
from carrel.simulate.study import EASY_RULES
from carrel.simulate.trace import Cluster, Outcome, Trace, TraceJob
from foreign_traces import read_trace
from support.examples import examples

TRACES = Path(__file__).parents[1] / "data" / "traces"
SMALL = nodes_of(Cluster(nodes=2, gpus_per_node=4))


def rules(*services: QoS, share_weight: float = 0.0, **more: object) -> LabRules:
    """Rules with these classes of service, or with one that limits nothing."""
    qos = {service.name: service for service in services or (QoS(name="all"),)}
    first = next(iter(qos))
    return LabRules(qos=qos, default_qos=first, session_qos=first, share_weight=share_weight, **more)  # type: ignore[arg-type]


def trace(*jobs: TraceJob) -> Trace:
    return Trace(name="small", jobs=jobs)


def job(number: int, submitted: float, duration: float, gpus: int, **more: object) -> TraceJob:
    return TraceJob(id=number, submitted=submitted, duration=duration, gpus=gpus, **more)  # type: ignore[arg-type]


def starts(outcome: Outcome) -> dict[int, float]:
    return {run.id: run.start for run in outcome.runs}


def in_use(outcome: Outcome, moment: float) -> int:
    return sum(run.gpus for run in outcome.runs if run.start <= moment < run.end)


def test_a_later_job_starts_early_where_it_delays_nobody() -> None:
    jobs = trace(
        job(1, 0, 1000, 4),
        job(2, 0, 3000, 3),
        job(3, 10, 500, 4),  # waits for job 1
        job(4, 20, 500, 1, time=600),  # fits beside job 2
        job(5, 30, 900, 1, time=5000),
    )
    assert starts(simulate_lab(rules(), jobs, SMALL)) == {1: 0, 2: 0, 3: 1000, 4: 20, 5: 520}


@pytest.mark.parametrize(("times", "started"), [("walltime", 11_000), ("expected", 10_030)])
def test_who_has_always_been_short_goes_ahead_where_backfill_goes_by_that(times: str, started: float) -> None:
    known = [job(number, number * 1000, 100, 1, time=9000, user="ada", name="probe") for number in range(1, 5)]
    known += [job(number, number * 1000, 500, 1, time=520, user="bob", name="long") for number in range(5, 9)]
    jobs = trace(
        *known,
        job(10, 10_000, 500, 3, time=520, user="bob", name="long"),
        job(11, 10_010, 500, 4, time=520, user="bob", name="long"),  # waits for it
        job(12, 10_030, 100, 1, time=9000, user="ada", name="probe"),
    )
    node = nodes_of(Cluster(nodes=1, gpus_per_node=4))
    assert starts(simulate_lab(rules(backfill_times=times), jobs, node))[12] == started


def test_a_job_larger_than_a_node_starts_on_several_at_once() -> None:
    jobs = trace(job(1, 0, 100, 2), job(2, 1, 50, 8), job(3, 2, 30, 2, time=60), job(4, 3, 500, 2, time=600))
    outcome = simulate_lab(rules(), jobs, SMALL)
    # Job 1 asks for 10 minutes, so job 2 is promised that moment and starts when job 1 is over; job 4 would be in its way.
    assert starts(outcome) == {1: 0, 2: 100, 3: 2, 4: 150}
    assert not outcome.refused


def test_what_no_class_of_service_lets_in_is_refused_with_the_reason() -> None:
    short = QoS(name="short", max_time=3600)
    long = QoS(name="long", max_time=7200, kinds=frozenset({JobKind.TASK}))
    jobs = trace(job(1, 0, 10, 1, time=7000), job(2, 0, 10, 1, time=8000), job(3, 0, 10, 9), job(4, 0, 10, 12))
    outcome = simulate_lab(rules(short, long), jobs, SMALL)
    assert [run.id for run in outcome.runs] == [1]  # went to the class that lets it in
    assert dict(outcome.refused)[2] == 'The job asks for 2 h 13 min, but QoS "short" allows 1 h.'
    assert dict(outcome.refused)[3] == "The job asks for 3 nodes, but the lab has 2 that are large enough."
    assert 4 in dict(outcome.refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trace3.csv", "trace3_pr.csv"])
def test_backfill_is_never_worse_than_a_line_that_blocks(name: str) -> None:
    traced = read_trace(TRACES / "muri" / name)
    assert traced.cluster is not None
    nodes = nodes_of(traced.cluster)
    outcomes = {
        "fifo": simulate_baseline("fifo", traced, traced.cluster),
        "easy": simulate_lab(EASY_RULES, traced, nodes),
        "carrel": simulate_lab(rules(), traced, nodes),
    }
    found = {policy: measure(outcome, traced) for policy, outcome in outcomes.items()}
    waits = {policy: one.wait_seconds.mean for policy, one in found.items() if one.wait_seconds is not None}
    assert waits["easy"] < waits["fifo"]
    # Without classes, users and accounts the lab's rules are those of EASY.
    assert waits["carrel"] == waits["easy"]
    assert all(one.jobs == 992 and one.refused == 0 for one in found.values())


JOBS = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.integers(0, 60),
        st.integers(0, 8),
        st.sampled_from(["ada", "bob", "cyd"]),
        st.sampled_from([None, 30, 100]),
        st.sampled_from(["all", "less", "none such"]),
    ),
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, st.sampled_from([0.0, 3600.0]), st.sampled_from([1, 4]), st.sampled_from(BACKFILL_TIMES))
def test_whatever_is_submitted_every_job_ends_and_no_gpu_is_used_twice(
    raw: list[tuple[int, int, int, str, int | None, str]], share_weight: float, promises: int, times: str
) -> None:
    jobs = [
        job(number, at, duration, gpus, user=user, account=user[0], time=time, qos=qos)
        for number, (at, duration, gpus, user, time, qos) in enumerate(sorted(raw, key=lambda one: one[0]))
    ]
    services = (QoS(name="all"), QoS(name="less", max_gpus_per_user=4, max_jobs_per_account=3, priority=1))
    outcome = simulate_lab(
        rules(*services, share_weight=share_weight, promises=promises, backfill_times=times), trace(*jobs), SMALL
    )
    refused = {number for number, _ in outcome.refused}
    assert {run.id for run in outcome.runs} | refused == {one.id for one in jobs}
    by_id = {one.id: one for one in jobs}
    for run in outcome.runs:
        asked = by_id[run.id]
        assert run.start >= asked.submitted
        limit = asked.time or usual_walltime(asked.duration)
        assert run.end - run.start == pytest.approx(min(asked.duration, limit))
        assert in_use(outcome, run.start) <= 8
        limited = [
            other
            for other in outcome.runs
            if by_id[other.id].qos == "less"
            and other.gpus <= 4
            and other.user == run.user
            and other.start <= run.start < other.end
        ]
        if asked.qos == "less" and asked.gpus <= 4 and run.end > run.start:  # a larger one went to the other class
            assert sum(other.gpus for other in limited) <= 4
    assert {number for number in refused if by_id[number].gpus <= 4 and by_id[number].qos != "less"} == set()


@given(st.integers(0, 300), st.integers(1, 16))
def test_a_job_is_spread_evenly_over_the_fewest_nodes(gpus: int, per_node: int) -> None:
    nodes = nodes_for(gpus, per_node)
    assert gpus % nodes == 0
    assert gpus // nodes <= per_node
    assert not any(gpus % fewer == 0 and gpus // fewer <= per_node for fewer in range(1, nodes))


@given(st.floats(0, 1e8))
def test_a_usual_walltime_is_enough_and_never_far_too_much(seconds: float) -> None:
    walltime = usual_walltime(seconds)
    assert walltime >= seconds
    assert walltime == USUAL[0] or walltime <= 3 * max(seconds, 1)


def test_no_nodes_take_nothing() -> None:
    nodes: tuple[Node, ...] = nodes_of(Cluster(nodes=0, gpus_per_node=8))
    outcome = simulate_lab(rules(), trace(job(1, 0, 10, 1)), nodes)
    assert dict(outcome.refused) == {1: "The lab has no node."}


PREEMPTING = rules(
    QoS(name="desk", preempts=frozenset({"batch", "rack"})),
    QoS(name="batch", preempt_mode=PreemptMode.REQUEUE),
    QoS(name="rack", preempt_mode=PreemptMode.SUSPEND),
)


@pytest.mark.parametrize(("qos", "end", "ran"), [("batch", 1150.0, 1100.0), ("rack", 1050.0, 1000.0)])
def test_who_gives_way_loses_its_work_or_its_time_alone(qos: str, end: float, ran: float) -> None:
    jobs = trace(job(1, 0, 1000, 4, qos=qos), job(2, 0, 1000, 4, qos="desk"), job(3, 100, 50, 2, qos="desk"))
    outcome = simulate_lab(PREEMPTING, jobs, SMALL)
    first, second, third = outcome.runs
    assert (third.start, third.end, third.preemptions) == (100, 150, 0)
    assert (first.start, first.end, first.ran, first.preemptions) == (0, end, ran, 1)
    assert (second.start, second.end, second.preemptions) == (0, 1000, 0)


def test_who_is_exempt_gives_way_as_soon_as_it_is_not_any_more() -> None:
    services = {**PREEMPTING.qos, "batch": QoS(name="batch", preempt_mode=PreemptMode.REQUEUE, preempt_exempt_time=300)}
    jobs = trace(job(1, 0, 1000, 8, qos="batch"), job(2, 100, 50, 2, qos="desk"))
    assert starts(simulate_lab(rules(*services.values()), jobs, nodes_of(Cluster(nodes=1, gpus_per_node=8)))) == {1: 0, 2: 300}


class StrictMachines(VirtualMachines):
    """Machines that fail when a device is given twice, or when somebody goes on who was not stopped."""

    def __init__(self, nodes: tuple[Node, ...], durations: Mapping[int, float], *, move: float = 0.0) -> None:
        super().__init__(nodes, durations, move=move)
        self.given: dict[int, tuple[str, ...]] = {}
        self.holding: set[int] = set()

    def start(self, launch: Launch, *, token: str) -> None:
        self.given[launch.job_id] = tuple(device.uuid for device in launch.devices)
        self._take(launch.job_id)
        super().start(launch, token=token)

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        if preemption is None:
            self._take(job_id)
        else:
            self.holding.remove(job_id)
        super().preempt(job_id, attempt, preemption)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        self.holding.discard(job_id)

    def _take(self, job_id: int) -> None:
        assert job_id not in self.holding
        assert not set(self.given[job_id]).intersection(uuid for one in self.holding for uuid in self.given[one])
        self.holding.add(job_id)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000),
            st.integers(1, 800),
            st.sampled_from([1, 2, 3, 4, 6, 8]),
            st.sampled_from(["desk", "batch", "rack"]),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_whoever_gives_way_ends_some_day_and_nobody_takes_from_the_first(
    drawn: list[tuple[int, int, int, str, bool]],
) -> None:
    drawn.sort()
    jobs = trace(
        *(
            job(number, submitted, duration, gpus, qos=qos, time=duration if exact else None)
            for number, (submitted, duration, gpus, qos, exact) in enumerate(drawn, start=1)
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "VirtualMachines", StrictMachines)
        outcome = simulate_lab(PREEMPTING, jobs, SMALL)
    assert len(outcome.runs) == len(drawn)
    for run, (_, duration, gpus, qos, _) in zip(outcome.runs, drawn, strict=True):
        # Of several nodes nobody can be stopped.
        loses = qos == "batch" or (qos == "rack" and gpus > 4)
        assert run.ran == pytest.approx(duration) or (loses and run.preemptions and run.ran > duration)
        assert run.preemptions == 0 or qos != "desk"
        assert run.end - run.start >= run.ran - 1e-6
    by_hand = sorted({run.start for run in outcome.runs} | {run.end for run in outcome.runs})
    desk = [run for run, one in zip(outcome.runs, drawn, strict=True) if one[3] == "desk"]
    assert all(sum(run.gpus for run in desk if run.start <= moment < run.end) <= 8 for moment in by_hand)

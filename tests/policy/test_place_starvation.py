"""Nobody waits for ever, whatever keeps coming in."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_labs import GIB, NOW, after, lab, node, place, waiting

from carrel.core.domain.placement import Holding, Snapshot, Waiting
from carrel.core.domain.qos import QoS
from support.examples import examples

STEP = 100.0
SERVICES = {
    "batch": QoS(name="batch"),
    "capped": QoS(name="capped", max_gpus_per_user=4, max_jobs_per_user=8),
    "urgent": QoS(name="urgent", priority=5),
}


def start_of(victim: Waiting, stream: list[list[Waiting]], nodes: int, age_weight: float) -> float | None:
    """Run the lab in steps, new jobs coming in at each, until `victim` starts; every job uses its whole walltime."""
    queue: list[Waiting] = [victim]
    holds: list[Holding] = []
    machines = tuple(node(f"n{number}", *["h200"] * 4, cpus=16, memory=64 * GIB) for number in range(nodes))
    for step, arrivals in enumerate(stream):
        now = NOW + step * STEP
        queue += arrivals
        snapshot: Snapshot = lab(machines, queue, [h for h in holds if h.ends_by > now], qos=SERVICES, age_weight=age_weight)
        placement = place(snapshot, now)
        holds = after(snapshot, placement, now)
        started = {start.job_id for start in placement.starts}
        if victim.id in started:
            return now
        queue = [job for job in queue if job.id not in started]
    return None


@settings(max_examples=examples(25), deadline=None)
@given(
    gpus=st.integers(1, 4),
    qos=st.sampled_from(["batch", "capped"]),
    owners=st.sampled_from([["bob"], ["ada"], ["ada", "bob"]]),
    others=st.sampled_from(["batch", "capped", "urgent"]),
    points=st.integers(0, 5),
    time=st.sampled_from([150, 300, 1000]),
    nodes=st.integers(1, 2),
    rate=st.integers(2, 4),
)
def test_a_stream_of_newer_smaller_more_urgent_jobs_starves_nobody(
    gpus: int, qos: str, owners: list[str], others: str, points: int, time: int, nodes: int, rate: int
) -> None:
    victim = waiting(1, gpus, owner="ada", qos=qos, time=1000)
    age_weight, steps = 60.0, 120
    stream = [
        [
            replace(
                waiting(step * rate + number + 2, 1, owner=owners[number % len(owners)], qos=others, time=time, priority=points),
                submitted_at=NOW + step * STEP,
            )
            for number in range(rate)
        ]
        for step in range(steps)
    ]
    # Whoever can go ahead came within the time that their priority is worth; then all of them have to end.
    overtaken_for = (points + SERVICES[others].priority) * age_weight
    ahead = rate * (overtaken_for / STEP + 1)
    rounds = ahead / nodes / 4 + 1
    bound = overtaken_for + (rounds + 2) * max(time, 1000)
    start = start_of(victim, stream, nodes, age_weight)
    assert start - NOW <= bound


def test_without_newer_urgent_jobs_a_whole_node_job_waits_for_one_walltime_only() -> None:
    victim = waiting(1, 4, time=1000)
    small = [[replace(waiting(step + 2, 1, owner="bob", time=500), submitted_at=NOW + step * STEP)] for step in range(40)]
    busy = [replace(waiting(1000 + number, 1, owner="bob", time=500), submitted_at=NOW - 10) for number in range(4)]
    small[0] += busy
    assert start_of(victim, small, 1, 60.0) == NOW + 500

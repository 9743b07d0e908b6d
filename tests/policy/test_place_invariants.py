"""What holds for every placement, whatever the lab looks like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import (
    NOW,
    after,
    as_holding,
    first_start,
    free_at,
    free_for,
    has_room,
    nodes_with_room,
    place,
    rank,
    snapshots,
    suits,
    within_limits,
)

from carrel.core.domain.job import REASONS
from carrel.core.domain.node import NodePart
from carrel.core.domain.placement import Placement, Snapshot
from support.examples import examples

FAST = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FAST
@given(snapshots())
def test_every_job_starts_or_is_held_once_with_a_reason(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    decided = Counter([start.job_id for start in placement.starts] + [hold.job_id for hold in placement.pending])
    assert decided == Counter(job.id for job in snapshot.waiting)
    jobs = {job.id: job for job in snapshot.waiting}
    ranks = [rank(jobs[hold.job_id], snapshot) for hold in placement.pending]
    assert ranks == sorted(ranks)
    assert [hold.position for hold in placement.pending] == list(range(1, len(placement.pending) + 1))
    for hold in placement.pending:
        assert hold.reason.code in REASONS
        assert hold.reason.message.count("\n") == 0
        assert hold.estimated_start is None or hold.estimated_start >= NOW
        assert (hold.estimated_start is None) == hold.reason.message.endswith("start unknown")
        assert placement.wait_of(hold.job_id) == hold
    assert all(placement.wait_of(start.job_id) is None for start in placement.starts)


@FAST
@given(snapshots())
def test_nothing_is_given_twice_or_beyond_what_a_node_has(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    jobs = {job.id: job for job in snapshot.waiting}
    machines = {node.name: node for node in snapshot.nodes}
    given_away = [uuid for held in snapshot.holding for uuid in held.devices]
    for start in placement.starts:
        wanted = jobs[start.job_id].resources
        shares = [NodePart(node=start.node, devices=start.devices), *start.others]
        assert len({share.node for share in shares}) == wanted.nodes
        for share in shares:
            machine = machines[share.node]
            devices = {device.uuid: device for device in machine.devices}
            assert machine.drained is None
            assert share.node in free_for(jobs[start.job_id], snapshot, snapshot.holding, NOW, NOW)
            assert len(share.devices) == wanted.gpus
            assert all(suits(wanted, devices[uuid].type, devices[uuid].memory) for uuid in share.devices)
            assert not snapshot.withheld.intersection(share.devices)
            given_away += share.devices
    assert len(given_away) == len(set(given_away))
    left = free_at(snapshot, after(snapshot, placement, NOW), NOW, NOW)
    before = free_at(snapshot, snapshot.holding, NOW, NOW)
    touched = {share.node for start in placement.starts for share in (start, *start.others)}
    for name in touched:
        assert left[name].cpus >= 0
        assert left[name].memory >= 0
    untouched = before.keys() - touched
    assert all(left[name] == before[name] for name in untouched)


@FAST
@given(snapshots())
def test_no_limit_is_passed(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    jobs = {job.id: job for job in snapshot.waiting}
    pending = list(snapshot.holding)
    for start in placement.starts:
        job = jobs[start.job_id]
        assert within_limits(job, snapshot, pending)
        assert job.not_before <= NOW
        pending.append(as_holding(start, jobs, NOW))


@FAST
@given(snapshots())
def test_the_first_in_order_starts_if_it_fits(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    started = {start.job_id for start in placement.starts}
    pending = list(snapshot.holding)
    jobs = {job.id: job for job in snapshot.waiting}
    for job in sorted(snapshot.waiting, key=lambda job: rank(job, snapshot)):
        if job.partition not in ("", *snapshot.partitions):
            assert job.id not in started
            continue
        if job.not_before > NOW or not within_limits(job, snapshot, pending):
            assert job.id not in started
            if job.resources.gpus and job.not_before <= NOW:
                break
            continue
        room = has_room(job.resources, free_for(job, snapshot, pending, NOW, NOW))
        assert (job.id in started) == room
        if not room:
            break
        # Behind one that does not start, promises and the strict order within a limit have their say.
        pending.append(next(as_holding(start, jobs, NOW) for start in placement.starts if start.job_id == job.id))


@FAST
@given(snapshots())
def test_a_blocked_job_fits_on_the_reserved_node_at_most(snapshot: Snapshot) -> None:
    """Nodes are not left idle: what a job waits for is free on no other node."""
    placement = place(snapshot, NOW)
    jobs = {job.id: job for job in snapshot.waiting}
    held = after(snapshot, placement, NOW)
    kept = [jobs[first.job_id] for first in placement.pending if first.reason.code == "Resources"]
    for hold in placement.pending:
        wanted = jobs[hold.job_id].resources
        room = nodes_with_room(wanted, free_for(jobs[hold.job_id], snapshot, held, NOW, NOW))
        if hold.reason.code == "ReqNodeNotAvail" or (hold.reason.code == "Resources" and len(kept) == 1):
            assert room < wanted.nodes
        elif hold.reason.code in ("Priority", "Resources"):
            assert room < wanted.nodes + sum(job.resources.nodes for job in kept)
            assert (room >= wanted.nodes) == ("kept for job" in hold.reason.message)


@FAST
@given(snapshots())
def test_backfill_never_delays_the_first_blocked_job(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    blocked = [hold for hold in placement.pending if hold.reason.code == "Resources"]
    jobs = {job.id: job for job in snapshot.waiting}
    parts = [jobs[hold.job_id].partition for hold in blocked]
    assert len(parts) == len(set(parts))
    for hold in blocked[:1]:  # what others are promised depends on the first one's where partitions have nodes in common
        first = jobs[hold.job_id]
        ahead = [start for start in placement.starts if rank(jobs[start.job_id], snapshot) < rank(first, snapshot)]
        without = first_start(first, snapshot, after(snapshot, Placement(starts=tuple(ahead)), NOW), NOW)
        with_backfill = first_start(first, snapshot, after(snapshot, placement, NOW), NOW)
        assert with_backfill == without
        # An overdue job ends "now"; the second opinion has it end a moment later, when what fitted exactly before a reservation
        # does not any more.
        soonest = without
        if any(held.ends_by <= NOW for held in snapshot.holding):
            shorter = replace(first, resources=replace(first.resources, time=first.resources.time - 1))
            found = first_start(shorter, snapshot, after(snapshot, Placement(starts=tuple(ahead)), NOW), NOW)
            soonest = min(without, found if found is not None else without)
        assert hold.estimated_start > soonest - 1e-3
        assert hold.position > 1 or hold.estimated_start < without + 1e-3


@FAST
@given(snapshots())
def test_the_first_in_line_starts_when_it_was_told(snapshot: Snapshot) -> None:
    placement = place(snapshot, NOW)
    hold = next(iter(placement.pending), None)
    if hold is None or hold.reason.code != "Resources" or hold.estimated_start is None:
        return
    then = hold.estimated_start
    remaining = {held.job_id for held in placement.pending}
    later = replace(
        snapshot,
        waiting=[job for job in snapshot.waiting if job.id in remaining],
        holding=[held for held in after(snapshot, placement, NOW) if held.over_by > then],
    )
    assert hold.job_id in {start.job_id for start in place(later, then).starts}


@FAST
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_listed_does_not_matter(snapshot: Snapshot, rng: Random) -> None:
    def shuffled(items: Iterable[Any]) -> list[Any]:
        mixed = list(items)
        rng.shuffle(mixed)
        return mixed

    mixed = replace(
        snapshot,
        nodes=[replace(node, devices=tuple(shuffled(node.devices))) for node in shuffled(snapshot.nodes)],
        waiting=shuffled(snapshot.waiting),
        holding=shuffled(snapshot.holding),
        qos=dict(shuffled(snapshot.qos.items())),
    )
    one, other = place(snapshot, NOW), place(mixed, NOW)
    assert one.starts == other.starts
    assert list(one.pending) == list(other.pending)
    assert one == other


@FAST
@given(snapshots(), st.integers(1, 100_000))
def test_the_order_does_not_depend_on_when_one_looks(snapshot: Snapshot, later: int) -> None:
    nothing_fits = replace(snapshot, nodes=(), holding=())
    assert [hold.job_id for hold in place(nothing_fits, NOW).pending] == [
        hold.job_id for hold in place(nothing_fits, NOW + later).pending
    ]

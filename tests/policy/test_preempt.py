"""Who gives way to whom, and who goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import GIB, NOW, free_for, has_room, holding, lab, node, snapshots, waiting, within_limits

from carrel.core.domain.node import NodePart
from carrel.core.domain.placement import Holding, Preempt, Snapshot, Waiting
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.preempt import PATIENCE, next_exemption, preempt, resumable
from support.examples import examples

QOS = {
    "desk": QoS(name="desk", preempts=frozenset({"batch", "rack"})),
    "batch": QoS(name="batch", preempt_mode=PreemptMode.REQUEUE),
    "rack": QoS(name="rack", preempt_mode=PreemptMode.SUSPEND),
}


def running(job_id: int, on: str, *devices: str, ran: float = 100.0, **more: object) -> Holding:
    flags = {name: more.pop(name) for name in ("preemptible", "suspendable", "leaving", "suspended") if name in more}
    held = holding(job_id, on, *devices, **{"left": 5000.0, **more})  # type: ignore[arg-type]
    return replace(held, started_at=NOW - ran, **flags)  # type: ignore[arg-type]


def victims(jobs: Sequence[Waiting], holds: Sequence[Holding], **more: object) -> list[tuple[int, str]]:
    snapshot = lab([node("n1", *["h200"] * 4), node("n2", *["h200"] * 4)], jobs, holds, **{"qos": QOS, **more})
    return [(one.job_id, one.mode.value) for one in preempt(snapshot, jobs[0], NOW)]


# ---- examples


def test_a_parent_is_stopped_for_the_child_that_it_waits_for_and_one_that_is_idle_for_any_other() -> None:
    same = QoS(name="same")
    parent = running(11, "n1", "n1-0", qos="same", suspendable=True)
    other = running(12, "n1", "n1-1", "n1-2", "n1-3", qos="same", suspendable=True)
    snapshot = lab([node("n1", *["h200"] * 4)], [waiting(1, 1, qos="same")], [parent, other], qos={"same": same})
    child = snapshot.waiting[0]
    assert preempt(snapshot, child, NOW) == ()
    assert preempt(snapshot, child, NOW, parent=11) == (Preempt(job_id=11, mode=PreemptMode.SUSPEND, by=1, qos="same"),)
    # What cannot be stopped is not requeued instead, and what would not be enough is left alone.
    for change in ({"suspendable": False}, {"preemptible": False}, {"leaving": True}):
        kept = lab([node("n1", *["h200"] * 4)], [child], [replace(parent, **change), other], qos={"same": same})  # type: ignore[arg-type]
        assert preempt(kept, child, NOW, parent=11) == ()
    large = replace(child, resources=replace(child.resources, gpus=2))
    assert preempt(replace(snapshot, waiting=(large,)), large, NOW, parent=11) == ()
    all_four = replace(child, resources=replace(child.resources, gpus=4))
    both = preempt(replace(snapshot, waiting=(all_four,)), all_four, NOW, parent=11, idle={12})
    assert [(one.job_id, one.mode) for one in both] == [(11, PreemptMode.SUSPEND), (12, PreemptMode.SUSPEND)]
    assert [one.job_id for one in preempt(snapshot, child, NOW, idle={12})] == [12]


def test_the_least_work_is_lost_and_nobody_gives_way_for_nothing() -> None:
    holds = [
        running(11, "n1", "n1-0", "n1-1", ran=1000),
        running(12, "n1", "n1-2", "n1-3", ran=100),
        running(13, "n2", "n2-0", ran=120),
        running(14, "n2", "n2-1", ran=90),
        running(15, "n2", "n2-2", "n2-3", ran=9000),
    ]
    assert victims([waiting(1, 2, qos="desk")], holds) == [(12, "requeue")]
    assert victims([waiting(1, 1, qos="desk")], holds) == [(14, "requeue")]
    # All of n1 costs 2200 GPU-seconds, all of n2 18210.
    assert victims([waiting(1, 4, qos="desk")], holds) == [(11, "requeue"), (12, "requeue")]
    assert victims([waiting(1, 5, qos="desk")], holds) == []


def test_one_large_job_rather_than_many_small_ones_that_lose_more() -> None:
    holds = [running(11, "n1", "n1-0", ran=50), running(12, "n1", "n1-1", ran=50), running(13, "n1", "n1-2", "n1-3", ran=40)]
    holds.append(running(14, "n2", "n2-0", "n2-1", "n2-2", "n2-3", qos="desk"))
    assert victims([waiting(1, 2, qos="desk")], holds) == [(13, "requeue")]


def test_those_that_can_be_stopped_are_stopped_first() -> None:
    holds = [
        running(11, "n1", "n1-0", "n1-1", "n1-2", "n1-3", ran=0),
        running(12, "n2", "n2-0", "n2-1", "n2-2", "n2-3", ran=9000, qos="rack", suspendable=True),
    ]
    assert victims([waiting(1, 2, qos="desk")], holds) == [(12, "suspend")]
    assert victims([waiting(1, 2, qos="desk")], [holds[0], replace(holds[1], suspendable=False)]) == [(11, "requeue")]


def test_who_is_stopped_keeps_its_memory_so_it_is_requeued_where_memory_is_short() -> None:
    holds = [running(10 + number, f"n{number}", qos="rack", suspendable=True, memory=60 * GIB) for number in (1, 2)]
    assert victims([waiting(1, 0, qos="desk", memory=8 * GIB)], holds) == [(11, "requeue")]
    # Processors come free either way.
    holds = [replace(held, resources=replace(held.resources, cpus=16)) for held in holds]
    assert victims([waiting(1, 0, qos="desk", memory=2 * GIB)], holds) == [(11, "suspend")]


def test_nobody_gives_way_who_must_not() -> None:
    devices = ("n1-0", "n1-1", "n1-2", "n1-3")
    others = running(19, "n2", "n2-0", "n2-1", "n2-2", "n2-3", qos="desk")
    job, held = waiting(1, 1, qos="desk"), running(11, "n1", *devices)
    assert victims([job], [held, others]) == [(11, "requeue")]
    assert victims([waiting(1, 1, qos="batch")], [held, others]) == []
    assert victims([waiting(1, 1, qos="gone")], [held, others]) == []
    assert victims([job], [replace(held, preemptible=False), others]) == []
    assert victims([job], [replace(held, leaving=True), others]) == []
    assert victims([job], [replace(held, ends_by=NOW + PATIENCE), others]) == []
    # Who should have been over by now need not be.
    assert victims([job], [replace(held, due=NOW - 5), others]) == [(11, "requeue")]
    young = {**QOS, "batch": replace(QOS["batch"], preempt_exempt_time=101)}
    assert victims([job], [held, others], qos=young) == []
    assert victims([job], [replace(held, started_at=None), others], qos=young) == []
    assert victims([job], [held, others], qos={**QOS, "batch": QoS(name="batch")}) == []
    assert victims([replace(job, not_before=NOW + 1)], [held, others]) == []
    full = {**QOS, "desk": replace(QOS["desk"], max_gpus=4)}
    assert victims([job], [held, others], qos=full) == []


def test_those_may_be_preempted_whose_time_has_just_come() -> None:
    others = running(19, "n2", "n2-0", "n2-1", "n2-2", "n2-3", qos="desk")
    job, held = waiting(1, 1, qos="desk"), running(11, "n1", "n1-0", "n1-1", "n1-2", "n1-3")
    old = {**QOS, "batch": replace(QOS["batch"], preempt_exempt_time=100)}
    assert victims([job], [held, others], qos=old) == [(11, "requeue")]
    assert victims([replace(job, not_before=NOW)], [held, others]) == [(11, "requeue")]
    # It has no time to be exempt for, so nobody has to know when it began.
    assert victims([job], [replace(held, started_at=None), others]) == [(11, "requeue")]
    # What was stopped has nothing to give.
    assert victims([job], [replace(held, suspended=True), others]) == []


def test_nobody_is_preempted_where_there_is_just_enough_room() -> None:
    held = running(11, "n1", "n1-0", "n1-1", "n1-2", cpus=15, memory=63 * GIB)
    others = running(19, "n2", "n2-0", "n2-1", "n2-2", "n2-3", qos="desk")
    assert victims([waiting(1, 1, qos="desk")], [held, others]) == []
    assert victims([waiting(1, 1, qos="desk", cpus=2)], [held, others]) == [(11, "requeue")]
    # What is on its way out leaves its processors and its memory too.
    leaving = replace(held, leaving=True)
    assert victims([waiting(1, 1, qos="desk", cpus=16, memory=64 * GIB)], [leaving, others]) == []


def test_on_several_nodes_the_dear_ones_are_left_out_first() -> None:
    machines = [node(f"n{number}", "h200", "h200") for number in (1, 2, 3)]
    holds = [
        running(10 + number, f"n{number}", f"n{number}-0", f"n{number}-1", ran=ran) for number, ran in ((1, 9), (2, 3), (3, 6))
    ]
    snapshot = lab(machines, [waiting(1, 2, qos="desk", nodes=2)], holds, qos=QOS)
    assert [one.job_id for one in preempt(snapshot, snapshot.waiting[0], NOW)] == [12, 13]


def test_of_equals_the_one_whose_class_is_less_urgent_is_preempted() -> None:
    qos = {**QOS, "rack": QoS(name="rack", preempt_mode=PreemptMode.REQUEUE, priority=10)}
    holds = [
        running(11, "n1", *(f"n1-{gpu}" for gpu in range(4)), qos="rack"),
        running(12, "n2", *(f"n2-{gpu}" for gpu in range(4))),
    ]
    assert victims([waiting(1, 1, qos="desk")], holds, qos=qos) == [(12, "requeue")]


def test_what_ends_soon_is_waited_for_and_nobody_else_is_preempted() -> None:
    ends = running(11, "n1", *(f"n1-{gpu}" for gpu in range(4)), left=PATIENCE)
    other = running(12, "n2", *(f"n2-{gpu}" for gpu in range(4)))
    assert victims([waiting(1, 1, qos="desk")], [ends, other]) == []
    assert victims([waiting(1, 1, qos="desk")], [replace(ends, ends_by=NOW + PATIENCE + 1), other]) != []


def test_nobody_is_preempted_on_a_node_where_a_job_on_several_makes_the_room_anyway() -> None:
    gang = replace(running(11, "n1", "n1-0", ran=500), others=(NodePart(node="n2", devices=("n2-0", "n2-1", "n2-2", "n2-3")),))
    cheap = running(12, "n1", "n1-1", "n1-2", "n1-3", ran=1)
    assert victims([waiting(1, 1, qos="desk", nodes=2)], [gang, cheap]) == [(11, "requeue")]


def test_a_reservation_is_kept_from_its_begin_to_its_end_and_lets_its_own_in() -> None:
    holds = [running(11, "n1", "n1-0", "n1-1", "n1-2", "n1-3")]
    holds.append(running(19, "n2", "n2-0", "n2-1", "n2-2", "n2-3", qos="desk"))
    job = waiting(1, 1, qos="desk", time=600, account="physics")

    def kept(begin: float, end: float, **who: object) -> bool:
        course = Reservation(name="course", begin=begin, end=end, nodes=("n1",), **who)  # type: ignore[arg-type]
        return victims([job], holds, reservations=(course,)) == []

    assert kept(NOW + 599, NOW + 900)
    assert not kept(NOW + 600, NOW + 900)
    assert kept(NOW - 60, NOW + 1)
    assert not kept(NOW - 60, NOW)
    assert not kept(NOW, NOW + 60, users=frozenset({"ada"}))
    assert not kept(NOW, NOW + 60, accounts=frozenset({"physics"}))
    assert kept(NOW, NOW + 60, users=frozenset({"bob"}))


def test_the_next_exempt_time_that_ends_is_that_of_a_job_that_may_be_preempted_then() -> None:
    qos = {**QOS, "batch": replace(QOS["batch"], preempt_exempt_time=300)}
    holds = [
        running(11, "n1", "n1-0", ran=100),
        running(12, "n1", "n1-1", ran=250),
        running(13, "n1", "n1-2", ran=300),
        replace(running(14, "n1", "n1-3"), started_at=None),
        running(15, "n2", "n2-0", ran=5, qos="desk"),
    ]
    machines = [node("n1", *["h200"] * 4), node("n2", "h200")]
    snapshot = lab(machines, [], holds, qos=qos)
    assert next_exemption(snapshot, waiting(1, 1, qos="desk"), NOW) == NOW + 50
    assert next_exemption(snapshot, waiting(1, 1, qos="batch"), NOW) is None
    assert next_exemption(snapshot, waiting(1, 1, qos="gone"), NOW) is None
    assert next_exemption(lab(machines, [], holds[2:], qos=qos), waiting(1, 1, qos="desk"), NOW) is None


def test_what_is_on_its_way_out_is_waited_for() -> None:
    holds = [
        running(11, "n1", "n1-0", "n1-1", leaving=True, left=60),
        running(12, "n1", "n1-2", "n1-3"),
        running(13, "n2", "n2-0", "n2-1", "n2-2", "n2-3", ran=10),
    ]
    assert victims([waiting(1, 2, qos="desk")], holds) == []
    assert victims([waiting(1, 3, qos="desk")], holds) == [(13, "requeue")]
    assert victims([waiting(1, 3, qos="desk")], [holds[0], holds[1], replace(holds[2], preemptible=False)]) == [(12, "requeue")]


def test_a_job_on_several_nodes_gives_way_as_a_whole_and_room_for_one_is_made_on_several() -> None:
    gang = replace(running(11, "n1", "n1-0", "n1-1", "n1-2", "n1-3", ran=10), others=(NodePart(node="n2", devices=("n2-0",)),))
    small = running(12, "n2", "n2-1", "n2-2", "n2-3", ran=500)
    assert victims([waiting(1, 2, qos="desk", nodes=2)], [gang, small]) == [(11, "requeue"), (12, "requeue")]
    assert victims([waiting(1, 1, qos="desk", nodes=2)], [gang, small]) == [(11, "requeue")]


def test_what_was_stopped_goes_on_when_its_place_is_free_and_nobody_wants_it() -> None:
    had = replace(running(11, "n1", "n1-0", qos="rack"), preemptible=True)
    keeps = replace(had, devices=(), resources=replace(had.resources, cpus=0, gpus=0), suspended=True)
    machine = [node("n1", "h200", "h200", cpus=2)]

    def goes_on(*holds: Holding, jobs: Sequence[Waiting] = (), **more: object) -> bool:
        return resumable(lab(more.pop("nodes", machine), jobs, [keeps, *holds], **{"qos": QOS, **more}), [had], NOW) == (11,)

    assert goes_on()
    assert goes_on(running(12, "n1", "n1-1", qos="desk"))
    assert not goes_on(running(12, "n1", "n1-0", qos="desk"))
    assert not goes_on(running(12, "n1", qos="desk", cpus=2))
    assert not goes_on(withheld=frozenset({"n1-0"}))
    assert goes_on(jobs=[waiting(1, 1, qos="batch")])
    assert not goes_on(jobs=[waiting(1, 1, qos="desk")])
    assert goes_on(jobs=[waiting(1, 3, qos="desk")])
    assert goes_on(jobs=[replace(waiting(1, 1, qos="desk"), not_before=NOW + 9)])
    assert goes_on(jobs=[waiting(1, 1, qos="desk")], qos={**QOS, "desk": replace(QOS["desk"], max_gpus=0)})
    assert goes_on(nodes=[replace(machine[0], drained="for repair")])
    assert not goes_on(jobs=[replace(waiting(1, 1, qos="desk"), not_before=NOW)])
    limited = {**QOS, "rack": replace(QOS["rack"], max_gpus=1)}
    assert goes_on(qos=limited)
    assert not goes_on(running(12, "n1", "n1-1", qos="rack"), qos=limited)
    assert goes_on(qos={name: service for name, service in QOS.items() if name != "rack"})
    beside = replace(had, id=13, devices=("n1-1",), resources=replace(had.resources))
    pair = lab(machine, [], [keeps, replace(keeps, id=13)], qos=QOS)
    assert resumable(pair, [had, beside], NOW) == (11, 13)
    assert resumable(replace(pair, qos=limited), [had, beside], NOW) == (11,)
    # One that cannot go on keeps no later one from it.
    taken = lab(machine, [], [keeps, replace(keeps, id=13), running(12, "n1", "n1-0", qos="desk", cpus=0)], qos=QOS)
    assert resumable(taken, [had, beside], NOW) == (13,)
    larger = replace(had, resources=replace(had.resources, gpus=2), devices=("n1-0", "n1-1"))
    assert resumable(replace(pair, qos=limited), [larger, beside], NOW) == (13,)
    twice = [had, replace(had, id=13)]
    both = lab(machine, [], [keeps, replace(keeps, id=13)], qos=QOS)
    assert resumable(both, twice, NOW) == (11,)


# ---- whatever the lab looks like


@st.composite
def labs(draw: st.DrawFn) -> Snapshot:
    snapshot = draw(snapshots())
    modes, limit = st.sampled_from(PreemptMode), st.one_of(st.none(), st.integers(0, 4))
    qos = {
        "short": QoS(name="short", preempts=frozenset({"batch", "free"}), max_gpus=draw(limit)),
        "free": QoS(name="free", preempts=frozenset({"batch"}), preempt_mode=draw(modes), max_gpus_per_user=draw(limit)),
        "batch": QoS(name="batch", preempt_mode=draw(modes), preempt_exempt_time=draw(st.sampled_from([0, 0, 50]))),
    }
    holds = tuple(
        replace(
            held,
            started_at=draw(st.sampled_from([None, NOW - 20, NOW - 60, NOW - 4000])),
            preemptible=draw(st.sampled_from([True, True, True, False])),
            suspendable=draw(st.booleans()),
            leaving=draw(st.sampled_from([False, False, False, True])),
        )
        for held in snapshot.holding
    )
    return replace(snapshot, qos=qos, holding=holds)


def left_after(snapshot: Snapshot, given_way: Sequence[Preempt]) -> list[Holding]:
    """What is held when everything has ended that does so anyway, and when these have given way."""
    modes = {one.job_id: one.mode for one in given_way}
    left = [held for held in snapshot.holding if not (held.leaving or held.ends_by <= NOW + PATIENCE)]
    left = [held for held in left if modes.get(held.id) is not PreemptMode.REQUEUE]
    return [
        replace(held, devices=(), resources=held.resources.kept_while_suspended) if held.id in modes else held for held in left
    ]


def room_after(snapshot: Snapshot, job: Waiting, given_way: Sequence[Preempt]) -> bool:
    return has_room(job.resources, free_for(job, snapshot, left_after(snapshot, given_way), NOW, NOW))


MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(labs())
def test_whoever_gives_way_may_have_to_and_makes_room_and_none_is_too_many(snapshot: Snapshot) -> None:
    holds = {held.id: held for held in snapshot.holding}
    for job in snapshot.waiting:
        given_way = preempt(snapshot, job, NOW)
        for one in given_way:
            held, service = holds[one.job_id], snapshot.qos[holds[one.job_id].qos]
            assert (one.by, one.qos) == (job.id, job.qos)
            assert held.qos in snapshot.qos[job.qos].preempts
            assert held.preemptible
            assert not held.leaving
            assert service.preempt_mode is not PreemptMode.NONE
            assert one.mode is PreemptMode.REQUEUE or (held.suspendable and service.preempt_mode is PreemptMode.SUSPEND)
            ran = 0.0 if held.started_at is None else NOW - held.started_at
            assert ran >= service.preempt_exempt_time
        if given_way:
            assert within_limits(job, snapshot, snapshot.holding)
            assert room_after(snapshot, job, given_way)
            for one in given_way:
                assert not room_after(snapshot, job, [other for other in given_way if other is not one])


@MANY
@given(labs())
def test_room_is_made_whenever_that_is_possible_and_needed(snapshot: Snapshot) -> None:
    for job in snapshot.waiting:
        gives_way = [
            Preempt(job_id=held.id, mode=PreemptMode.REQUEUE, by=job.id, qos=job.qos)
            for held in snapshot.holding
            if held.qos in snapshot.qos[job.qos].preempts
            and held.preemptible
            and snapshot.qos[held.qos].preempt_mode is not PreemptMode.NONE
            and (0.0 if held.started_at is None else NOW - held.started_at) >= snapshot.qos[held.qos].preempt_exempt_time
        ]
        possible = room_after(snapshot, job, gives_way) and within_limits(job, snapshot, snapshot.holding)
        needed = not room_after(snapshot, job, ())
        assert bool(preempt(snapshot, job, NOW)) == (possible and needed and job.not_before <= NOW)


@MANY
@given(labs(), st.integers(0, 2**32))
def test_the_answer_does_not_depend_on_the_order_of_the_picture(snapshot: Snapshot, seed: int) -> None:
    chance = Random(seed)
    mixed = replace(
        snapshot,
        holding=tuple(chance.sample(snapshot.holding, len(snapshot.holding))),
        nodes=tuple(chance.sample(snapshot.nodes, len(snapshot.nodes))),
        waiting=tuple(chance.sample(snapshot.waiting, len(snapshot.waiting))),
    )
    for job in snapshot.waiting:
        assert preempt(mixed, job, NOW) == preempt(snapshot, job, NOW)

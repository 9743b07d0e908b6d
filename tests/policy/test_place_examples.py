"""Small labs in which the right answer is plain, and the sentences that people read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_labs import GIB, NOW, holding, lab, node, place, waiting

from carrel.core.domain.placement import ArrayLimit, Holding, Placement, Snapshot, Wait
from carrel.core.domain.qos import QoS


def starts(placement: Placement) -> dict[int, tuple[str, ...]]:
    return {start.job_id: (start.node, *start.devices) for start in placement.starts}


def reason(snapshot: Snapshot, job_id: int) -> tuple[str, str]:
    found = place(snapshot, NOW).wait_of(job_id).reason
    return found.code, found.message


def wait_of(snapshot: Snapshot, job_id: int) -> Wait:
    hold = place(snapshot, NOW).wait_of(job_id)
    assert hold is not None
    return hold


# ---- order ----------------------------------------------------------------------------------------------------------


def test_priority_counts_in_seconds_of_waiting() -> None:
    one = node("n1", "h200")
    older, urgent = waiting(1, ago=601), waiting(2, ago=0, priority=1)
    assert list(starts(place(lab([one], [older, urgent]), NOW))) == [1]
    assert list(starts(place(lab([one], [waiting(1, ago=599), urgent]), NOW))) == [2]
    assert list(starts(place(lab([one], [older, urgent], age_weight=700.0), NOW))) == [2]


def test_the_priority_of_the_qos_is_added_and_ties_go_to_the_smaller_id() -> None:
    one, qos = node("n1", "h200"), {"batch": QoS(name="batch"), "fast": QoS(name="fast", priority=2)}
    assert list(starts(place(lab([one], [waiting(1, priority=1), waiting(2, qos="fast")], qos=qos), NOW))) == [2]
    assert list(starts(place(lab([one], [waiting(2, priority=2), waiting(1, qos="fast")], qos=qos), NOW))) == [1]


# ---- fit ------------------------------------------------------------------------------------------------------------


def test_small_jobs_fill_broken_nodes_and_leave_whole_ones() -> None:
    nodes = [node("n1", *["h200"] * 4), node("n2", *["h200"] * 4)]
    placement = place(lab(nodes, [waiting(1, 1), waiting(2, 4)], [holding(9, "n2", "n2-0", "n2-1")]), NOW)
    assert starts(placement) == {1: ("n2", "n2-2"), 2: ("n1", "n1-0", "n1-1", "n1-2", "n1-3")}


def test_jobs_without_gpus_stay_off_gpu_nodes_while_they_can() -> None:
    nodes = [node("a-gpu", "h200", cpus=4), node("b-cpu", cpus=4), node("c-gpu", "h200", cpus=4)]
    jobs = [waiting(number, 0, cpus=3) for number in (1, 2, 3)]
    placement = place(lab(nodes, jobs, [holding(9, "c-gpu", "c-gpu-0")]), NOW)
    # First the node without GPUs, then the one whose GPU is busy, and only then the one whose GPU is free.
    assert [start.node for start in placement.starts] == ["b-cpu", "c-gpu", "a-gpu"]


def test_a_job_that_takes_any_type_gets_devices_of_one_type_if_it_can() -> None:
    mixed = node("n1", "a100", "h200", "h200", "a100", "a100")
    assert starts(place(lab([mixed], [waiting(1, 2)]), NOW)) == {1: ("n1", "n1-1", "n1-2")}
    assert starts(place(lab([mixed], [waiting(1, 3)]), NOW)) == {1: ("n1", "n1-0", "n1-3", "n1-4")}
    assert starts(place(lab([mixed], [waiting(1, 4)]), NOW)) == {1: ("n1", "n1-0", "n1-3", "n1-4", "n1-1")}


def test_type_withheld_and_drained_are_respected() -> None:
    nodes = [node("n1", "a100", "h200", "h200"), node("n2", "h200", drained="disk")]
    jobs = [waiting(1, 1, gpu_type="h200"), waiting(2, 1, gpu_type="h200")]
    placement = place(lab(nodes, jobs, withheld=frozenset({"n1-1"})), NOW)
    assert starts(placement) == {1: ("n1", "n1-2")}


def test_a_job_that_lacks_memory_does_not_keep_a_smaller_one_off_another_node() -> None:
    nodes = [node("n1", memory=64 * GIB), node("n2", memory=20 * GIB)]
    large, small = waiting(1, 0, memory=60 * GIB, ago=9), waiting(2, 0, memory=20 * GIB)
    placement = place(lab(nodes, [large, small], [holding(9, "n1", memory=60 * GIB)]), NOW)
    assert starts(placement) == {2: ("n2",)}


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_limit_counts_what_is_held_and_what_starts_and_blocks_nobody_else() -> None:
    qos = {"batch": QoS(name="batch", max_jobs_per_user=2), "free": QoS(name="free")}
    jobs = [waiting(1), waiting(2), waiting(3, owner="cyd"), waiting(4, qos="free")]
    snapshot = lab([node("n1", *["h200"] * 4)], jobs, [holding(9, "n1", "n1-0", owner="ada", left=240)], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [1, 3, 4]
    assert reason(snapshot, 2) == (
        "QOSMaxJobsPerUserLimit",
        'its owner holds 2 of at most 2 jobs in QoS "batch"; in 4 min at the latest',
    )


def test_no_more_elements_of_an_array_run_than_may_and_others_go_past_them() -> None:
    array, other = ArrayLimit(1, 2), ArrayLimit(7, 1)
    jobs = [waiting(number, array=array, ago=10 - number) for number in (1, 2, 3, 4)]
    jobs += [waiting(7, array=other), waiting(8, array=other), waiting(9)]
    held = replace(holding(30, "n1", "n1-0", owner="ada", left=240), array=array)
    snapshot = lab([node("n1", *["h200"] * 8)], jobs, [held])
    assert list(starts(place(snapshot, NOW))) == [1, 7, 9]
    assert reason(snapshot, 3) == ("JobArrayTaskLimit", "2 of at most 2 elements of array 1 run; in 1 h at the latest")
    assert reason(snapshot, 8)[1].startswith("1 of at most 1 element of array 7 run; in ")


def test_an_element_that_its_array_keeps_out_stands_before_nobody_of_its_owner() -> None:
    qos = {"batch": QoS(name="batch", max_gpus_per_user=4)}
    jobs = [waiting(1, 4, array=ArrayLimit(1, 1), ago=9), waiting(2, 3)]
    held = replace(holding(30, "n1", "n1-0", owner="ada"), array=ArrayLimit(1, 1))
    snapshot = lab([node("n1", *["h200"] * 8)], jobs, [held], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [2]


def test_within_a_gpu_limit_small_jobs_pass_a_large_one_of_the_same_user_only_if_they_are_over_in_time() -> None:
    """The limit has room for job 1 in two hours."""
    qos = {"batch": QoS(name="batch", max_gpus_per_user=4)}
    jobs = [waiting(1, 4, ago=9), waiting(2, 1, time=7201), waiting(3, 0), waiting(4, 1, owner="cyd"), waiting(5, 1, time=7200)]
    held = holding(9, "n1", "n1-0", "n1-1", "n1-2", owner="ada", left=7200)
    snapshot = lab([node("n1", *["h200"] * 8)], jobs, [held], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [3, 4, 5]
    assert reason(snapshot, 1) == (
        "QOSMaxGRESPerUser",
        'needs 4 GPUs; its owner holds 4 of at most 4 GPUs in QoS "batch"; in 2 h at the latest',
    )
    assert reason(snapshot, 2) == (
        "QOSMaxGRESPerUser",
        'needs 1 GPU; its owner holds 4 of at most 4 GPUs in QoS "batch", and their job 1 is ahead of it; in 3 h at the latest',
    )


def test_an_account_has_limits_of_its_own() -> None:
    qos = {"batch": QoS(name="batch", max_gpus_per_account=3, max_jobs_per_account=3, max_gpus_per_user=3)}
    jobs = [
        waiting(1, 2, owner="ada", ago=9, account="physics"),
        waiting(2, 3, owner="bob", ago=8, account="physics"),
        waiting(3, 1, owner="cyd", ago=7, account="physics", time=3601),
        waiting(4, 2, owner="bob", ago=6, account="biology"),
        waiting(5, 0, owner="dan", ago=5, account="physics"),
        waiting(6, 0, owner="eve", ago=4, account="physics"),
        waiting(7, 0, owner="eve", ago=3, account="physics"),
    ]
    snapshot = lab([node("n1", *["h200"] * 8)], jobs, [], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [1, 4, 5, 6]
    assert reason(snapshot, 2) == (
        "MaxGRESPerAccount",
        'needs 3 GPUs; account "physics" holds 2 of at most 3 GPUs in QoS "batch"; in 1 h at the latest',
    )
    assert reason(snapshot, 3) == (
        "MaxGRESPerAccount",
        'needs 1 GPU; account "physics" holds 2 of at most 3 GPUs in QoS "batch", and its job 2 is ahead of it; '
        "in 2 h at the latest",
    )
    assert reason(snapshot, 7)[0] == "MaxJobsPerAccount"
    assert reason(snapshot, 7)[1].startswith('account "physics" holds 3 of at most 3 jobs in QoS "batch"; in ')


def test_everybody_together_has_a_limit() -> None:
    qos = {"batch": QoS(name="batch", max_gpus=4, max_gpus_per_user=4), "free": QoS(name="free")}
    jobs = [
        waiting(1, 3, owner="ada", ago=9, account="physics"),
        waiting(2, 2, owner="ada", ago=8, account="biology"),
        waiting(3, 4, owner="bob", ago=7, account="physics"),
        waiting(4, 1, owner="cyd", ago=6, account="biology", time=3601),
        waiting(5, 0, owner="cyd", ago=5),
        waiting(6, 4, owner="cyd", ago=4, qos="free"),
    ]
    snapshot = lab([node("n1", *["h200"] * 8)], jobs, [], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [1, 5, 6]
    # Job 2 is held back by the limit of its owner, so it stands in nobody's way.
    assert reason(snapshot, 3) == (
        "QOSGrpGRES",
        'needs 4 GPUs; everybody together holds 3 of at most 4 GPUs in QoS "batch"; in 2 h at the latest',
    )
    assert reason(snapshot, 4)[1].startswith(
        'needs 1 GPU; everybody together holds 3 of at most 4 GPUs in QoS "batch", and job 3 is ahead of it; in '
    )


def test_who_takes_from_others_stands_before_them_in_line() -> None:
    qos = {
        "urgent": QoS(name="urgent", preempts=frozenset({"desk"})),
        "desk": QoS(name="desk", preempts=frozenset({"batch"})),
        "batch": QoS(name="batch", priority=1000),
    }
    jobs = [waiting(1, ago=1e6), waiting(2, ago=5, qos="desk"), waiting(3, ago=4, qos="desk"), waiting(4, ago=0, qos="urgent")]
    assert list(starts(place(lab([node("n1", *["h200"] * 4)], jobs, qos=qos), NOW))) == [4, 2, 3, 1]


def test_who_gives_way_is_told_with_how_long_it_takes() -> None:
    qos = {"desk": QoS(name="desk", preempts=frozenset({"batch"})), "batch": QoS(name="batch")}
    leaves = [replace(holding(9, "n1", "n1-0", left=40), leaving=True), holding(8, "n1", "n1-1", left=4000)]
    snapshot = lab([node("n1", "h200", "h200")], [waiting(1, 1, qos="desk"), waiting(2, 1)], leaves, qos=qos)
    assert reason(snapshot, 1) == (
        "Resources",
        'needs 1 GPU on one node; none is free; 1 job of QoS "batch" is giving way, at most 40 s; in 40 s at the latest',
    )
    assert "giving way" not in reason(snapshot, 2)[1]


def test_a_job_larger_than_its_limit_waits_for_ever_but_alone() -> None:
    qos = {"batch": QoS(name="batch", max_gpus_per_user=1)}
    snapshot = lab([node("n1", "h200", "h200")], [waiting(1, 2, ago=9), waiting(2, 1)], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [2]
    assert reason(snapshot, 1) == ("QOSMaxGRESPerUser", 'needs 2 GPUs; QoS "batch" allows 1 per user; start unknown')


def test_a_promise_holds_within_the_limit_too() -> None:
    """Job 1 will need ada's only place in a minute: until then it is for who is over by then."""
    qos = {"batch": QoS(name="batch", max_jobs_per_user=1)}
    nodes = [node("n1", "h200", "h200"), node("n2", "a100", "a100")]
    held = holding(9, "n1", "n1-0", left=60)
    first = waiting(1, 2, gpu_type="h200", ago=9)
    long, short = waiting(2, 1, gpu_type="a100", time=61), waiting(3, 1, gpu_type="a100", time=60)
    snapshot = lab(nodes, [first, long, short], [held], qos=qos)
    assert list(starts(place(snapshot, NOW))) == [3]
    assert wait_of(snapshot, 1).estimated_start == NOW + 60
    assert wait_of(snapshot, 2).reason.message.startswith(
        'its owner holds 1 of at most 1 job in QoS "batch", and their job 1 is ahead of it; '
    )


# ---- backfill -------------------------------------------------------------------------------------------------------


def test_a_short_job_goes_ahead_and_a_long_one_does_not() -> None:
    one = node("n1", *["h200"] * 4)
    held = holding(9, "n1", "n1-0", "n1-1", left=600)
    first, short, long = waiting(1, 4, ago=9), waiting(2, 1, time=600), waiting(3, 1, time=601)
    snapshot = lab([one], [first, short, long], [held])
    assert starts(place(snapshot, NOW)) == {2: ("n1", "n1-2")}
    assert reason(snapshot, 1) == ("Resources", "needs 4 GPUs on one node; at most 1 is free; in 10 min at the latest")
    assert wait_of(snapshot, 1).position == 1
    assert reason(snapshot, 3) == (
        "Priority",
        "1 job is ahead of it; needs 1 GPU and 1 CPU for 10 min; what is free on n1 is kept for job 1; "
        "in 1 h 10 min at the latest",
    )


def test_a_long_job_goes_ahead_where_enough_is_left_beside_the_first() -> None:
    one = node("n1", *["h200"] * 4)
    held = holding(9, "n1", "n1-0", "n1-1", left=600)
    snapshot = lab([one], [waiting(1, 3, ago=9), waiting(2, 1, time=9000), waiting(3, 1, time=9000)], [held])
    assert list(starts(place(snapshot, NOW))) == [2]


def test_the_reserved_node_takes_others_last() -> None:
    nodes = [node("n1", *["h200"] * 4), node("n2", *["h200"] * 4)]
    held = [holding(8, "n1", "n1-0", left=60), holding(9, "n2", "n2-0", left=600)]
    snapshot = lab(nodes, [waiting(1, 4, ago=9), waiting(2, 1, time=30)], held)
    assert starts(place(snapshot, NOW)) == {2: ("n2", "n2-1")}


def test_overdue_jobs_are_expected_to_end_now() -> None:
    snapshot = lab([node("n1", "h200")], [waiting(1, 1), waiting(2, 1)], [holding(9, "n1", "n1-0", left=-30)])
    assert reason(snapshot, 1) == ("Resources", "needs 1 GPU on one node; none is free; any moment now")
    assert wait_of(snapshot, 1).estimated_start == NOW
    assert wait_of(snapshot, 2).estimated_start == NOW + 3600


# ---- reasons and estimates ------------------------------------------------------------------------------------------


def test_the_sentence_of_the_blueprint() -> None:
    nodes = [node("n1", "h200", "h200"), node("n2", "h200")]
    held = [holding(8, "n1", "n1-0", left=240)]
    snapshot = lab(nodes, [waiting(1, 2, gpu_type="h200")], held)
    assert reason(snapshot, 1) == ("Resources", "needs 2 GPUs (h200) on one node; at most 1 is free; in 4 min at the latest")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"cpus": 12}, "needs 12 CPUs on one node; at most 8 are free; in 10 min at the latest"),
        ({"gpus": 1, "cpus": 12}, "needs 12 CPUs on a node with 1 GPU free; at most 8 are free; in 10 min at the latest"),
        ({"memory": 32 * GIB}, "needs 32G of memory on a node with 1 CPU free; at most 24G is free; in 10 min at the latest"),
        (
            {"gpus": 1, "memory": 32 * GIB, "cpus": 2},
            "needs 32G of memory on a node with 1 GPU and 2 CPUs free; at most 24G is free; in 10 min at the latest",
        ),
        # A session keeps no processors.
        ({"memory": 32 * GIB, "cpus": 0}, "needs 32G of memory on one node; at most 24G is free; in 10 min at the latest"),
    ],
)
def test_the_sentence_names_what_is_short(more: dict[str, int], sentence: str) -> None:
    held = holding(9, "n1", "n1-0", cpus=8, memory=40 * GIB)
    snapshot = lab([node("n1", "h200", "h200")], [waiting(1, **{"gpus": 0, **more})], [held])
    assert reason(snapshot, 1) == ("Resources", sentence)


def test_idle_sessions_that_hold_the_memory_are_named_to_their_owner() -> None:
    held = [holding(number, "n1", owner="ada", memory=14 * GIB, cpus=0) for number in (11, 12, 13, 14)]
    held = [replace(one, name=name) for one, name in zip(held, ("notebook", "thesis", "terminal", "nb4"), strict=True)]
    wants = waiting(1, 0, owner="ada", memory=16 * GIB, cpus=0)
    short = "needs 16G of memory on one node; at most 8G is free"
    snapshot = lab([node("n1")], [wants], held)
    assert reason(snapshot, 1)[1].startswith(f"{short}; in ")
    found = "4 idle sessions of the same owner hold 56G of memory (notebook 11, thesis, terminal 13 and 1 more): end one"
    assert reason(replace(snapshot, idle=frozenset({11, 12, 13, 14})), 1)[1].startswith(f"{short}; {found}; in ")
    assert (
        "1 idle session of the same owner holds 14G of memory (thesis): end one"
        in reason(replace(snapshot, idle=frozenset({12})), 1)[1]
    )
    others = replace(snapshot, waiting=[replace(wants, owner="bob")], idle=frozenset({11, 12}))
    said = reason(others, 1)[1]
    assert "2 idle sessions of others hold 28G of memory; in " in said
    assert "thesis" not in said
    full = replace(snapshot, waiting=[replace(wants, resources=replace(wants.resources, cpus=99))], idle=frozenset({12}))
    assert "idle" not in reason(full, 1)[1], "something else is missing"


def test_drained_nodes_make_a_job_wait_without_an_estimate_and_block_nobody() -> None:
    nodes = [node("n1", "h200"), *[node(f"big{number}", *["h200"] * 8, drained="for repair") for number in range(5)]]
    snapshot = lab(nodes, [waiting(1, 8, ago=9), waiting(2, 1)])
    assert list(starts(place(snapshot, NOW))) == [2]
    hold = wait_of(snapshot, 1)
    assert hold.estimated_start is None
    assert (hold.reason.code, hold.reason.message) == (
        "ReqNodeNotAvail",
        "needs 8 GPUs on one node; drained: big0 (for repair), big1 (for repair), big2 (for repair) and 2 more; start unknown",
    )


def test_withheld_devices_and_missing_nodes_are_named() -> None:
    snapshot = lab([node("n1", "h200", "h200")], [waiting(1, 2), waiting(2, 3)], withheld=frozenset({"n1-1"}))
    assert reason(snapshot, 1) == (
        "ReqNodeNotAvail",
        "needs 2 GPUs on one node; 1 of 2 on n1 are withheld (lent to cells, or in use elsewhere); start unknown",
    )
    assert reason(snapshot, 2) == (
        "ReqNodeNotAvail",
        "needs 3 GPUs on one node; no node of the lab has so much; start unknown",
    )


def test_a_pause_and_a_lost_qos_hold_a_job_back_alone() -> None:
    jobs = [waiting(1, ago=9, not_before=NOW + 30), waiting(2, ago=8, qos="gone"), waiting(3)]
    snapshot = lab([node("n1", "h200")], jobs)
    assert list(starts(place(snapshot, NOW))) == [3]
    assert reason(snapshot, 1) == ("BeginTime", "pauses before it is tried again; in 1 h at the latest")
    assert reason(snapshot, 2) == ("InvalidQOS", 'QoS "gone" does not exist in this lab; start unknown')
    assert [hold.position for hold in place(snapshot, NOW).pending] == [1, 2]


def test_estimates_follow_the_queue() -> None:
    jobs = [waiting(number, 1, time=600, ago=100 - number) for number in range(1, 6)]
    snapshot = lab([node("n1", "h200", "h200")], jobs, [holding(9, "n1", "n1-0", left=300)])
    placement = place(snapshot, NOW)
    assert list(starts(placement)) == [1]
    assert [hold.estimated_start for hold in placement.pending] == [NOW + 300, NOW + 600, NOW + 900, NOW + 1200]
    assert placement.pending[-1] == placement.pending[3] == placement.wait_of(5)
    assert placement.pending[1:3] == (placement.pending[1], placement.pending[2])
    with pytest.raises(IndexError):
        placement.pending[4]


def test_a_user_at_their_limit_does_not_push_back_the_estimates_of_others() -> None:
    qos = {"batch": QoS(name="batch", max_jobs_per_user=1)}
    mine = [waiting(number, 1, owner="bob", ago=500 - number) for number in range(1, 101)]
    held = [holding(900, "n1", "n1-0", left=60, owner="bob"), holding(901, "n1", "n1-1", left=600, owner="cyd")]
    snapshot = lab([node("n1", "h200", "h200")], [*mine, waiting(200, 1)], held, qos=qos)
    assert wait_of(snapshot, 100).estimated_start == NOW + 60 + 99 * 3600
    assert wait_of(snapshot, 200).estimated_start == NOW + 600


def test_nothing_waits_in_an_empty_lab() -> None:
    assert place(lab([], []), NOW) == Placement()
    assert reason(lab([], [waiting(1, 0)]), 1) == (
        "ReqNodeNotAvail",
        "needs 1 CPU, 1G on one node; no node of the lab has so much; start unknown",
    )


# ---- memory of GPUs -------------------------------------------------------------------------------------------------


def test_only_gpus_with_enough_memory_count() -> None:
    nodes = [node("n1", "t4", "t4", "t4", "a100"), node("n2", "h200", "h200")]
    waits = [waiting(1, 1, ago=9, gpu_memory=17 * GIB), waiting(2, 2, ago=8, gpu_memory=40 * GIB), waiting(3, 3, ago=7)]
    snapshot = lab(nodes, waits)
    assert starts(place(snapshot, NOW)) == {1: ("n1", "n1-3"), 2: ("n2", "n2-0", "n2-1"), 3: ("n1", "n1-0", "n1-1", "n1-2")}
    full = lab(nodes, [waiting(4, 2, gpu_memory=40 * GIB)], [holding(9, "n2", "n2-0")])
    assert reason(full, 4) == ("Resources", "needs 2 GPUs with 40G on one node; at most 1 is free; in 10 min at the latest")
    assert full.waiting[0].resources.describe() == "2 GPUs with 40G, 1 CPU, 1G for 1 h"


def test_who_is_promised_large_gpus_does_not_keep_the_small_ones() -> None:
    nodes = [node("n1", "t4", "t4", "h200", "h200")]
    busy = [holding(9, "n1", "n1-2", left=600)]
    waits = [waiting(1, 2, ago=9, gpu_memory=40 * GIB), waiting(2, 2, ago=8), waiting(3, 1, ago=7)]
    assert starts(place(lab(nodes, waits, busy), NOW)) == {2: ("n1", "n1-0", "n1-1")}


# ---- limits of accounts: who stands before whom -----------------------------------------------------------------------------

ACCOUNT = {"batch": QoS(name="batch", max_gpus_per_user=3, max_gpus_per_account=3)}


def of_physics(number: int, owner: str, *devices: str) -> Holding:
    return replace(holding(number, "n1", *devices, owner=owner), account="physics")


@pytest.mark.parametrize(
    ("held", "started"),
    [
        ([of_physics(8, "ada", "n1-0"), of_physics(9, "cyd", "n1-1")], [2]),
        ([of_physics(9, "cyd", "n1-0", "n1-1")], []),
    ],
    ids=["her own limit keeps her out", "her account's limit keeps her out"],
)
def test_small_jobs_of_an_account_wait_for_a_large_one_that_only_the_account_keeps_out(
    held: list[Holding], started: list[int]
) -> None:
    waits = [waiting(1, 3, owner="ada", ago=9, account="physics"), waiting(2, 1, owner="bob", ago=8, account="physics")]
    snapshot = lab([node("n1", *["h200"] * 8)], waits, held, qos=ACCOUNT)
    assert [start.job_id for start in place(snapshot, NOW).starts] == started


def test_a_job_that_asks_for_all_that_its_account_may_have_goes_before_smaller_ones() -> None:
    qos = {"batch": QoS(name="batch", max_gpus_per_account=3)}
    waits = [waiting(1, 3, owner="ada", ago=9, account="physics"), waiting(2, 1, owner="bob", ago=8, account="physics")]
    snapshot = lab([node("n1", *["h200"] * 8)], waits, [of_physics(9, "cyd", "n1-0")], qos=qos)
    assert place(snapshot, NOW).starts == ()
    assert reason(snapshot, 2)[1].startswith(
        'needs 1 GPU; account "physics" holds 1 of at most 3 GPUs in QoS "batch", and its job 1'
    )


def test_a_promise_is_made_to_a_job_that_needs_all_the_memory_of_a_node() -> None:
    one = node("n1", memory=16 * GIB)
    waits = [waiting(1, 0, ago=9, memory=16 * GIB), waiting(2, 0, ago=8, time=3600, memory=GIB), waiting(3, 0, ago=7, time=300)]
    snapshot = lab([one], waits, [holding(9, "n1", left=600, memory=10 * GIB)])
    assert [start.job_id for start in place(snapshot, NOW).starts] == [3], "job 2 would still be there when job 1 can start"

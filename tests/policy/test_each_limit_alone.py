"""Each limit of a class of service, and each limit of Slurm's, holds where it is the only one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_labs import ACCOUNTS, Lab, holding, lab, node, waiting

from carrel.core.domain.placement import Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.submit_limits import SubmitScope
from carrel.core.policy.limits import GROUP_GPUS, MAX_ACCOUNT_GPUS, MAX_ACCOUNT_JOBS, MAX_GPUS, MAX_JOBS
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition

OWNERS = ("ada", "ada", "bob", "cyd")


def four(**fields: object) -> list[Waiting]:
    """Two jobs of ada's, then one of bob's, who works for the same account, and one of cyd's; with one GPU each."""
    return [
        waiting(number, ago=9 - number, owner=owner, account=ACCOUNTS[owner], **fields)  # type: ignore[arg-type]
        for number, owner in enumerate(OWNERS, start=1)
    ]


@pytest.mark.parametrize(
    ("limit", "gpus", "waits"),
    [
        ("max_jobs_per_user", 1, {2: MAX_JOBS}),
        ("max_jobs_per_user", 0, {2: MAX_JOBS}),
        ("max_gpus_per_user", 1, {2: MAX_GPUS}),
        ("max_gpus_per_user", 0, {}),
        ("max_jobs_per_account", 1, {2: MAX_ACCOUNT_JOBS, 3: MAX_ACCOUNT_JOBS}),
        ("max_jobs_per_account", 0, {2: MAX_ACCOUNT_JOBS, 3: MAX_ACCOUNT_JOBS}),
        ("max_gpus_per_account", 1, {2: MAX_ACCOUNT_GPUS, 3: MAX_ACCOUNT_GPUS}),
        ("max_gpus_per_account", 0, {}),
        ("max_gpus", 1, dict.fromkeys((2, 3, 4), GROUP_GPUS)),
        ("max_gpus", 0, {}),
    ],
)
def test_a_limit_to_one_keeps_out_whom_it_is_about(limit: str, gpus: int, waits: dict[int, str]) -> None:
    qos = {"batch": QoS(name="batch", **{limit: 1})}  # type: ignore[arg-type]
    found = Lab(lab([node("n1", *["h200"] * 8)], four(gpus=gpus), qos=qos))
    assert {start.job_id for start in found.place()} == {1, 2, 3, 4} - waits.keys()
    assert {wait.job_id: wait.reason.code for wait in found.look().pending} == waits
    found.forget(1)
    assert bool(found.place()) is bool(waits)


@pytest.mark.parametrize(("at_most", "seconds", "starts"), [(2, 600, [3]), (2, 601, []), (3, 600, [3]), (4, 600, [3])])
def test_jobs_that_are_promised_a_start_count_for_the_limit(at_most: int, seconds: int, starts: list[int]) -> None:
    """Two of ada's are promised both GPUs of a node each in ten minutes; the third fits beside them until then."""
    nodes = [node("n1", "h200", "h200"), node("n2", "h200", "h200")]
    holds = [holding(8, "n1", "n1-0"), holding(9, "n2", "n2-0")]
    waits = [waiting(1, 2, ago=9), waiting(2, 2, ago=8), waiting(3, 1, ago=7, time=seconds)]
    qos = {"batch": QoS(name="batch", max_jobs_per_user=at_most)}
    found = Lab(lab(nodes, waits, holds, qos=qos, promises=2))
    assert [start.job_id for start in found.place()] == starts


def test_what_two_classes_of_service_hold_is_counted_apart() -> None:
    """In one, a large job waits for the limit and a small, longer one behind it; in the other there is room."""
    qos = {name: QoS(name=name, max_gpus=3, max_gpus_per_account=3) for name in ("batch", "short")}
    waits = [
        waiting(1, 2, ago=9),
        waiting(2, 3, ago=8),
        waiting(3, 1, ago=7, time=3601),
        waiting(4, 2, ago=6, qos="short"),
        waiting(5, 1, ago=5, qos="short"),
    ]
    found = Lab(lab([node("n1", *["h200"] * 8)], waits, qos=qos))
    assert [start.job_id for start in found.place()] == [1, 4, 5]
    assert {wait.job_id for wait in found.look().pending} == {2, 3}


@pytest.mark.parametrize(
    ("scope", "waits"),
    [
        (SubmitScope(), {1, 2, 3, 4}),
        (SubmitScope(owner="ada"), {1, 2}),
        (SubmitScope(account="physics"), {1, 2, 3}),
        (SubmitScope(qos="batch"), {1, 2, 3, 4}),
        (SubmitScope(qos="short"), set()),
        (SubmitScope(owner="bob", account="physics", qos="batch"), {3}),
        (SubmitScope(owner="cyd", account="physics"), set()),
    ],
)
def test_what_slurm_refuses_keeps_back_whom_it_was_said_about(scope: SubmitScope, waits: set[int]) -> None:
    """Jobs that are handed over elsewhere, and those of the lab's own nodes, are another matter."""
    parts = {"far": slurm_partition("far", SlurmPartition(partition="main"))}
    far = four(partition="far")
    here = [replace(job, id=job.id + 10, partition="") for job in far]
    found = Lab(
        lab(
            [node("n1", *["h200"] * 8)],
            [*far, *here],
            partitions=parts,
            qos={name: QoS(name=name) for name in ("batch", "short")},
        )
    )
    found.placer.refused(scope, "AssocMaxSubmitJobLimit", "Slurm takes no more")
    starts = {start.job_id for start in found.placer.place(found.now)}
    assert starts == {1, 2, 3, 4, 11, 12, 13, 14} - waits

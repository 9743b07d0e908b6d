"""Jobs for which a machine is made from parts: they wait for that one, and nobody else has it."""

from __future__ import annotations

from dataclasses import replace

from policy_labs import NOW, lab, node, place, waiting

from carrel.core.domain.placement import MachineWait, Snapshot
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import FOR_EVER, Reservation
from carrel.core.policy.explain import explain
from carrel.core.policy.placer import Placer

OWN = Reservation(name="machine 7", begin=NOW, end=NOW + FOR_EVER, nodes=("c7",), machine=True, reason="it was made for job 1")
NODES = [node("c7", "a100", "a100"), node("n1", "a100")]


def starts(snapshot: Snapshot) -> list[tuple[int, str]]:
    return [(start.job_id, start.node) for start in place(snapshot, NOW).starts]


def test_a_job_waits_for_its_machine_and_says_when_it_comes() -> None:
    snapshot = lab(NODES, [replace(waiting(1, gpus=1), node=""), waiting(2, gpus=1)])
    placer = Placer.of(snapshot)
    assert [start.job_id for start in placer.place(NOW)] == [2]
    assert [job.id for job in placer.without_machine] == [1]
    wait = explain(placer.look(NOW, machines={1: MachineWait("machine 7 is made for it", NOW + 600)})).wait_of(1)
    assert wait is not None
    assert (wait.reason.code, wait.estimated_start) == ("Resources", NOW + 600)
    assert wait.reason.message == "machine 7 is made for it; in 10 min at the latest"


def test_nobody_else_has_its_machine_and_it_has_no_other() -> None:
    one, other = replace(waiting(1, gpus=1, ago=5), node="c7"), waiting(2, gpus=2, ago=9)
    snapshot = lab(NODES, [one, other, waiting(3, gpus=1)], reservations=[OWN])
    assert starts(snapshot) == [(1, "c7"), (3, "n1")]
    assert starts(lab(NODES[1:], [one], reservations=[OWN])) == []


def test_no_machine_is_made_for_a_job_that_a_limit_keeps_off_it() -> None:
    jobs = [replace(waiting(number, gpus=2, ago=9 - number), node="") for number in (1, 2)]
    placer = Placer.of(lab(NODES, jobs, qos={"batch": QoS(name="batch", max_gpus_per_user=2)}))
    placer.place(NOW)
    assert [job.id for job in placer.without_machine] == [1]
    placer = Placer.of(lab(NODES, jobs))
    placer.place(NOW)
    assert [job.id for job in placer.without_machine] == [1, 2]


def test_what_borrows_for_its_cells_does_not_start_on_a_machine_from_parts() -> None:
    mine = replace(OWN, users=frozenset({"ada"}))
    session = waiting(1, gpus=0, cpus=0)
    assert starts(lab(NODES, [session], reservations=[mine])) == [(1, "n1")]
    assert starts(lab(NODES[:1], [session], reservations=[mine])) == []
    assert starts(lab(NODES[:1], [waiting(2, gpus=1)], reservations=[mine])) == [(2, "c7")]


def test_it_says_how_long_a_machine_is_there_for_a_job_that_would_outlast_it() -> None:
    end = Reservation(name="end of machine 7", begin=NOW + 3600, end=NOW + 3600 + FOR_EVER, nodes=("c7",), reason="it goes then")
    wait = place(lab(NODES[:1], [waiting(1, time=7200)], reservations=[end]), NOW).wait_of(1)
    assert wait is not None
    assert "; c7 is there for 1 h more (it goes then); a job of at most 1 h could start before it" in wait.reason.message

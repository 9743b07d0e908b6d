"""Who stands before whom, and beside whom: as the rules, what people used and what is known of run times change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from scheduled import Scheduled, job, machines, rules, settings

from carrel.core.control.device_offers import DeviceOffers
from carrel.core.control.ports import StartOrder
from carrel.core.control.queue import Queue
from carrel.core.control.ranking import Ranking
from carrel.core.control.rules import RuleBook
from carrel.core.control.usage import UsageBook
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import GpuState, IdleState, Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.rules import LabRules
from carrel.core.domain.submit_limits import SubmitLimit, SubmitScope
from carrel.core.domain.task import TaskSpec
from carrel.core.policy.placer import Placer
from carrel.core.policy.runtime import RunTimes
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.trace import Cluster

RULES = rules(
    qos={"all": QoS(name="all"), "low": QoS(name="low", priority=-10)}, cpu_charge=0.0, half_life=1e9, share_weight=1000.0
)


class Store(MemoryStore):
    """Refuses to start anything while it is `away`."""

    away = False

    def start(self, orders: Sequence[StartOrder], *, now: float) -> Sequence[tuple[Job, TaskSpec]]:
        if self.away:
            raise Unavailable("The database does not answer.")
        return super().start(orders, now=now)


class Lab(Scheduled):
    """A scheduler on a virtual clock, with one node."""

    store: Store

    def __init__(self, rules: LabRules = RULES, *, gpus: int) -> None:
        self.written = rules
        self.rules = RuleBook(rules, reread=lambda: self.written)
        self.durations: dict[int, float] = {}
        super().__init__(machines(gpus, self.durations), settings(self.rules, rank_seconds=5.0, tells=False), Store())

    def change(self, **fields: object) -> None:
        self.written = replace(self.written, **fields)  # type: ignore[arg-type]
        assert self.rules.reload()

    def knows(self, owner: str, name: str, seconds: float, time: int) -> None:
        for _ in range(10):
            self.scheduler.run_times.observe(owner, name, seconds, time)

    def runs(self, now: float, *submitted: Job) -> set[int]:
        self.durations |= {one.id: one.resources.time for one in submitted}
        return super().runs(now, *submitted)


@pytest.mark.parametrize(("weight", "first"), [(1000.0, 3), (0.0, 2)])
def test_who_has_used_less_goes_first_where_shares_count(weight: float, first: int) -> None:
    lab = Lab(replace(RULES, share_weight=weight), gpus=1)
    assert lab.runs(0.0, job(1, "ada")) == {1}
    assert lab.runs(10.0, job(2, "ada", submitted_at=9.0), job(3, "bob", submitted_at=10.0)) == {1}
    assert lab.runs(100.0) == {first}


def test_other_rules_make_another_order_at_once() -> None:
    lab = Lab(replace(RULES, share_weight=0.0), gpus=1)
    assert lab.runs(0.0, job(1, "ada")) == {1}
    assert lab.runs(10.0, job(2, "ada", submitted_at=9.0, qos="low"), job(3, "bob", submitted_at=10.0)) == {1}
    lab.change(qos={"all": QoS(name="all"), "low": QoS(name="low", priority=10)})
    assert lab.runs(100.0) == {2}


def test_partitions_are_those_of_the_rules() -> None:
    lab = Lab(
        replace(RULES, partitions={"here": Partition(name="here"), "there": Partition(name="there", nodes=("x*",))}), gpus=2
    )
    assert lab.runs(0.0, job(1, "ada", partition="here"), job(2, "ada", partition="there")) == {1}
    lab.change(partitions={"there": Partition(name="there")})
    assert lab.runs(1.0) == {1, 2}


@pytest.mark.parametrize(("promises", "runs"), [(1, {1, 4}), (2, {1})])
def test_as_many_are_promised_a_start_as_the_rules_say(promises: int, runs: set[int]) -> None:
    """Job 4 fits beside what is promised to job 2 from 100 on, and not beside what is promised to job 3 from 200 on."""
    lab = Lab(replace(RULES, promises=promises), gpus=3)
    waits = [
        job(2, "bob", gpus=2, submitted_at=1.0),
        job(3, "cyd", gpus=3, submitted_at=2.0),
        job(4, "dan", time=1000, submitted_at=3.0),
    ]
    assert lab.runs(0.0, job(1, "ada", gpus=2), *waits) == runs


def test_nobody_is_lost_whose_start_is_not_written_down() -> None:
    lab = Lab(gpus=2)
    lab.store.away = True
    with pytest.raises(Unavailable):
        lab.runs(0.0, job(1, "ada"), job(2, "bob"))
    lab.store.away = False
    assert lab.runs(1.0) == {1, 2}


SHORT = "short"


@pytest.mark.parametrize(("times", "runs"), [("walltime", {1}), ("expected", {1, 3})])
def test_who_should_be_over_before_a_promise_starts_once_expected_times_count(times: str, runs: set[int]) -> None:
    lab = Lab(gpus=2)
    lab.knows("ada", SHORT, 10, 1000)
    lab.knows("bob", "", 100, 100)
    assert lab.runs(
        0.0, job(1, "bob"), job(2, "cyd", gpus=2, submitted_at=1.0), job(3, "ada", name=SHORT, time=1000, submitted_at=2.0)
    ) == {1}
    lab.change(backfill_times=times, promises=1, age_weight=700.0)
    assert lab.runs(1.0) == runs


@pytest.mark.parametrize(("times", "runs"), [("walltime", {1}), ("expected", {1, 3})])
def test_who_should_be_over_before_a_promise_does_not_start_once_walltimes_count(times: str, runs: set[int]) -> None:
    lab = Lab(replace(RULES, backfill_times="expected"), gpus=3)
    lab.knows("ada", SHORT, 10, 1000)
    lab.knows("bob", "", 100, 100)
    lab.knows("dan", "", 50, 50)
    running = [job(1, "bob"), job(4, "dan", time=50)]
    waiting = [job(2, "cyd", gpus=3, submitted_at=1.0), job(3, "ada", gpus=2, name=SHORT, time=1000, submitted_at=2.0)]
    assert lab.runs(0.0, *running, *waiting) == {1, 4}
    lab.change(backfill_times=times, age_weight=700.0)
    lab.runs(10.0)
    assert lab.runs(50.0) == runs


@pytest.mark.parametrize(("times", "runs"), [("walltime", {1, 5}), ("expected", {1})])
def test_a_promise_moves_with_what_is_expected_of_those_who_run(times: str, runs: set[int]) -> None:
    """Job 1 should be over after 10 seconds, and is killed after 1000."""
    lab = Lab(replace(RULES, backfill_times="expected"), gpus=2)
    lab.knows("ada", SHORT, 10, 1000)
    lab.knows("dan", "", 500, 500)
    first = job(1, "ada", name=SHORT, time=1000)
    assert lab.runs(0.0, first, job(2, "cyd", gpus=2, submitted_at=1.0), job(5, "dan", time=500, submitted_at=2.0)) == {1}
    lab.change(backfill_times=times, age_weight=700.0)
    assert lab.runs(5.0) == runs


def test_who_runs_longer_than_expected_keeps_nobody_from_starting_beside_the_promise() -> None:
    """Job 1 was to be over at 10; at 20 it counts as over at 40, and what lasts for 15 seconds starts."""
    lab = Lab(replace(RULES, backfill_times="expected"), gpus=2)
    lab.knows("ada", SHORT, 10, 1000)
    lab.knows("dan", "", 15, 15)
    lab.knows("eve", "", 30, 30)
    assert lab.runs(0.0, job(1, "ada", name=SHORT, time=1000), job(2, "cyd", gpus=2, submitted_at=1.0)) == {1}
    assert lab.runs(20.0, job(6, "eve", time=30, submitted_at=20.0), job(7, "dan", time=15, submitted_at=20.0)) == {1, 7}


def test_what_was_expected_of_those_who_run_is_forgotten_once_walltimes_count() -> None:
    """Job 1 may run until 1000: what lasts from 20 to 520 starts beside the promise."""
    lab = Lab(replace(RULES, backfill_times="expected"), gpus=2)
    lab.knows("ada", SHORT, 10, 1000)
    assert lab.runs(0.0, job(1, "ada", name=SHORT, time=1000), job(2, "cyd", gpus=2, submitted_at=1.0)) == {1}
    lab.change(backfill_times="walltime")
    assert lab.runs(5.0) == {1}
    assert lab.runs(20.0) == {1}
    assert lab.runs(21.0, job(8, "dan", time=500, submitted_at=20.0)) == {1, 8}


# ---- the ranking alone


class Ranked:
    """A ranking, and all that it is told of."""

    def __init__(self, rules: LabRules = RULES) -> None:
        self.written = rules
        self.rules = RuleBook(rules, reread=lambda: self.written)
        self.settings = settings(self.rules, rank_seconds=5.0, tells=False)
        self.placer, self.use, self.times, self.queue = Placer(), UsageBook(self.rules), RunTimes(), Queue()
        self.ranking = Ranking(self.settings, self.placer, self.use, self.times)

    def waits(self, one: Job) -> Waiting:
        found = self.queue.put(one, now=0.0)
        assert isinstance(found, Waiting)
        return found

    def turn(self, now: float, *newcomers: int) -> None:
        self.ranking.turn(self.queue, newcomers, now)

    def standing(self) -> dict[str, float]:
        return {user: round(factor, 3) for (_, user), factor in self.ranking.standing.items()}


def test_standings_are_found_out_every_few_seconds_and_for_whoever_is_new() -> None:
    lab = Ranked()
    lab.waits(job(1, "ada"))
    lab.waits(job(2, "bob"))
    lab.turn(100.0, 1, 2)
    assert lab.standing() == {"ada": 1.0, "bob": 1.0}
    lab.use.put(replace(job(3, "ada"), state=JobState.RUNNING, attempt=1, node="n"), now=100.0)
    lab.turn(104.9, 1, 2, 77)  # 77 has ended meanwhile
    assert lab.standing() == {"ada": 1.0, "bob": 1.0}
    lab.turn(105.0)
    assert lab.standing() == {"ada": 0.25, "bob": 1.0}
    lab.use.put(replace(job(4, "bob", gpus=4), state=JobState.RUNNING, attempt=1, node="n"), now=105.0)
    lab.turn(109.9)
    assert lab.standing() == {"ada": 0.25, "bob": 1.0}
    lab.waits(job(5, "cyd"))
    lab.turn(109.9, 5)
    assert lab.standing() == {"cyd": 1.0, "ada": 0.5, "bob": 0.25}
    # What was found counts for a few seconds again.
    lab.turn(114.9)
    lab.use.put(replace(job(3, "ada"), state=JobState.COMPLETED, attempt=1, node="n", ended_at=115.0), now=115.0)
    lab.use.put(replace(job(6, "cyd", gpus=100), state=JobState.RUNNING, attempt=1, node="n"), now=115.0)
    lab.turn(119.8)
    assert lab.standing() == {"cyd": 1.0, "ada": 0.57, "bob": 0.22}
    lab.turn(119.9)
    assert lab.standing() == {"ada": 0.95, "bob": 0.8, "cyd": 0.16}


def test_where_one_job_waits_nobody_is_ahead_of_anybody() -> None:
    lab = Ranked()
    lab.waits(job(1, "ada"))
    lab.turn(100.0)
    lab.waits(job(1, "bob"))
    lab.turn(200.0, 1)
    assert lab.standing() == {"ada": 1.0}


@pytest.mark.parametrize(
    ("of", "known", "late"),
    [("short", False, 200.0), ("short", True, 20.0), ("all", True, 0.0), ("strange", True, 0.0)],
)
def test_in_a_class_whose_short_jobs_go_first_a_job_is_late_by_what_it_should_run(of: str, *, known: bool, late: float) -> None:
    qos = {**RULES.qos, "short": QoS(name="short", short_first=0.5)}
    lab = Ranked(replace(RULES, qos=qos))
    for owner, name, seconds in [("ada", "work", 10), ("bob", "work", 70), ("ada", "other", 90)]:
        for _ in range(10 if known else 0):
            lab.times.observe(owner, name, seconds, 100)
    assert lab.ranking.late_by(lab.waits(job(1, "ada", name="work", gpus=4, qos=of))) == pytest.approx(late, rel=0.01)


def test_short_first_of_another_strength_moves_those_who_wait() -> None:
    lab = Ranked()
    lab.queue.late_by = lab.ranking.late_by
    lab.waits(job(1, "ada", time=100))
    lab.turn(0.0)
    lab.written = replace(RULES, qos={**RULES.qos, "all": QoS(name="all", short_first=0.5)})
    lab.rules.reload()
    lab.turn(1.0)
    assert lab.queue.waiting[1].late_by == 50.0


class Machines(VirtualMachines):
    """With a device that others hold."""

    def withheld(self) -> frozenset[str]:
        return frozenset({"SIM-0-1"})

    def gpu_state(self) -> GpuState:
        return GpuState(
            states=(
                IdleState(tenant="one", devices=("SIM-0-2",), bytes=5),
                IdleState(tenant="other", devices=("SIM-0-3",), bytes=6, stays="it computes"),
            )
        )


def test_a_picture_has_all_that_decisions_go_by() -> None:
    parts = {"gpu": Partition(name="gpu")}
    rules = replace(RULES, backfill_times="expected", partitions=parts, promises=3, age_weight=9.0, size_weight=7.0)
    lab = Ranked(rules)
    for _ in range(10):
        lab.times.observe("ada", "work", 10, 100)
    engine = Machines(nodes_of(Cluster(nodes=1, gpus_per_node=4)), {})
    devices = DeviceOffers(engine, lab.settings, lab.queue, lab.placer)
    devices.look()
    devices.make()
    scope = SubmitScope(owner="ada")
    lab.placer.refused(scope, "AssocMaxSubmitJobLimit", "Slurm takes no more")
    waits = lab.waits(job(1, "ada", name="work"))
    lab.queue.put(
        replace(job(2, "ada", name="work"), state=JobState.RUNNING, attempt=1, node="node00000", started_at=5.0), now=5.0
    )
    lab.turn(6.0)
    window = Reservation(name="course", begin=1000.0, end=5000.0, users=frozenset({"cyd"}), reason="")
    assert lab.ranking.picture(lab.queue, devices, (window,), 6.0) == Snapshot(
        nodes=engine.nodes(),
        qos=rules.qos,
        waiting=(replace(waits, expected=10),),
        holding=(replace(lab.queue.holding[2], due=pytest.approx(15.0)),),  # type: ignore[arg-type]
        withheld=frozenset({"SIM-0-1", "SIM-0-3"}),
        blocked={"SIM-0-3": "GPU state of an idle session is on it that cannot be moved: it computes"},
        moves={"SIM-0-2": 5},
        submit_limits={scope: SubmitLimit("AssocMaxSubmitJobLimit", "Slurm takes no more", 0)},
        age_weight=9.0,
        standing={("ada", "ada"): 1.0},
        share_weight=1000.0,
        size_weight=7.0,
        partitions=parts,
        reservations=(window,),
        promises=3,
    )

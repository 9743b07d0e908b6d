"""What is promised is a claim on room and on limits: younger work that is no more urgent never puts it off."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import NOW, Lab, free_for, has_room, holding, lab, node, rank, waiting

from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import ArrayLimit, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.limits import CODES, GPU_CODES
from support.examples import examples

MINUTE, HOUR = 60, 3600
EIGHT = node("n1", *["h200"] * 8)
LIMITS = {
    "her own": {"batch": QoS(name="batch", max_gpus_per_user=4), "free": QoS(name="free")},
    "her account's": {"batch": QoS(name="batch", max_gpus_per_account=4), "free": QoS(name="free")},
    "everybody's": {"batch": QoS(name="batch", max_gpus=4), "free": QoS(name="free")},
    "of jobs": {"batch": QoS(name="batch", max_jobs_per_user=1), "free": QoS(name="free")},
}


def first_start(found: Lab, arrivals: Iterable[Waiting], job: int, until: float) -> float | None:
    """Play the lab on, every job to its walltime, until `job` starts: how long after NOW that is."""
    line = sorted(arrivals, key=lambda one: one.submitted_at)
    while True:
        if job in {start.job_id for start in found.place()}:
            return found.now - NOW
        ends = [held.over_by for held in found.holding.values()]
        moment = min([*ends, *(one.submitted_at for one in line[:1])], default=until)
        if moment >= until:
            return None
        found.now = moment
        for held in [held for held in found.holding.values() if held.over_by <= moment]:
            found.forget(held.id)
        while line and line[0].submitted_at <= moment:
            found.wait(line.pop(0))


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_small_jobs_of_the_same_limit_do_not_take_the_promise_of_a_large_one(limits: Mapping[str, QoS], most: int) -> None:
    """ada is first in line for four GPUs; one is free, and three more are in half an hour. Her small jobs would be over by then;
    but while one of them runs her limit refuses the large one, and bob's jobs of an hour would take each GPU that gets free."""
    large = waiting(1, 4, ago=1, time=4 * HOUR)
    busy = [holding(10 + gpu, "n1", f"n1-{gpu}", left=(13 + 8.5 * gpu) * MINUTE, qos="free") for gpu in range(7)]
    hers = [replace(waiting(100 + number, time=5 * MINUTE), submitted_at=NOW + (2 + number) * MINUTE) for number in range(1000)]
    his = [
        replace(waiting(2000 + number, owner="bob", qos="free", time=HOUR), submitted_at=NOW + (3 + 4 * number) * MINUTE)
        for number in range(1000)
    ]
    found = Lab(lab([EIGHT], [large], busy, qos=limits, promises=most))
    assert first_start(found, [*hers, *his], job=1, until=NOW + 12 * HOUR) == 30 * MINUTE


def test_what_the_limit_holds_beside_the_promise_still_goes_first() -> None:
    """One GPU fits beside the promise for nine hours, and another until it begins."""
    large = waiting(1, 3, ago=2, time=4 * HOUR)
    busy = [holding(2, "n1", *(f"n1-{gpu}" for gpu in range(6)), left=HOUR / 2, qos="free")]
    small = [waiting(3, 1, ago=1, time=9 * HOUR), waiting(4, 1, time=MINUTE)]
    found = Lab(lab([EIGHT], [large, *small], busy, qos=LIMITS["her own"]))
    assert [start.job_id for start in found.place()] == [3, 4]


# ---- a job that cannot run now is in nobody's way


def of_type(job_id: int, gpus: int, gpu_type: str, **more: Any) -> Waiting:
    return waiting(job_id, gpus, gpu_type=gpu_type, **more)


@pytest.mark.parametrize("limits", [LIMITS["everybody's"], LIMITS["her own"], LIMITS["her account's"]])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_job_for_a_drained_node_takes_nothing_of_its_limit(limits: Mapping[str, QoS], ahead: bool) -> None:
    """Of six jobs with one GPU each four may run, whether a job for four GPUs of the drained node stands before them or not."""
    nodes = [EIGHT, node("n2", *["a100"] * 8, drained="for repair")]
    line = [waiting(2 + number, time=HOUR) for number in range(6)]
    if ahead:
        line.append(of_type(1, 4, "a100", ago=9))
    assert [start.job_id for start in Lab(lab(nodes, line, qos=limits)).place()] == [2, 3, 4, 5]


@pytest.mark.parametrize("limits", [LIMITS["everybody's"], LIMITS["her own"], LIMITS["her account's"]])
@pytest.mark.parametrize("seconds", [HOUR, 15 * 86400])
def test_what_is_promised_in_two_weeks_is_for_others_until_then(limits: Mapping[str, QoS], seconds: int) -> None:
    nodes, begin = [EIGHT, node("n2", *["a100"] * 8)], NOW + 14 * 86400
    course = Reservation(name="course", begin=NOW - 10, end=begin, nodes=("n2",), users=frozenset({"zed"}), accounts=frozenset())
    line = [of_type(1, 4, "a100", ago=9), *(waiting(2 + number, time=seconds) for number in range(6))]
    found = Lab(lab(nodes, line, qos=limits, reservations=(course,)))
    assert [start.job_id for start in found.place()] == ([2, 3, 4, 5] if seconds == HOUR else [])
    assert [(promise.job.id, promise.at) for promise in found.placer.promises] == [(1, begin)]


def test_what_is_promised_in_two_weeks_does_not_put_off_estimates_of_others() -> None:
    """Nothing is known of how long jobs run: the limit has room again when the first four have used their walltimes."""
    nodes, begin = [EIGHT, node("n2", *["a100"] * 8)], NOW + 14 * 86400
    course = Reservation(name="course", begin=NOW - 10, end=begin, nodes=("n2",), users=frozenset({"zed"}), accounts=frozenset())
    line = [of_type(1, 4, "a100", ago=9), *(waiting(2 + number, time=HOUR) for number in range(6))]
    found = Lab(lab(nodes, line, qos=LIMITS["everybody's"], reservations=(course,))).look(lambda *_: None)
    waits = {wait.job_id: wait.estimated_start for wait in found.pending}
    assert waits == {1: begin, 6: NOW + HOUR, 7: NOW + HOUR}


@pytest.mark.parametrize("gpus", [0, 6, 7])
@pytest.mark.parametrize("most", [1, 3])
def test_a_promise_is_kept_behind_a_job_that_no_node_can_hold_now(gpus: int, most: int) -> None:
    """eve's four GPUs are free in half an hour, and her class has room for them. A job for a drained node stands before hers."""
    qos = {"batch": QoS(name="batch", max_gpus=8), "free": QoS(name="free")}
    nodes = [EIGHT, node("n2", *["a100"] * 8, drained="for repair"), node("n3", "rtx", "rtx")]
    busy = [holding(50 + gpu, "n1", f"n1-{gpu}", left=450 * (gpu + 1), qos="free") for gpu in range(8)]
    busy.append(holding(60, "n3", "n3-0", "n3-1", left=10 * 86400, owner="zed"))
    line = [of_type(2, 4, "h200", owner="eve", time=HOUR)]
    if gpus:
        line.append(of_type(1, gpus, "a100", ago=100))
    streams = [
        replace(of_type(first + number, 1, "h200", owner=owner, qos=qos_of, time=time), submitted_at=NOW + 60 * number)
        for first, owner, qos_of, time in ((1000, "bob", "free", HOUR), (2000, "cyd", "batch", 300), (3000, "dan", "batch", 300))
        for number in range(12 * 60)
    ]
    assert first_start(Lab(lab(nodes, line, busy, qos=qos, promises=most)), streams, job=2, until=NOW + 12 * HOUR) == HOUR / 2


@pytest.mark.parametrize("most", [1, 3])
def test_a_stream_of_jobs_without_gpus_does_not_make_promises_lapse(most: int) -> None:
    """ada's one place always has a job without GPUs. Her four GPUs are free in half an hour, and eve's three when she ends."""
    qos = {"batch": QoS(name="batch", max_jobs_per_user=1, max_gpus=4), "free": QoS(name="free")}
    busy = [holding(50 + gpu, "n1", f"n1-{gpu}", left=450 * (gpu + 1), qos="free") for gpu in range(8)]
    line = [waiting(1, 4, ago=9, time=HOUR), waiting(2, 3, ago=8, owner="eve", time=HOUR)]
    cpus = [replace(waiting(1000 + number, 0, time=300), submitted_at=NOW + 60 * number) for number in range(6 * 60)]
    hours = [
        replace(waiting(5000 + number, owner="bob", qos="free", time=HOUR), submitted_at=NOW + 60 * number)
        for number in range(6 * 60)
    ]
    for job, expected in ((1, HOUR / 2), (2, 1.5 * HOUR)):
        found = Lab(lab([EIGHT], line, busy, qos=qos, promises=most))
        assert first_start(found, [*cpus, *hours], job, until=NOW + 6 * HOUR) == expected


def test_a_promise_outlives_a_limit_that_is_in_use_for_a_while() -> None:
    """ada's four GPUs are free sooner than in half an hour, while a job of hers that was let in until then has her place."""
    qos = LIMITS["of jobs"]
    busy = [holding(50, "n1", *(f"n1-{gpu}" for gpu in range(6)), left=HOUR / 2, qos="free")]
    found = Lab(lab([EIGHT], [waiting(1, 4, ago=9), waiting(2, 0, time=600)], busy, qos=qos))
    assert [start.job_id for start in found.place()] == [2]
    found.now += 60
    found.forget(50)
    found.wait(waiting(3, 8, owner="bob", qos="free"))
    assert found.place() == ()
    assert [(promise.job.id, promise.at) for promise in found.placer.promises] == [(1, NOW + 600)]


# ---- random labs, played to their end


@dataclass
class Played:
    """What became of promises."""

    #: When each job that is promised something is to start, and what was started by then.
    promised: dict[int, tuple[float, int]] = field(default_factory=dict)
    started: list[Waiting] = field(default_factory=list)
    #: Of promises that work put off which was younger and no more urgent.
    broken: list[str] = field(default_factory=list)

    def look(self, found: Lab, jobs: Mapping[int, Waiting]) -> None:
        """After a placement."""
        now = {promise.job.id: promise.at for promise in found.placer.promises}
        for job, (at, seen) in list(self.promised.items()):
            if job not in found.waiting:  # started
                if found.now > at:
                    self.broken += self._blame(job, at, f"started at {found.now - NOW}", seen, now, jobs, found)
                del self.promised[job]
            elif now.get(job, float("inf")) > at:
                self.broken += self._blame(job, at, f"promised {now.get(job)}", seen, now, jobs, found)
                del self.promised[job]
        for job, at in now.items():
            self.promised.setdefault(job, (at, len(self.started)))
            self.promised[job] = (min(at, self.promised[job][0]), self.promised[job][1])
        for passed in found.placer.look(found.now).passed:
            if passed.code in CODES and passed.ahead is None:
                self.broken += self._not_used(passed.job, passed.code, found)

    def _blame(
        self, job: int, at: float, what: str, seen: int, now: Mapping[int, float], jobs: Mapping[int, Waiting], found: Lab
    ) -> list[str]:
        mine = rank(jobs[job], found.snapshot)
        before = [one for one in self.started[seen:] if rank(one, found.snapshot) < mine]
        ahead = [other for other in now if other != job and rank(jobs[other], found.snapshot) < mine]
        # A job that a limit alone holds back stands before later ones in it, if a node could hold it.
        ahead += [
            one.id
            for one in found.waiting.values()
            if one.qos == jobs[job].qos and rank(one, found.snapshot) < mine and could_run(one, found)
        ]
        return [] if before or ahead else [f"job {job}: promised {at - NOW}, {what}"]

    def _not_used(self, job: Waiting, code: str, found: Lab) -> list[str]:
        """Blame a limit that refuses a job although neither holders nor what is kept for others use it up."""
        service, gpus = found.snapshot.qos[job.qos], job.resources.total_gpus
        same = [held for held in found.holding.values() if held.qos == job.qos]
        mine, whole = [held for held in same if held.owner == job.owner], [held for held in same if held.account == job.account]
        array = [held for held in same if held.array == job.array]
        holders, most = {
            "JobArrayTaskLimit": (array, job.array.at_most if job.array is not None else None),
            "QOSMaxJobsPerUserLimit": (mine, service.max_jobs_per_user),
            "QOSMaxGRESPerUser": (mine, service.max_gpus_per_user),
            "MaxJobsPerAccount": (whole, service.max_jobs_per_account),
            "MaxGRESPerAccount": (whole, service.max_gpus_per_account),
            "QOSGrpGRES": (same, service.max_gpus),
        }[code]
        used = sum(held.resources.total_gpus for held in holders) + gpus if code in GPU_CODES else len(holders) + 1
        return [] if most is not None and used > most else [f"job {job.id}: {code}, but {used} of {most}"]


def could_run(job: Waiting, found: Lab) -> bool:
    """True when enough nodes take jobs that could hold it if nothing else ran."""
    return has_room(job.resources, free_for(job, replace(found.snapshot, reservations=()), [], NOW, NOW))


def play(seed: int) -> list[str]:
    """A lab with limits and random jobs, until all is over."""
    chance = random.Random(seed)
    few = lambda: chance.choice([None, None, 1, 2, 4])  # noqa: E731
    services = {
        name: QoS(
            name=name, max_jobs_per_user=few(), max_gpus_per_user=few(), max_jobs_per_account=few(),
            max_gpus_per_account=few(), max_gpus=few(), priority=chance.choice([0, 0, 1]),
        )
        for name in ("batch", "short")
    }  # fmt: skip
    services["free"] = QoS(name="free")
    machines = [node(f"n{number}", *["h200"] * chance.choice([1, 2, 4])) for number in range(chance.choice([1, 1, 2, 3]))]
    more: dict[str, Any] = {}
    if chance.random() < 0.3:
        machines.append(node("m", *["a100"] * chance.choice([2, 4]), drained="for repair"))
    if chance.random() < 0.3:
        more["partitions"] = {"left": Partition(name="left", nodes=("n0", "m")), "right": Partition(name="right", nodes=("n*",))}
    if chance.random() < 0.2:
        begin = NOW + chance.choice([-10, 500, 3000])
        more["reservations"] = (
            Reservation(
                name="course", begin=begin, end=begin + chance.choice([1000, 20_000]), nodes=("n0",),
                users=frozenset({"zed"}), accounts=frozenset(),
            ),
        )  # fmt: skip
    jobs = dict(_jobs(chance, sorted(services), sorted(more.get("partitions", ("",)))))
    early = {number: chance.choice([1.0, 1.0, 0.5, 0.1]) for number in jobs}
    there = lab(machines, [], qos=services, promises=chance.choice([1, 1, 3]), age_weight=60.0, **more)
    found, played = Lab(there), Played()
    line = sorted(jobs.values(), key=lambda one: (one.submitted_at, one.id))
    ends: dict[int, float] = {}
    while True:
        for start in found.place():
            job = jobs[start.job_id]
            played.started.append(job)
            ends[job.id] = found.now + max(1.0, early[job.id] * job.longest)
        played.look(found, jobs)
        moments = [*ends.values(), *(one.submitted_at for one in line[:1])]
        moments += [window.end for window in there.reservations if window.end > found.now]
        if not moments:
            return played.broken
        found.now = max(found.now, min(moments))
        for job_id in [job_id for job_id, at in ends.items() if at <= found.now]:
            del ends[job_id]
            found.forget(job_id)
        while line and line[0].submitted_at <= found.now:
            found.wait(line.pop(0))


def _jobs(chance: random.Random, services: list[str], partitions: list[str]) -> Iterator[tuple[int, Waiting]]:
    """Yield jobs of all kinds, and sometimes a stream of short ones, with GPUs or without."""
    grace, number = chance.choice([0, 10]), 0
    for number in range(1, chance.randrange(8, 40)):
        owner, service, account = (
            chance.choice(["ada", "bob", "cyd"]),
            chance.choice(services),
            chance.choice(["biology", "physics"]),
        )
        at_most, array = chance.choice([None, None, None, 1, 2]), None
        if at_most is not None:  # one for each owner, account and class
            array = ArrayLimit(100 * ord(owner[0]) + 10 * services.index(service) + 2 * at_most + (account == "physics"), at_most)
        gpus = chance.choice([0, 1, 1, 2, 4])
        yield number, replace(
            waiting(
                number, gpus, owner=owner, qos=service, partition=chance.choice(partitions),
                time=chance.choice([60, 300, 1000, 5000]), account=account, array=array,
                nodes=chance.choice([1, 1, 1, 2]), grace=grace, cpus=chance.choice([1, 1, 8]),
                gpu_type=chance.choice([None, None, None, "a100"]) if gpus else None,
            ),
            submitted_at=NOW + chance.choice([0, chance.randrange(6000)]),
        )  # fmt: skip
    if chance.random() < 0.4:
        owner, service, gpus, seconds = chance.choice(["ada", "bob"]), chance.choice(services), chance.choice([0, 1]), 120
        for step in range(40):
            job = waiting(
                number + 1 + step, gpus, owner=owner, qos=service, time=seconds, account="physics", partition=partitions[0]
            )
            yield job.id, replace(job, submitted_at=NOW + step * seconds / 2)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9))
def test_nobody_younger_puts_a_promise_off(seed: int) -> None:
    assert play(seed) == []

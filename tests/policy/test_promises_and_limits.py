"""What is promised is a claim on room and on limits: younger work that is no more urgent never puts it off."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import NOW, Lab, holding, lab, node, rank, waiting

from carrel.core.domain.placement import Waiting
from carrel.core.domain.qos import QoS
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
    large = waiting(1, 3, ago=2, time=4 * HOUR)
    busy = [holding(2, "n1", *(f"n1-{gpu}" for gpu in range(6)), left=HOUR / 2, qos="free")]
    small = [waiting(3, 1, ago=1, time=9 * HOUR), waiting(4, 1, time=MINUTE)]
    found = Lab(lab([EIGHT], [large, *small], busy, qos=LIMITS["her own"]))
    assert [start.job_id for start in found.place()] == [3]


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

    def _blame(
        self, job: int, at: float, what: str, seen: int, now: Mapping[int, float], jobs: Mapping[int, Waiting], found: Lab
    ) -> list[str]:
        mine = rank(jobs[job], found.snapshot)
        before = [one for one in self.started[seen:] if rank(one, found.snapshot) < mine]
        ahead = [other for other in now if other != job and rank(jobs[other], found.snapshot) < mine]
        # Whom a limit holds back stands before later jobs in it as soon as its other limits let it in.
        ahead += [one.id for one in found.waiting.values() if one.qos == jobs[job].qos and rank(one, found.snapshot) < mine]
        return [] if before or ahead else [f"job {job}: promised {at - NOW}, {what}"]


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
    grace, jobs = chance.choice([0, 10]), {}
    for number in range(1, chance.randrange(8, 40)):
        owner = chance.choice(["ada", "bob", "cyd"])
        jobs[number] = replace(
            waiting(
                number, chance.choice([0, 1, 1, 2, 4]), owner=owner, qos=chance.choice(list(services)),
                time=chance.choice([60, 300, 1000, 5000]), account=chance.choice(["physics", "biology"]),
                nodes=chance.choice([1, 1, 1, 2]), grace=grace, cpus=chance.choice([1, 1, 8]),
            ),
            submitted_at=NOW + chance.choice([0, chance.randrange(6000)]),
        )  # fmt: skip
    early = {number: chance.choice([1.0, 1.0, 0.5, 0.1]) for number in jobs}
    found, played = Lab(lab(machines, [], qos=services, promises=chance.choice([1, 1, 3]), age_weight=60.0)), Played()
    line = sorted(jobs.values(), key=lambda one: (one.submitted_at, one.id))
    ends: dict[int, float] = {}
    while True:
        for start in found.place():
            job = jobs[start.job_id]
            played.started.append(job)
            ends[job.id] = found.now + max(1.0, early[job.id] * job.longest)
        played.look(found, jobs)
        moments = [*ends.values(), *(one.submitted_at for one in line[:1])]
        if not moments:
            return played.broken
        found.now = max(found.now, min(moments))
        for job_id in [job_id for job_id, at in ends.items() if at <= found.now]:
            del ends[job_id]
            found.forget(job_id)
        while line and line[0].submitted_at <= found.now:
            found.wait(line.pop(0))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9))
def test_nobody_younger_puts_a_promise_off(seed: int) -> None:
    assert play(seed) == []

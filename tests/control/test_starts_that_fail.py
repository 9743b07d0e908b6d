"""A database that fails between a start that is refused and the next one: nobody is left behind half started."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.ports import AttemptChange
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Launch, LaunchPaths
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.trace import Cluster


class FailingStore(MemoryStore):
    """Refuses changes while it is `away`."""

    away = False

    def change(self, changes: Sequence[AttemptChange], *, now: float) -> Sequence[Job]:
        if self.away:
            raise Unavailable("The database does not answer.")
        return super().change(changes, now=now)


class PickyMachines(VirtualMachines):
    """Refuses one job, and remembers whom it has started."""

    refuses: int | None = None
    started: tuple[int, ...] = ()

    def start(self, launch: Launch, *, token: str) -> None:
        if launch.job_id == self.refuses:
            raise Unavailable("Its GPU is taken.")
        self.started += (launch.job_id,)
        super().start(launch, token=token)


def test_who_was_to_start_after_a_refused_one_starts_when_the_database_is_back() -> None:
    store = FailingStore()
    jobs = [
        Job(
            id=number, kind=JobKind.TASK, owner="ada", account="ada", name="", qos="all", state=JobState.PENDING,
            resources=Resources(gpus=1, time=100), reason=Reason(code="Submitted", message=""), submitted_at=float(number),
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    for job in jobs:
        store.add(job)
    engine = PickyMachines(nodes_of(Cluster(nodes=1, gpus_per_node=4)), dict.fromkeys((1, 2, 3), 100.0))
    scheduler = Scheduler(
        jobs=store,
        events=store,
        engine=engine,
        settings=LoopSettings(
            rules=RuleBook(LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all")),
            launch=LaunchSettings(paths=LaunchPaths(environments="", snapshots="", blobs="")),
            secret=b"",
            tells=False,
        ),
    )
    engine.refuses, store.away = 1, True
    with pytest.raises(Unavailable, match="does not answer"):
        scheduler.cycle(News(jobs=list(jobs), observations=[]), 10.0)
    assert engine.started == ()
    again = scheduler.next_at()
    assert again is not None, "it is tried again without news"
    store.away = False
    scheduler.cycle(News(jobs=[], observations=[]), again)
    assert engine.started == (2, 3)
    assert {held.id for held in scheduler.holding()} == {2, 3}
    engine.refuses = None
    later = scheduler.next_at()
    assert later is not None
    scheduler.cycle(News(jobs=[], observations=[]), later)
    assert engine.started == (2, 3, 1)

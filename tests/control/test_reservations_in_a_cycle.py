"""A scheduler wakes up when a window that is kept for others is over, and says why a job waits for it."""

from __future__ import annotations

from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import LaunchPaths
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.lab.memory import MemoryStore
from carrel.simulate.trace import Cluster

COURSE = Reservation(name="course", begin=1000.0, end=5000.0, users=frozenset({"cyd"}), reason="deep learning")


def submitted(number: int, owner: str, seconds: int) -> Job:
    return Job(
        id=number, kind=JobKind.TASK, owner=owner, account=owner, name="", qos="all", state=JobState.PENDING,
        resources=Resources(gpus=1, time=seconds), reason=Reason(code="Submitted", message=""), submitted_at=0.0,
    )  # fmt: skip


def test_a_cycle_happens_when_a_window_begins_and_when_it_is_over() -> None:
    store = MemoryStore()
    # Job 3 is over when the window begins, if it takes all the time that it has from SIGTERM to SIGKILL; job 4 is not.
    jobs = [submitted(1, "ada", 2000), submitted(2, "cyd", 2000), submitted(3, "ada", 990), submitted(4, "ada", 991)]
    for job in jobs:
        store.add(job)
    rules = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all")
    scheduler = Scheduler(
        jobs=store,
        events=store,
        engine=VirtualMachines(nodes_of(Cluster(nodes=1, gpus_per_node=4)), {1: 2000.0, 2: 2000.0, 3: 1000.0, 4: 1000.0}),
        settings=LoopSettings(
            rules=RuleBook(rules),
            launch=LaunchSettings(paths=LaunchPaths(environments="", snapshots="", blobs="")),
            secret=b"",
            reserved=lambda: (COURSE,),
            tells=False,
        ),
    )
    scheduler.cycle(News(jobs=jobs, observations=[]), 0.0)
    assert {held.id for held in scheduler.holding()} == {2, 3}
    assert scheduler.next_at() == 1000.0
    hold = scheduler.look(0.0).wait_of(1)
    assert hold is not None
    assert 'kept for reservation "course" (deep learning)' in hold.reason.message
    scheduler.cycle(News(jobs=[], observations=[]), 1000.0)
    assert scheduler.next_at() == 5000.0
    scheduler.cycle(News(jobs=[], observations=[]), 5000.0)
    assert {held.id for held in scheduler.holding()} == {1, 2, 3, 4}
    assert scheduler.next_at() is None

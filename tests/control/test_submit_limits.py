"""Slurm takes so many jobs and no more: the lab keeps the others in line, in order, and asks once for each end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from scheduled import rules, settings

from carrel.core.control.inbox import News
from carrel.core.control.ports import NewJob
from carrel.core.control.scheduler import Scheduler
from carrel.core.control.submit_limits import AGAIN
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from carrel.lab.store import Database, Store

Key = tuple[int, int]
TASK = TaskSpec(entry_point="main", command="true", snapshot="")


class Cluster:
    """An engine whose Slurm takes `at_most` jobs of each owner's, or of everybody's."""

    def __init__(self, at_most: int, word: str = "AssocMaxSubmitJobLimit") -> None:
        self.at_most = at_most
        self.word = word
        self.there: dict[Key, str] = {}
        #: Whom it has taken, in order.
        self.taken: list[int] = []
        self.refusals = 0
        self.news: list[Observation] = []

    def start(self, launch: Launch, *, token: str) -> None:
        whose = launch.owner if self.word.startswith("Assoc") else ""
        if list(self.there.values()).count(whose) < self.at_most:
            self.there[launch.job_id, launch.attempt] = whose
            self.taken.append(launch.job_id)
            return
        self.refusals += 1
        said = Reason(code=self.word, message=f"Slurm takes no more jobs for now: {self.word} (MaxSubmitJobs is {self.at_most}).")
        self._tell((launch.job_id, launch.attempt), Ended(state=JobState.PREEMPTED, reason=said))

    def end(self, job_id: int) -> None:
        key = next(key for key in self.there if key[0] == job_id)
        del self.there[key]
        self._tell(key, Ended(state=JobState.COMPLETED, reason=Reason(code="Completed", message="Exit code 0."), exit_code=0))

    def _tell(self, key: Key, ended: Ended) -> None:
        entry = Journaled(at=0.0, record=ended)
        self.news.append(Observation(job_id=key[0], attempt=key[1], entries=(entry,), offset=1))

    def nodes(self) -> tuple[Node, ...]:
        return ()

    def withheld(self) -> frozenset[str]:
        return frozenset()

    def gpu_state(self) -> GpuState:
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None: ...
    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None: ...
    def cancel(self, job_id: int, attempt: int, *, by: str) -> None: ...
    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None: ...
    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None: ...
    def close(self) -> None: ...


class TestLab:
    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> Iterator[None]:
        self.store = Store(Database.at(tmp_path / "lab.db"))
        for owner in ("ada", "bob"):
            self.store.people.add(User(subject=owner, name=owner, account=owner), now=0.0)
        yield
        self.store.close()

    def setup(self, cluster: Cluster, jobs: int, owners: Sequence[str] = ("ada",)) -> None:
        self.cluster, self.now = cluster, 1000.0
        self.begin(News([self.submit(owners[number % len(owners)]) for number in range(jobs)], []))

    def submit(self, owner: str = "ada") -> Job:
        new = NewJob(
            kind=JobKind.TASK, owner=owner, account=owner, name="", qos="all", partition="far",
            resources=Resources(time=100), retries=1, task=TASK,
        )  # fmt: skip
        return self.store.jobs.submit(new, now=self.now, key=None, request="", outbox=lambda _job: ()).job

    def begin(self, news: News | None = None) -> None:
        part = slurm_partition("far", SlurmPartition(partition="main"))
        found = settings(rules(partitions={"far": part}), secret=b"secret")
        self.scheduler = Scheduler(jobs=self.store.jobs, events=self.store.events, engine=self.cluster, settings=found)
        if news is None:
            self.scheduler.recover(self.now)
        self.cycle(news or News([], []))

    def job(self, number: int) -> Job:
        job = self.store.jobs.get(number)
        assert job is not None
        return job

    def cycle(self, news: News | None = None) -> None:
        self.now += 1
        self.scheduler.cycle(news or News([], []), self.now)
        while self.cluster.news:
            found, self.cluster.news = self.cluster.news, []
            self.scheduler.cycle(News([], found), self.now)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.cluster.end(number)
        self.cycle()

    def test_two_hundred_wait_in_line_and_each_end_lets_the_next_one_try(self) -> None:
        self.setup(Cluster(3), 200)
        assert self.cluster.taken == [1, 2, 3]
        assert self.cluster.refusals == 197  # all were handed over before Slurm had said anything
        states = [self.job(number).state for number in range(1, 201)]
        assert states == [JobState.CONFIGURING] * 3 + [JobState.PENDING] * 197
        assert {self.job(number).retries_left for number in range(1, 201)} == {1}
        for number in range(1, 198):
            self.end(number)
        assert self.cluster.taken == list(range(1, 201))
        assert self.cluster.refusals <= 197 + (self.now - 1000) // AGAIN, "refused more than once for a minute"
        self.end(198, 199, 200)
        assert {self.job(number).state for number in range(1, 201)} == {JobState.COMPLETED}
        # What Slurm never had is no attempt that anybody is shown.
        assert [row.number for row in self.store.jobs.attempts(200)] == [2]

    def test_those_who_wait_are_told_slurms_words_and_how_many_are_there(self) -> None:
        self.setup(Cluster(3), 5)
        assert (self.job(4).state, self.job(4).reason.code) == (JobState.PENDING, "AssocMaxSubmitJobLimit")
        hold = self.scheduler.queue_report.wait_of(4)
        assert hold.reason.code == "AssocMaxSubmitJobLimit"
        assert hold.reason.message.startswith(
            "3 of its owner's jobs are in Slurm, which takes no more for now: AssocMaxSubmitJobLimit (MaxSubmitJobs is 3);"
        )

    def test_others_are_not_held_back_by_it(self) -> None:
        self.setup(Cluster(2), 8, owners=("ada", "bob"))
        assert sorted(self.cluster.taken) == [1, 2, 3, 4]

    def test_a_limit_of_the_whole_cluster_holds_everybody_back_in_the_labs_order(self) -> None:
        self.setup(Cluster(2, "MaxJobCount"), 8, owners=("ada", "bob"))
        for number in range(1, 7):
            self.end(number)
        assert self.cluster.taken == list(range(1, 9))
        assert self.cluster.refusals == 6

    def test_room_that_others_have_left_is_found_after_a_minute_and_then_ever_faster(self) -> None:
        self.setup(Cluster(0), 20)
        assert self.cluster.taken == []
        refusals = self.cluster.refusals
        assert (self.scheduler.next_at() or 0.0) <= 1001 + AGAIN
        self.now = 1001 + AGAIN
        self.cycle()
        assert self.cluster.refusals == refusals + 1
        self.cluster.at_most = 20
        for _ in range(5):
            self.now += AGAIN
            self.cycle()
        assert self.cluster.taken == list(range(1, 21))

    def test_an_end_that_is_told_together_with_a_refusal_leaves_its_room(self) -> None:
        self.setup(Cluster(3), 3)
        # Both are handed over in one cycle, which ends before anything is heard of them.
        self.scheduler.cycle(News([self.submit(), self.submit()], []), self.now)
        self.cluster.end(1)
        self.cycle()
        assert self.cluster.taken == [1, 2, 3, 4]

    def test_a_lab_that_was_killed_does_not_hand_them_all_over_again(self) -> None:
        self.setup(Cluster(3), 50)
        refusals = self.cluster.refusals
        self.begin()
        assert self.cluster.refusals == refusals
        self.end(1)
        assert self.cluster.taken == [1, 2, 3, 4]

    @pytest.mark.parametrize("cancelled", [4, 5])
    def test_who_is_cancelled_in_line_is_gone_and_holds_nobody_up(self, cancelled: int) -> None:
        self.setup(Cluster(3), 6)
        job = self.store.jobs.request_cancel(cancelled, by="ada", reason=Reason(code="Cancelled", message=""), now=self.now)
        assert job.state is JobState.CANCELLED
        self.cycle(News([job], []))
        self.end(1)
        assert self.cluster.taken[-1] == (5 if cancelled == 4 else 4)

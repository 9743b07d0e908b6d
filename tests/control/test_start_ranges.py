"""A scheduler compares when jobs start with what their owners were told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from scheduled import Scheduled, job, machines, rules, settings

from carrel.core.control.start_ranges import StartRanges, StartRangeStore, Unwritten
from carrel.core.domain.errors import StorageFull
from carrel.core.domain.expectation import Coverage, ShownRange
from carrel.core.domain.job import Job, JobState


class OneGpu(Scheduled):
    """A lab with one GPU, whose jobs are known to run for about 1,000 s."""

    def __init__(self, durations: dict[int, float], kept: StartRangeStore | None = None) -> None:
        super().__init__(machines(1, durations), settings(rules(), start_ranges=kept or Unwritten()))
        self.learn()

    def learn(self) -> None:
        for seconds in (900.0, 950.0, 1000.0, 1050.0, 1100.0) * 30:
            self.scheduler.run_times.observe("ada", "train.py", seconds, 7200.0)

    def submit(self, number: int, now: float) -> Job:
        one = job(number, name="train.py", time=7200, submitted_at=now)
        self.cycle(now, one)
        return one

    @property
    def coverage(self) -> Coverage:
        return self.scheduler.start_ranges.calibration.coverage


def test_a_start_within_the_range_and_one_after_it() -> None:
    lab = OneGpu({1: 1000.0, 2: 5000.0, 3: 10.0})
    for number in (1, 2, 3):
        lab.submit(number, float(number))
    assert lab.coverage == Coverage()
    lab.cycle(1001.0)
    assert lab.coverage == Coverage(of=1)
    lab.cycle(6001.0)
    assert lab.coverage == Coverage(of=2, late=1)


def test_whoever_starts_at_once_was_told_nothing() -> None:
    lab = OneGpu({1: 1000.0})
    lab.submit(1, 1.0)
    lab.cycle(1001.0)
    assert lab.coverage == Coverage()


def test_a_job_that_is_cancelled_while_it_waits_does_not_count() -> None:
    lab = OneGpu({1: 1000.0, 2: 1000.0, 3: 1000.0})
    for number in (1, 2, 3):
        lab.submit(number, float(number))
    second = lab.store.get(2)
    lab.cycle(500.0, changed=(replace(second, state=JobState.CANCELLED, ended_at=500.0),))
    lab.cycle(1001.0)
    assert lab.coverage.of == 1  # Job 3, which starts in the place of job 2: before anybody thought.
    assert lab.coverage.early == 1


def test_whoever_asks_is_told_something_too() -> None:
    lab = OneGpu({1: 1000.0, 2: 1000.0})
    lab.submit(1, 1.0)
    waits = lab.submit(2, 2.0)
    before = lab.scheduler.queue_report.wait_of(waits.id)
    assert before.estimated_range is not None
    lab.cycle(1001.0)
    assert lab.coverage == Coverage(of=1)


def test_what_was_missed_moves_what_is_told_next() -> None:
    lab = OneGpu(dict.fromkeys(range(1, 42), 3000.0))
    lab.submit(1, 0.0)
    for number in range(2, 41):
        # What is known of run times stays as wrong as it was.
        lab.learn()
        lab.submit(number, 3000.0 * (number - 2) + 1)
        lab.cycle(3000.0 * (number - 1))
    assert lab.coverage.late >= 1
    assert lab.coverage.held > lab.coverage.of / 2
    lab.learn()
    now = 3000.0 * 39 + 1
    lab.submit(41, now)
    told = lab.scheduler.look(now).wait_of(41)
    low, _, high = told.foreseen
    assert high - now < 1500
    assert told.estimated_range[1] - now > 2 * (high - now)
    assert told.estimated_range[0] >= low


class Disk:
    """A store that is full when somebody says so."""

    def __init__(self) -> None:
        self.full = False
        self.kept: dict[tuple[int, float], ShownRange] = {}

    def load(self) -> Sequence[ShownRange]:
        return sorted(self.kept.values(), key=lambda one: (one.started_at is None, one.started_at))

    def write(self, shown: Sequence[ShownRange], over: Sequence[int]) -> None:
        if self.full:
            raise StorageFull("The disk is full.", remedy="Make room.")
        self.kept |= {(one.job_id, one.shown_at): one for one in shown}
        self.kept = {key: one for key, one in self.kept.items() if one.started_at is not None or one.job_id not in over}


def test_what_could_not_be_written_down_is_written_by_the_next_cycle() -> None:
    disk = Disk()
    lab = OneGpu({1: 1000.0, 2: 1000.0}, disk)
    lab.submit(1, 1.0)
    disk.full = True
    with pytest.raises(StorageFull):
        lab.submit(2, 2.0)
    disk.full = False
    lab.cycle(3.0)
    (told,) = disk.kept.values()
    assert (told.job_id, told.shown_at, told.started_at) == (2, 2.0, None)
    lab.cycle(1001.0)
    (told,) = disk.kept.values()
    assert (told.job_id, told.shown_at, told.started_at) == (2, 2.0, 1001.0)


def test_the_next_server_knows_how_often_ranges_held_and_who_was_told_what() -> None:
    disk = Disk()
    lab = OneGpu({1: 1000.0, 2: 5000.0, 3: 10.0}, disk)
    for number in (1, 2, 3):
        lab.submit(number, float(number))
    lab.cycle(1001.0)
    following = StartRanges(disk)
    following.recover()
    assert following.calibration.coverage == lab.coverage == Coverage(of=1)
    following.started(3, 6001.0)
    assert following.calibration.coverage == Coverage(of=2, late=1)


def test_nothing_is_kept_of_a_job_that_was_cancelled_while_it_waited() -> None:
    disk = Disk()
    lab = OneGpu({1: 1000.0, 2: 1000.0}, disk)
    for number in (1, 2):
        lab.submit(number, float(number))
    second = lab.store.get(2)
    assert len(disk.kept) == 1
    lab.cycle(500.0, changed=(replace(second, state=JobState.CANCELLED, ended_at=500.0),))
    assert disk.kept == {}

"""The one thing that a user may want to change."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from carrel.core.control.ports import JobFilter, JobStore
from carrel.core.control.weekly import Weekly, worth_changing
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Usage
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import GIB

DAY = 86400.0
NOW = 100 * DAY


class Ended:
    """A store of tasks that are over, of which each ran for `seconds`."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.advice: dict[int, str] = {}
        self.read = 0

    def ran(self, name: str, count: int, *, ago: float = DAY, seconds: float = 3600, gpus: int = 1, memory: int = 64) -> None:
        for _ in range(count):
            number = len(self.jobs) + 1
            ended = NOW - ago
            self.jobs.append(
                SimpleNamespace(id=number, name=name, attempt=1, started_at=ended - seconds, ended_at=ended,
                                suspended_seconds=0.0, state=JobState.COMPLETED, reason=Reason(code="Completed", message="Done."),
                                resources=Resources(gpus=gpus, memory=memory * GIB, time=3600))
            )  # fmt: skip

    def list(self, which: JobFilter, *, before: int | None, limit: int) -> Sequence[Any]:
        self.read += 1
        return [job for job in reversed(self.jobs) if which.name in (None, job.name)][:limit]

    def attempt(self, job_id: int, number: int) -> Any:
        job = self.jobs[job_id - 1]
        return SimpleNamespace(started_at=job.started_at, ended_at=job.ended_at, suspended_seconds=0.0,
                               usage=Usage(memory_peak=2 * GIB), advice=self.advice.get(job_id, ""))  # fmt: skip


@pytest.fixture
def ended() -> Ended:
    return Ended()


def told(ended: Ended) -> str:
    return worth_changing("ada", cast("JobStore", ended), NOW)


def test_the_name_that_took_most_gpu_time_comes_first(ended: Ended) -> None:
    ended.ran("little", 4, seconds=600)
    ended.ran("much", 4, seconds=7200)
    assert told(ended).startswith(
        "much (4 jobs in 7 days, 8.0 GPU-hours): The last 4 of this name took at most 2G of memory: `--m"
    )


def test_a_name_of_which_there_is_nothing_to_say_leaves_the_word_to_the_next(ended: Ended) -> None:
    ended.ran("well", 4, seconds=7200, memory=2)
    ended.ran("prepare", 4, seconds=60, gpus=0)
    assert told(ended).startswith("prepare (4 jobs in 7 days): The last 4 of this name took")
    ended.advice[4] = "Its GPU was busy for 3 % of 10 min."
    assert told(ended) == "well (4 jobs in 7 days, 8.0 GPU-hours): of job 4: Its GPU was busy for 3 % of 10 min."


def test_what_is_longer_ago_than_a_week_is_over(ended: Ended) -> None:
    ended.ran("train", 4, ago=8 * DAY)
    assert told(ended) == ""


def test_it_is_worked_out_once_a_day(ended: Ended) -> None:
    weekly = Weekly()
    ended.ran("train", 4)
    said = [weekly.of("ada", cast("JobStore", ended), NOW + at) for at in (0, 3600, DAY - 1)]
    assert said == [told(ended)] * 3
    before = ended.read
    weekly.of("ada", cast("JobStore", ended), NOW + DAY / 2)
    assert ended.read == before
    weekly.of("ada", cast("JobStore", ended), NOW + DAY)
    weekly.of("bob", cast("JobStore", ended), NOW)
    assert ended.read > before + 1

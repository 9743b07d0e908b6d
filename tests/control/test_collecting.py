"""Outputs that are stored later: how many jobs of one owner at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from scheduled import job

from carrel.core.control.collecting import Collecting
from carrel.core.control.ports import Collected
from carrel.core.domain.errors import Conflict, Unavailable
from carrel.core.domain.job import Job, JobState

JOB = job(1, "mallory", gpus=0, state=JobState.COMPLETED, attempt=1, node="slurm:cluster")


class Slow:
    """Directories in the hands of somebody who does not answer before they are told to."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Semaphore(0), threading.Event()

    def store(self, job: Job) -> Collected:
        if job.owner == "mallory":
            self.asked.release()
            self.go.wait()
        raise Unavailable("The deputy did not answer.")

    def remove(self, job: Job) -> None:
        raise AssertionError("nothing was stored")


def test_one_owner_does_not_take_all_threads_of_the_lab() -> None:
    slow = Slow()
    collecting = Collecting(None, slow)  # type: ignore[arg-type] # nothing is stored, and nothing is written down
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(collecting.collect, replace(JOB, id=number)) for number in range(1, 5)]
        for _ in waiting:
            slow.asked.acquire()
        for number in range(5, 50):
            with pytest.raises(Conflict, match="4 jobs of mallory"):
                collecting.collect(replace(JOB, id=number))
        with pytest.raises(Unavailable):
            collecting.collect(replace(JOB, id=50, owner="alice"))
        slow.go.set()
        for one in waiting:
            with pytest.raises(Unavailable):
                one.result()
    with pytest.raises(Unavailable):
        collecting.collect(replace(JOB, id=60))

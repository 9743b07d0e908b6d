"""Jobs for the tests of the store."""

from __future__ import annotations

from typing import Any

from carrel.core.control.ports import NewJob
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.lab.store import Store


def new_job(owner: str = "ada", **fields: Any) -> NewJob:
    usual: dict[str, Any] = {
        "kind": JobKind.TASK, "account": "default", "name": "train", "qos": "normal", "resources": Resources(), "retries": 0,
        "task": TaskSpec(entry_point="main", command="true", snapshot=""),
    }  # fmt: skip
    return NewJob(owner=owner, **{**usual, **fields})


def add_jobs(store: Store, *jobs: NewJob, now: float = 2.0) -> list[int]:
    """Submit these; returns their numbers."""
    return [
        store.jobs.submit(new, now=now, key=None, request=str(number), outbox=lambda _job: ()).job.id
        for number, new in enumerate(jobs)
    ]

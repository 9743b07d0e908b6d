"""A page of 50 jobs out of 100,000, through REST."""

from __future__ import annotations

import getpass
import json
import time
from pathlib import Path

import sqlalchemy as sa

from carrel import Client
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import TaskSpec
from carrel.lab.store import Database, Store
from carrel.lab.store.tables import jobs
from figure import Figure, median
from support.lab_process import start_lab

_JOBS = 100_000


def measure(scratch: Path) -> list[Figure]:
    home = scratch / "lab"
    start_lab(home, simulate_gpus=0).stop()
    _fill(home / "lab.db")
    lab = start_lab(home, simulate_gpus=0)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            return [
                median(f"listing 50 of {_JOBS:,} jobs", [_page(client, {}) for _ in range(30)], "ms", at_most=50),
                median("the same, of one state", [_page(client, {"states": ["FAILED"]}) for _ in range(30)], "ms", at_most=50),
            ]
    finally:
        lab.stop()


def _page(client: Client, arguments: dict[str, list[str]]) -> float:
    began = time.perf_counter()
    page = list(client.jobs(limit=50, **arguments))  # type: ignore[arg-type]
    assert len(page) == 50
    return 1000 * (time.perf_counter() - began)


def _fill(path: Path) -> None:
    spec = json.dumps(to_plain(TaskSpec(entry_point="main", command="true", snapshot="sha256:" + "0" * 64)))
    common = {
        "kind": "task",
        "owner": getpass.getuser(),
        "account": "default",
        "qos": "normal",
        "cpus": 1,
        "memory": 2**31,
        "gpus": 0,
    }
    rows = [
        {
            **common,
            "name": f"job{number}",
            "time": 3600,
            "state": "COMPLETED" if number % 10 else "FAILED",
            "reason": "Completed",
            "message": "The command ended with exit code 0.",
            "submitted_at": 1.0 + number,
            "ended_at": 2.0 + number,
            "spec": spec,
        }
        for number in range(_JOBS)
    ]
    store = Store(Database.at(path))
    with store.database.write() as connection:
        connection.execute(sa.insert(jobs), rows)
    store.close()

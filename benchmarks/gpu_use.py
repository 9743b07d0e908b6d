"""Reports of use over a year of a made-up lab: 1,000 users, 1,000,000 jobs, 5,000,000 cells, in SQLite.

Each report is made in a process of its own, as the server makes it, and its sums are compared with the database's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import sqlalchemy as sa

from carrel.core.control.gpu_use import GpuUse
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import Caller, Role, User
from carrel.core.gpu_use import Grouping
from carrel.lab.store import Database, Store
from carrel.lab.store.tables import attempts, cells, events, jobs
from figure import Figure

JOBS = 1_000_000
_USERS = 1_000
#: Of each session.
_CELLS = 100
YEAR = 365 * 86400.0
_BEGIN = 1_735_689_600.0  # 1 January 2025, a Wednesday
_ENDS = ("COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")
#: Rows of a table that are written at a time.
_MANY = 20_000
_ADMIN = Caller(user=User(subject="root", name="root", role=Role.ADMIN))
_USER = Caller(user=User(subject="user7", name="user7"))


def measure(scratch: Path) -> list[Figure]:
    """The figures."""
    path = scratch / "lab.db"
    fill(path, JOBS)
    return figures(path)


def figures(path: Path) -> list[Figure]:
    """Of the lab that `fill` has made there."""
    found = []
    for what, title, target in (
        ("user", f"report of a year, {JOBS:,} jobs of {_USERS:,} users, by user", 30),
        ("week", "the same, by week", 30),
        ("starts", "the same, how long jobs take to begin", None),
        ("mine", "one user's report of that year", 0.3),
        ("mine-starts", "the same, how long their jobs take to begin", None),
        ("recent", "everybody's of the last week of it, by user", None),
    ):
        asked = [sys.executable, __file__, "--report", what, str(path)]
        said = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
        found.append(Figure(name=title, value=said["seconds"], unit="s", spread=said["spread"], at_most=target))
        if target == 30:
            found.append(Figure(name="its memory at most", value=said["memory"], unit="MiB", at_most=1024))
    return found


def report(what: str, path: Path) -> dict[str, Any]:
    """Make one report, and compare what it says with what the database says."""
    store = Store(Database.at(path))
    use = GpuUse(store=store.gpu_use, clock=lambda: _BEGIN + YEAR)
    began, computed = time.perf_counter(), time.process_time()
    if what.endswith("starts"):
        classes = use.starts(_ADMIN if what == "starts" else _USER, begin=_BEGIN, end=None).times.classes
        spread = f"{sum(len(one.to_output) for one in classes.values()):,} with output"
    else:
        since = _BEGIN + YEAR - 7 * 86400 if what == "recent" else _BEGIN
        by = Grouping.WEEK if what == "week" else Grouping.USER
        sums = use.use(_USER if what == "mine" else _ADMIN, begin=since, end=None, by=by).sums
        spread = f"{len(sums.rows)} rows, {sums.total.attempts:,} attempts, {sums.total.cells:,} cells, "
        spread += f"{sums.total.all_held / 3600:,.0f} GPU-hours"
    seconds, computed = time.perf_counter() - began, time.process_time() - computed
    # Of this program alone; getrusage(2) has what its parent had before.
    (most,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    memory = int(most.split()[1]) / 1024
    spread = f"{computed:.1f} s of processor time; {spread}"
    if what in ("user", "week"):
        query = "SELECT sum(a.gpus * (t.ended_at - t.leased_at)) FROM attempts t JOIN jobs a ON a.id = t.job_id"
        with store.database.read() as connection:
            wanted = float(connection.execute(sa.text(query)).scalar_one())
        rows = sum(row.all_held for row in sums.rows.values())
        assert max(abs(rows - wanted), abs(sums.total.all_held - wanted)) < 1, (rows, sums.total.all_held, wanted)
        spread += f"; {abs(rows - wanted):.1g} s from the database's own sum"
    store.close()
    return {"seconds": seconds, "memory": memory, "spread": spread}


def begin_at(moment: float) -> None:
    """Let the year begin at another moment (Unix seconds)."""
    global _BEGIN
    _BEGIN = moment


def fill(path: Path, count: int) -> None:
    """A lab that has ended all its jobs: one of ten was tried twice, one of twenty is a session with a hundred cells."""
    store = Store(Database.at(path))
    for number in range(_USERS):
        store.people.add(User(subject=f"user{number}", name=f"user{number}", account=f"group{number % 40}"), now=_BEGIN)
    work = _work(count)
    while some := list(islice(work, _MANY)):
        with store.database.write() as connection:
            for place, table in enumerate((jobs, attempts, events, cells)):
                rows = [row for one in some for row in one[place]]
                if rows:
                    connection.execute(sa.insert(table), rows)
    store.close()


#: What no report asks for.
_REST = json.dumps({"attempt": 1, "process": "1-1", "gpu_type": "h100", "gpu_memory": 80 * 2**30, "outcome": "ok"})


def _work(count: int) -> Iterator[tuple[list[dict[str, Any]], ...]]:
    random = Random(7)
    spec = json.dumps(to_plain(TaskSpec(entry_point="main", command="python train.py", snapshot="sha256:" + "0" * 64)))
    nothing = {"reason": "", "message": "The command ended."}
    for number in range(1, count + 1):
        submitted = _BEGIN + (YEAR - 4 * 86400) * number / count
        session = random.random() < 0.05
        gpus = 0 if session else random.choice((1, 1, 1, 2, 4, 8))
        tries, at, starts = [], submitted, list[float]()
        for attempt in range(1, 2 + (random.random() < 0.1)):
            leased = at + min(random.expovariate(1 / 1800), 86400)
            started = leased + random.uniform(0, 20)
            starts.append(started)
            at = started + min(random.expovariate(1 / 3600), 36 * 3600)
            state = "CANCELLED" if session else random.choice(_ENDS)
            tries.append({"job_id": number, "number": attempt, "node": f"node{number % 50}", "devices": "[]", "state": state,
                          "leased_at": leased, "started_at": started, "ended_at": at} | nothing)  # fmt: skip
        who, began = random.randrange(_USERS), starts[0]
        job = {"id": number, "kind": "session" if session else "task", "owner": f"user{who}", "account": f"group{who % 40}",
               "name": "train", "qos": random.choice(("normal", "batch", "short")), "cpus": 4, "memory": 2**34, "gpus": gpus,
               "time": 86400, "state": tries[-1]["state"], "submitted_at": submitted, "started_at": tries[-1]["started_at"],
               "ended_at": at, "attempt": len(tries), "spec": spec} | nothing  # fmt: skip
        said = [{"job_id": number, "owner": f"user{who}", "at": began, "type": "state", "data": "{}"}] * 3
        told = {"at": submitted, "type": "queue", "data": '{"position":1,"reason":"Resources"}'}
        logs = [{"at": began + 2 + n, "type": "log", "data": f'{{"attempt":1,"offset":{80 * n},"size":80}}'}
                for n in range(4)]  # fmt: skip
        cell = {"broker": "b", "session": number, "computed": 9.0, "gpus": 1, "value": _REST}
        asked = [began + 12 * n for n in range(_CELLS if session else 0)]
        lent = [
            cell | {"number": _CELLS * number + n, "asked_at": since, "granted_at": since + 1, "seen_at": since + 10}
            for n, since in enumerate(asked)
        ]
        yield [job], tries, [said[0] | told, *said, *(said[0] | log for log in logs)], lent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--report", choices=("user", "week", "starts", "mine", "mine-starts", "recent"))
    parser.add_argument("--fill", type=int, metavar="JOBS")
    chosen = parser.parse_args()
    if chosen.fill:
        fill(chosen.path, chosen.fill)
    if chosen.report:
        print(json.dumps(report(chosen.report, chosen.path)))

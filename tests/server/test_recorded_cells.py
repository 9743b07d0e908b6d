"""When cells had GPUs: a real lab writes it down, over the death of server, broker and kernel, and writes a file of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Denied
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser

#: Needs a GPU, says where it runs, and computes until it is told to go.
CELL = """\
# carrel: gpus=1
import os, pathlib, time
pathlib.Path({here!r}).write_text(str(os.getpid()))
while not pathlib.Path({go!r}).exists(): time.sleep(0.02)
"""


SIMULATE = ("simulate", "--notebooks")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[list[LabProcess]]:
    """The lab that runs now, in a list: a test may replace it. It has one GPU."""
    box = [start_lab(tmp_path / "lab", "--cpus", "16", simulate_gpus=1)]
    yield box
    box[0].end_jobs()
    box[0].stop()


def recorded(home: Path, number: int) -> Sequence[RecordedCell]:
    """So many cells, when the lab has them."""

    def found() -> list[RecordedCell] | None:
        with Client(home=home) as client:
            cells = [cell for page in client.cells("all") for cell in page.cells]
        return cells if len(cells) >= number else None

    cells = wait_until(found, f"{number} cells")
    assert len(cells) == number
    return cells


def command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "carrel.cli.main", *words, "--home", str(home)]


def carrel(home: Path, *words: str) -> str:
    return subprocess.run(command(home, *words), check=True, capture_output=True, text=True).stdout


def charged(home: Path) -> float:
    """GPU-seconds that fair share knows of."""
    with Client(home=home) as client:
        return sum(row.hours for row in client.share().standings) * 3600


def rows_of(text: str) -> list[dict[str, Any]]:
    """What `carrel simulate --notebooks --json` says of the notebooks."""
    rows: list[dict[str, Any]] = json.loads(text)["notebooks"]
    return rows


def open_session(client: Client) -> tuple[int, SessionBrowser]:
    session = client.start_session(SessionRequest()).job.id
    wait_until(lambda: client.session(session).ready, "the session")
    return session, SessionBrowser(client.open_session(session))


def test_two_sessions_run_cells_and_the_lab_writes_down_who_had_the_gpu_when(lab: list[LabProcess], tmp_path: Path) -> None:
    home = tmp_path / "lab"
    here, go = tmp_path / "here", tmp_path / "go"
    with Client(home=home) as client:
        assert next(iter(client.cells("all"))).cells == ()
        refused = subprocess.run(command(home, *SIMULATE, "lab"), capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "The lab has recorded 0 cells with a GPU that are over." in refused.stderr
        assert "Run cells that use a GPU in notebooks" in refused.stderr
        (one, first), (two, second) = open_session(client), open_session(client)
        with first, second:
            kernel, other = first.start_kernel(), second.start_kernel()
            cell = kernel.send(CELL.format(here=str(here), go=str(go)))
            wait_until(here.exists, "the cell to compute")
            waits = other.send("# carrel: gpus=1\n1")
            wait_until(lambda: client.gpus().queue, "the other cell to wait")
            go.touch()
            assert kernel.result(cell).status == other.result(waits).status == "ok"
            assert other.execute("# carrel: gpus=1\n2").status == "ok"
            kernel.close()
            other.close()
        held, waited, again = recorded(home, 3)
        (row,) = client.report_sessions().rows
        assert (row.name, row.sessions, row.cells, row.unused) == (held.owner, 2, 3, 0)
        assert row.gpu_seconds == pytest.approx(held.computed + waited.computed + again.computed)
        cost = client.job(one).cells
        assert cost is not None
        assert (cost.cells, cost.gpu_seconds) == (1, held.computed)
        assert "one had a GPU, " in carrel(home, "show", str(one))
        assert [cell.session for cell in (held, waited, again)] == [one, two, two]
        assert held.process != waited.process == again.process
        for cell in (held, waited, again):
            assert cell.returned_at is not None
            assert cell.asked_at <= cell.granted_at <= cell.granted_at + cell.computed <= cell.returned_at + 0.01
            assert (cell.gpus, cell.gpu_memory) == (1, client.gpus().devices[0].memory)
        assert held.asked_at < waited.asked_at < (held.returned_at or 0.0) <= waited.granted_at + 0.01, "it had to wait"
        assert next(iter(client.cells("all", since=again.asked_at))).cells == (again,)
        used = sum((cell.returned_at or 0.0) - cell.granted_at for cell in (held, waited, again))
        wait_until(lambda: charged(home) == pytest.approx(used, abs=0.2), "the charge")
        wait_until(lambda: [row.name for row in client.report_use(by="kind").rows if row.lent] == ["session"], "the report of it")
    names = carrel(home, "gpus", "--cells").splitlines()
    assert names[0] == (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,session,user,granted,returned,gpu_type"
    )
    table = [dict(zip(names[0].split(","), line.split(","), strict=True)) for line in names[1:]]
    assert [row["session"] for row in table] == [f"{one}.1", f"{two}.1", f"{two}.1"]
    assert float(table[1]["submit_time"]) == pytest.approx(waited.asked_at - held.asked_at, abs=0.001)
    assert float(table[1]["duration"]) == pytest.approx(waited.computed, abs=0.001)
    without = carrel(home, "gpus", "--cells", "--no-names").splitlines()[1:]
    assert [line.split(",")[7:9] for line in without] == [
        ["session-1", "user-1"],
        ["session-2", "user-1"],
        ["session-2", "user-1"],
    ]
    assert len(json.loads(carrel(home, "gpus", "--cells", "--json"))["cells"]) == 3
    simulated(home, tmp_path / "cells.csv", [held, waited, again])
    lab[0].kill()
    lab[0] = start_lab(home, "--cpus", "16", simulate_gpus=1)
    wait_until(lambda: charged(home) == pytest.approx(used, abs=0.2), "the charge after a kill")
    lab[0].end_jobs()
    not_for_others(home, lab[0].url)


def not_for_others(home: Path, url: str) -> None:
    """Whoever is no operator is told of their own cells alone."""
    token = json.loads(carrel(home, "user", "add", "bob", "--without-isolation", "--json"))["token"]
    with Client(url=url, token=token) as client:
        assert next(iter(client.cells())).cells == ()
        with pytest.raises(Denied, match="may not read the recorded cells of others"):
            next(iter(client.cells("all")))
    bob = {**os.environ, "CARREL_URL": url, "CARREL_TOKEN": token, "CARREL_HOME": "/nonexistent"}
    words = [sys.executable, "-m", "carrel.cli.main", *SIMULATE, "lab"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False, env=bob)
    assert refused.returncode == 2
    assert "The lab has recorded of your sessions 0 cells with a GPU that are over." in refused.stderr


def simulated(home: Path, file: Path, cells: Sequence[RecordedCell]) -> None:
    """The lab's cells, and the file of them, give the numbers of what ran: two cells wanted the GPU at one time."""
    ran = sum(cell.computed for cell in cells) / 3600
    (row,) = rows_of(carrel(home, *SIMULATE, "lab", "--json"))
    assert (row["mode"], row["gpus"], row["gpus_for_p95_wait_of_0_seconds"]) == ("carrel", 1, 2), "the lab has one"
    assert row["gpu_hours_of_cells"] == pytest.approx(ran, abs=1e-6)
    shown = carrel(home, *SIMULATE, "lab")
    assert shown.startswith("Notebooks of this lab, on 1 GPU\n")
    assert "The lab has recorded 3 cells from " in shown
    assert rows_of(carrel(home, *SIMULATE, "--last", "1h", "--json")) == [row]
    assert carrel(home, "gpus", "--cells", "--last", "1h") == carrel(home, "gpus", "--cells")
    file.write_text(carrel(home, "gpus", "--cells"))
    for gpus in ("1x1", "1x2"):
        assert rows_of(carrel(home, *SIMULATE, "lab", "--gpus", gpus, "--json")) == rows_of(
            carrel(home, *SIMULATE, str(file), "--gpus", gpus, "--json")
        )


def test_cells_that_end_while_server_or_broker_are_away(lab: list[LabProcess], tmp_path: Path) -> None:
    home = tmp_path / "lab"
    with Client(home=home) as client:
        _, browser = open_session(client)
        with browser:
            kernel = browser.start_kernel()
            here, go = tmp_path / "here", tmp_path / "go"
            done = CELL.format(here=str(here), go=str(go)) + f"pathlib.Path({str(tmp_path / 'done')!r}).touch()\n"
            kernel.send(done)
            wait_until(here.exists, "the cell to compute")
            lab[0].kill()
            go.touch()
            wait_until((tmp_path / "done").exists, "the end of the cell")
    lab[0] = start_lab(home, "--cpus", "16", simulate_gpus=1)
    (first,) = recorded(home, 1)
    assert first.returned_at is not None
    assert first.returned_at >= (tmp_path / "done").stat().st_mtime - 0.1

    with Client(home=home) as client:
        _, browser = open_session(client)
        with browser:
            kernel = browser.start_kernel("other.ipynb")
            here = tmp_path / "there"
            kernel.send(CELL.format(here=str(here), go=str(tmp_path / "never")))
            pid = wait_until(lambda: here.exists() and here.read_text(), "the cell to compute")
            granted = time.time()
            broker = json.loads((home / "broker" / "broker.lock").read_text())["pid"]
            os.kill(broker, signal.SIGKILL)
            os.kill(int(pid), signal.SIGKILL)
            _, second = recorded(home, 2)
            assert second.returned_at is None, "nobody saw when it ended"
            assert second.seen_at <= granted
            assert next(iter(client.cells("all"))).missing == 0

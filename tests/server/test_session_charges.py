"""What the cells of a session borrow is charged in a real lab: as it grows, once, and over restarts of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser

WAITING = """\
# carrel: gpus=2
import pathlib, time
pathlib.Path({here!r}).touch()
while not pathlib.Path({go!r}).exists(): time.sleep(0.05)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[list[LabProcess]]:
    """The lab that runs now, in a list: the test replaces it."""
    box = [start_lab(tmp_path / "lab", "--cpus", "16", simulate_gpus=2)]
    yield box
    box[0].stop()


def charged(home: Path) -> float:
    """GPU-seconds, as the API says."""
    with Client(home=home) as client:
        return sum(row.hours for row in client.share().standings) * 3600


def printed(home: Path) -> float:
    """GPU-seconds, as `carrel share` says."""
    words = [sys.executable, "-m", "carrel.cli.main", "share", "--json", "--home", str(home)]
    share = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return sum(float(row["hours"]) for row in share["standings"]) * 3600


def lent(client: Client) -> dict[str, float]:
    """GPU-seconds that each kind of jobs borrowed, as a report says; no job here holds any."""
    report = client.report_use(by="kind")
    assert report.total.held == 0
    assert report.total.sessions > 0
    return {row.name: row.lent for row in report.rows}


def test_cells_are_charged_once_however_often_the_server_is_restarted(lab: list[LabProcess], tmp_path: Path) -> None:
    home = tmp_path / "lab"
    here, go = tmp_path / "here", tmp_path / "go"
    with Client(home=home) as client:
        session = client.start_session(SessionRequest(gpus=2)).job.id
        wait_until(lambda: client.session(session).ready, "the session")
        assert charged(home) == 0, "a session that borrows nothing costs nothing"
        with SessionBrowser(client.open_session(session)) as browser:
            kernel = browser.start_kernel()
            cell = kernel.send(WAITING.format(here=str(here), go=str(go)))
            wait_until(here.exists, "the cell to run")
            early = wait_until(lambda: charged(home), "a charge while the cell runs")
            go.touch()
            assert kernel.result(cell).status == "ok"
            (used,) = wait_until(lambda: [row.gpu_seconds for row in client.gpus().tenants if row.cells], "the lease's end")
            assert early <= used + 0.05
            wait_until(lambda: charged(home) == pytest.approx(used, abs=0.05), "the whole charge")
            wait_until(lambda: lent(client) == pytest.approx({"session": used}, abs=0.05), "the report of it")
            kernel.close()
    assert printed(home) == pytest.approx(used, abs=0.05)

    lab[0].kill()
    lab[0] = start_lab(home, "--cpus", "16", simulate_gpus=2)
    wait_until(lambda: charged(home) == pytest.approx(used, abs=0.05), "the charge after a kill")

    with Client(home=home) as client:
        client.cancel(session)
        client.wait(session)
        assert client.record(session)["attempts"][0]["lease_seconds"] == pytest.approx(used, abs=0.05)
    assert lab[0].stop() == 0
    lab[0] = start_lab(home, "--cpus", "16", simulate_gpus=2)
    assert charged(home) == pytest.approx(used, abs=0.05)
    assert printed(home) == pytest.approx(used, abs=0.05)

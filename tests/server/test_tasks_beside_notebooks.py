"""Tasks on GPUs on which idle notebooks left their state, where host memory cannot take all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest, SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import SessionBrowser

CELL = """\
# carrel: gpus=1
%gpu simulate {size}G
import pathlib, time
pathlib.Path({here!r}).touch()
while not pathlib.Path({go!r}).exists(): time.sleep(0.05)
"""

#: Inputs come while their job has its place, where nothing of them is kept: so a test can make preparing last.
VARIABLES = {"CARREL_LINGER_TIME": "1s", "CARREL_INPUT_CACHE": "1K"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """Two simulated GPUs, and 4 GiB of host memory for GPU state."""
    options = ("--cpus", "16", "--memory", "8G")
    found = start_lab(tmp_path_factory.mktemp("beside") / "lab", *options, simulate_gpus=2, variables=VARIABLES)
    yield found
    found.end_jobs()
    found.stop()


def test_a_task_waits_in_line_for_a_gpu_that_can_be_cleared_and_is_overtaken_by_nobody(lab: LabProcess, tmp_path: Path) -> None:
    """An idle kernel has 3 GiB on each GPU; one of the two states can go to host memory, not both."""
    with Client(home=lab.home) as client:
        session = client.start_session(SessionRequest(gpus=1, memory="512M")).job.id
        wait_until(lambda: client.session(session).ready, "the session")
        with SessionBrowser(client.open_session(session)) as browser:
            kernels = [browser.start_kernel(f"{name}.ipynb") for name in "ab"]
            go = tmp_path / "go"
            cells = []
            for number, kernel in enumerate(kernels):
                here = tmp_path / f"here{number}"
                cells.append(kernel.send(CELL.format(size=3, here=str(here), go=str(go))))
                wait_until(here.exists, "the cell to run")
            go.touch()
            assert [kernel.result(cell).status for kernel, cell in zip(kernels, cells, strict=True)] == ["ok", "ok"]
            everywhere = sorted([device.uuid] for device in client.gpus().devices)
            wait_until(lambda: sorted(row.home for row in client.gpus().tenants if row.kernel) == everywhere, "one on each GPU")

            def submit(name: str) -> int:
                script = tmp_path / name / "work.sh"
                script.parent.mkdir()
                script.write_text(f"echo {name} >> {tmp_path}/order; while [ ! -e {tmp_path}/{name}.go ]; do sleep 0.05; done")
                return client.submit_project(script, resources=ResourceRequest(gpus=1, memory="64M")).id

            first = submit("first")
            wait_until(lambda: client.job(first).state == "RUNNING", "the first task")
            second, third = submit("second"), submit("third")
            held = wait_until(lambda: _told(client.job(second)), "the reason")
            assert "not offered: GPU " in held
            assert "(3G of idle sessions' GPU state would have to move, host memory has room for 1G more)" in held
            assert client.job(second).state == client.job(third).state == "PENDING"
            (tmp_path / "first.go").touch()
            wait_until(lambda: client.job(second).state == "RUNNING", "the second task, where the first was")
            assert client.job(third).state == "PENDING"
            for name in ("second", "third"):
                (tmp_path / f"{name}.go").touch()
            assert [client.wait(one, timeout=PATIENCE).state for one in (first, second, third)] == ["COMPLETED"] * 3
            assert (tmp_path / "order").read_text().split() == ["first", "second", "third"]
            for kernel in kernels:
                kernel.close()
        _end(client, session)


def _told(job: JobDetail) -> str:
    return job.message if job.reason in ("Resources", "Priority") else ""


def _end(client: Client, session: int) -> None:
    client.cancel(session)
    client.wait(session, timeout=PATIENCE)

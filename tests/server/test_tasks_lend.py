"""Tasks that give their GPU to cells for a while: a real lab, a real task and a real kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest, SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

#: Says that it runs, and computes until it may stop.
CELL = """\
# carrel: gpus=1
import pathlib, time
pathlib.Path({here!r}).touch()
while not pathlib.Path({go!r}).exists(): time.sleep(0.05)
"""
#: One line for each step; each step waits for a file, so that nothing here depends on time.
TASK = 'echo step >> "$WITNESS"; while [ ! -e "$WITNESS.go" ]; do echo step >> "$WITNESS"; sleep 0.05; done'


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """One simulated GPU."""
    variables = {"CARREL_LINGER_TIME": "1s", "CARREL_TASK_TURN": "1s", "CARREL_TASK_SHARE": "1"}
    found = start_lab(tmp_path_factory.mktemp("lend") / "lab", "--cpus", "16", simulate_gpus=1, variables=variables)
    yield found
    found.end_jobs()
    found.stop()


@pytest.fixture(scope="module")
def kernel(lab: LabProcess) -> Iterator[Kernel]:
    with Client(home=lab.home) as client:
        session = client.start_session(SessionRequest(gpus=1, memory="512M")).job.id
        wait_until(lambda: client.session(session).ready, "the session")
        with SessionBrowser(client.open_session(session)) as browser:
            kernel = browser.start_kernel("a.ipynb")
            yield kernel
            kernel.close()
        client.cancel(session)
        client.wait(session, timeout=PATIENCE)


def shown_in(lab: LabProcess) -> dict[str, str]:
    return {**os.environ, "CARREL_HOME": str(lab.home)}


def submit(client: Client, directory: Path, script: str = TASK, **more: object) -> int:
    path = directory / "task" / "work.sh"
    path.parent.mkdir()
    path.write_text(script)
    variables = {"WITNESS": str(directory / "witness")}
    resources = ResourceRequest(gpus=1, memory="64M")
    return client.submit_project(path, resources=resources, variables=variables, **more).id  # type: ignore[arg-type]


@pytest.mark.gate
def test_a_cell_computes_while_the_task_is_paused_and_the_task_goes_on(lab: LabProcess, kernel: Kernel, tmp_path: Path) -> None:
    here, go, witness = tmp_path / "here", tmp_path / "go", tmp_path / "witness"
    with Client(home=lab.home) as client:
        task = submit(client, tmp_path)
        wait_until(witness.exists, "the task to compute")
        cell = kernel.send(CELL.format(here=str(here), go=str(go)))
        wait_until(here.exists, "the cell to run")
        paused = wait_until(lambda: (job := client.job(task)).reason == "GpuLent" and job, "the task to be shown as paused")
        assert (paused.state, paused.suspended_at is None) == ("RUNNING", False)
        wait_until(lambda: {row.job: row.state for row in client.gpus().leases}.get(task) == "paused", "its lease to be shown so")
        steps = witness.read_text()
        assert witness.read_text() == steps, "it computes nothing meanwhile"
        go.touch()
        assert kernel.result(cell).status == "ok"
        wait_until(lambda: witness.read_text() != steps, "the task to go on")
        assert wait_until(lambda: (job := client.job(task)).reason == "Running" and job).suspended_seconds > 0
        (tmp_path / "witness.go").touch()
        ended = client.wait(task, timeout=PATIENCE)
        assert (ended.state, ended.attempt) == ("COMPLETED", 1)
        log = b"".join(client.log(task)).decode()
        assert "Cells of notebooks have its GPUs for a while; it goes on where it is." in log
        assert "Cells of notebooks had its GPUs once, for " in log
        command = [sys.executable, "-m", "carrel.cli.main", "show", str(task)]
        shown = subprocess.run(command, env=shown_in(lab), capture_output=True, text=True, check=True)
        assert "once, " in shown.stdout
        assert " in all, for 1 person, while others had its GPUs or its place" in shown.stdout
        lately = wait_until(
            lambda: (
                (rows := {(row.job == task, row.what) for row in client.gpus().hour if row.until is not None})
                >= {(True, "computes"), (True, "paused"), (False, "computes")}
                and rows
            ),
            "the last hour to tell it",
        )
        assert (False, "paused") not in lately
        shown = subprocess.run([*command[:3], "gpus", "--history"], env=shown_in(lab), capture_output=True, text=True, check=True)
        assert f"job {task} (" in shown.stdout.split("The last hour")[1]


def test_all_processes_of_a_task_stand_still_and_go_on(lab: LabProcess, kernel: Kernel, tmp_path: Path) -> None:
    here, go = tmp_path / "here", tmp_path / "go"
    with Client(home=lab.home) as client:
        task = submit(client, tmp_path, tasks_per_node=3, script=TASK.replace('"$WITNESS"', '"$WITNESS.$RANK"'))
        witnesses = [tmp_path / f"witness.{rank}" for rank in range(3)]
        wait_until(lambda: all(witness.exists() for witness in witnesses), "all of them to compute")
        cell = kernel.send(CELL.format(here=str(here), go=str(go)))
        wait_until(here.exists, "the cell to run")
        wait_until(lambda: client.job(task).reason == "GpuLent", "the task to be shown as paused")
        steps = [witness.read_text() for witness in witnesses]
        assert [witness.read_text() for witness in witnesses] == steps, "none of them computes meanwhile"
        go.touch()
        assert kernel.result(cell).status == "ok"
        wait_until(lambda: all(witness.read_text() != before for witness, before in zip(witnesses, steps, strict=True)))
        (tmp_path / "witness.go").touch()
        assert client.wait(task, timeout=PATIENCE).state == "COMPLETED"


def test_a_task_whose_state_is_lost_on_the_way_back_is_in_line_again_but_not_for_ever(tmp_path: Path) -> None:
    """Each way back of a simulated state fails here, and the two do not fit beside each other."""
    variables = {"CARREL_TASK_TURN": "1s", "CARREL_TASK_SHARE": "1", "CARREL_SIMULATE_MEMORY": "3G", "CARREL_LINGER_TIME": "1s"}
    variables["CARREL_SIMULATE_FAULTS"] = "lost=1"
    lab = start_lab(tmp_path / "lab", "--cpus", "16", simulate_gpus=1, variables=variables)
    try:
        with Client(home=lab.home) as client:
            session = client.start_session(SessionRequest(gpus=1, memory="512M")).job.id
            wait_until(lambda: client.session(session).ready, "the session")
            task = submit(client, tmp_path)
            wait_until((tmp_path / "witness").exists, "the task to compute")
            with SessionBrowser(client.open_session(session)) as browser:
                for attempt in (1, 2, 3):
                    here, go = tmp_path / f"here{attempt}", tmp_path / f"go{attempt}"
                    wait_until(lambda: (job := client.job(task)).attempt == attempt and job.state == "RUNNING", "it to compute")  # noqa: B023
                    kernel = browser.start_kernel(f"{attempt}.ipynb")
                    cell = kernel.send(CELL.format(here=str(here), go=str(go)))
                    wait_until(here.exists, "the cell to run")
                    go.touch()
                    assert kernel.result(cell).status == "ok"
                    kernel.close()
            ended = client.wait(task, timeout=PATIENCE)
            lost = [(attempt.state, attempt.reason) for attempt in ended.attempts]
            assert lost == [("PREEMPTED", "GpuStateLost")] * 2 + [("FAILED", "GpuStateLost")]
            assert "3 times in a row. With --no-preempt" in ended.message
    finally:
        lab.end_jobs()
        lab.stop()

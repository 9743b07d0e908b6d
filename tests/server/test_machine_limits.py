"""What the kernel counts for the lab's Unix user is used up: jobs wait for it, and do not fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

#: Runs a lab in a user namespace, which has limits of its own.
_OWN_LIMITS = ("unshare", "--user", "--map-root-user", sys.executable)


def allow(lab: LabProcess, namespaces: int) -> None:
    inside = ["nsenter", f"--target={lab.process.pid}", "--user", "--preserve-credentials"]
    subprocess.run([*inside, "sh", "-c", f"echo {namespaces} > /proc/sys/user/max_user_namespaces"], check=True)


@pytest.mark.gate
def test_a_job_waits_until_there_are_namespaces_again(tmp_path: Path) -> None:
    if why_no_namespaces() or shutil.which("nsenter") is None:
        pytest.skip("This machine has no namespaces for us.")
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir(mode=0o700)
    project.mkdir()
    (home / "carrel.toml").write_text('tracking = false\nisolation = "kernel"\n')
    (project / "stay.py").write_text("import time; time.sleep(600)")
    (project / "go.py").write_text("print('gone')")
    lab = start_lab(home, simulate_gpus=0, python=_OWN_LIMITS)
    with Client(home=home) as client:
        stays = client.submit_project(project, script="stay.py").id
        wait_until(lambda: client.job(stays).state == "RUNNING", "it to run")
        allow(lab, 1)
        goes = client.submit_project(project, script="go.py").id
        waiting = wait_until(
            lambda: (job := client.job(goes)).state == "PENDING" and job.attempts and job, "it to wait for namespaces"
        )
        assert waiting.reason == waiting.attempts[0].reason == "MachineLimit"
        assert "namespaces" in waiting.message
        assert "max_user_namespaces is 1" in waiting.message
        assert "disk" not in waiting.message
        allow(lab, 100)
        assert client.wait(goes, timeout=PATIENCE).state == "COMPLETED"
        client.cancel(stays)
        client.wait(stays, timeout=PATIENCE)
    lab.stop()

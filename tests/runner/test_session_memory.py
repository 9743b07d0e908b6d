"""A session that uses too much memory loses one process, and JupyterLab is told why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.core.domain.resources import Resources
from carrel.node.runner.session import SessionMemory
from carrel.testing.builders import LabHome, make_launch

pytestmark = pytest.mark.quick


def test_the_largest_process_is_ended_and_its_user_reads_why(tmp_path: Path) -> None:
    launch = make_launch(LabHome(tmp_path), "true", job_id=1, resources=Resources(memory=4 * 1024**3))
    session = SessionMemory(launch, None)
    small, large = (
        subprocess.Popen(
            [sys.executable, "-Ic", f"import sys; x = bytearray({size} * 2**20); print(1, flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for size in (1, 50)
    )
    for process in (small, large):
        process.stdout.readline()
    said = session.shed([small.pid, large.pid], 5 * 1024**3)
    assert large.wait() == -9
    assert small.poll() is None
    small.communicate()
    large.communicate()
    assert said.startswith(f"Process {large.pid} (")
    assert "was ended: together 5G of memory were in use, and this session asked for 4G." in said
    assert said.endswith("or start a session with more: --memory 8G.")
    assert json.loads(os.read(session.read_end, 4096)) == {"memory": said}
    assert session.shed([], 5 * 1024**3) is None

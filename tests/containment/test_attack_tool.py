"""`tools/attack.py`, with which administrators attack their own lab."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.testing.waiting import PATIENCE
from support.lab_process import start_lab
from support.namespaces import why_no_namespaces

TOOL = Path(__file__).parents[2] / "tools" / "attack.py"


def attack(home: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, TOOL, "--home", home]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/", env=dict(os.environ))


@pytest.mark.gate
@pytest.mark.skipif(bool(why_no_namespaces()), reason="This machine has no namespaces for us.")
def test_a_lab_with_walls_repels_every_attempt(tmp_path: Path) -> None:
    (tmp_path / "carrel.toml").write_text('isolation = "kernel"\ntracking = false\n')
    lab = start_lab(tmp_path, simulate_gpus=1)
    done = attack(tmp_path)
    lab.stop()
    *lines, last = done.stdout.splitlines()
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert len(lines) > 60
    assert all(line.startswith("repelled ") for line in lines)
    assert f"repelled   token and secret: read {tmp_path / 'token'}" in lines
    assert last == f"All {len(lines)} attempts were repelled."


@pytest.mark.parametrize(("settings", "why"), [('isolation = "none"\n', "This lab has no walls"), (None, "is no lab's home")])
def test_nothing_is_tried_where_there_are_no_walls(tmp_path: Path, settings: str | None, why: str) -> None:
    if settings is not None:
        (tmp_path / "carrel.toml").write_text(settings)
    done = attack(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr

"""Scripts that use Optuna themselves run over the executor: those of docs/sweeps.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
SCRIPTS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.gate
@pytest.mark.parametrize(("script", "trials"), list(zip(SCRIPTS, (20, 12), strict=True)), ids=["ask", "optimize"])
def test_a_script_of_the_page_runs(lab: LabProcess, tmp_path: Path, script: str, trials: int) -> None:
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "CARREL_HOME": str(lab.home)}
    command = [sys.executable, "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=4 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{trials} {{'x': ")

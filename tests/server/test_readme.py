"""The commands of the README, in their order, in a lab of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.lab_process import start_lab

ROOT = Path(__file__).parents[2]
SCRIPT = """# /// script
# dependencies = ["idna"]
# ///
import os, pathlib, sys, idna
print(sys.argv[1:], os.environ["CUDA_VISIBLE_DEVICES"])
"""


def commands() -> list[list[str]]:
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^\$ ((?:carrel|mlflow) .*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.gate
@pytest.mark.mlflow
def test_the_commands_of_the_readme_do_what_they_say(tmp_path: Path) -> None:
    assert commands()[0] == ["carrel", "up"]
    lab = start_lab(tmp_path / "home", tracking=True, simulate_gpus=1)
    here = tmp_path / "here"
    here.mkdir()
    shutil.copytree(ROOT / "examples" / "digits", here / "examples" / "digits")
    (here / "train.py").write_text(SCRIPT)
    environment = {
        **os.environ,
        "CARREL_HOME": str(lab.home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    said: dict[str, str] = {}
    try:
        for words in commands()[1:]:
            done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
            said[shlex.join(words)] = done.stdout
        lab.end_jobs()
    finally:
        lab.stop()
    assert "epoch 5/5" in said["carrel run examples/digits -P epochs=5"]
    assert "['--lr', '0.1'] SIM-" in said["carrel run train.py --gpus 1 --time 2h -- --lr 0.1"]
    assert "baseline" in said["carrel ps"]
    assert "accuracy" in said["carrel logs -f 3"], "logs of job 3, which the submit before it made"
    assert (here / "results" / "outputs" / "metrics.json").exists()
    assert '"environment_lock_text"' in said["carrel record 3 --json"]

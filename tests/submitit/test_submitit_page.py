"""The examples of docs/submitit.md run, and its table has every parameter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.client.submitit.parameters import _REFUSED, known
from support.lab_process import LabProcess

PAGE = (Path(__file__).parents[2] / "docs" / "submitit.md").read_text()


@pytest.mark.gate
def test_the_examples_run(lab: LabProcess, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    said = []
    for block in blocks:
        prefix = "carrel_" if "carrel import" not in block else ""
        program = block.replace('folder="submitit_log"', f'folder="submitit_log", {prefix}requirements=[]')
        assert program != block
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert re.fullmatch(r"\d+ 12 adding\n\n", said[0])
    assert said[1:] == ["[11, 22, 33]\n", "10\n"]


@pytest.mark.quick
def test_every_parameter_is_on_the_page() -> None:
    table = PAGE.partition("## Parameters")[2].partition("## Checkpoints")[0]
    same = {"job_name", "ntasks_per_node", "nodes", "name", "tasks_per_node", "gpus_per_node", "cpus_per_task", "mem_gb"}
    same |= {"timeout_min", "stderr_to_stdout", "setup", "signal_delay_s", "qos", "partition", "account", "dependency"}
    for name in {*known(), *_REFUSED}:
        plain = name.partition("_")[2] if name.startswith(("slurm_", "local_", "carrel_")) else name
        assert f"`{name}`" in table or f"`{plain}`" in table or plain in same, name

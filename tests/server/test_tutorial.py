"""The hour of docs/tutorial.md, command by command and cell by cell, in a lab of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from carrel.client import Client
from carrel.core.domain.sweep import SweepState
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import start_lab
from support.notebook_client import SessionBrowser

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
CELLS = [text.rstrip("\n") for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
TAGS = {0: ["parameters"], 1: ["skip-execution"]}


def commands() -> list[str]:
    return re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)


def write_notebook(file: Path) -> None:
    """What a person has saved in JupyterLab."""
    cells = [
        {"cell_type": "code", "id": f"cell-{number}", "execution_count": None, "outputs": [], "source": text}
        | {"metadata": {"tags": TAGS.get(number, [])}}
        for number, text in enumerate(CELLS)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    file.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}))


def work_in_jupyterlab(url: str) -> str:
    """Run the cells one after the other; return what the one with the GPU printed."""
    with SessionBrowser(url) as browser:
        kernel = browser.start_kernel("fit.ipynb")
        results = [kernel.execute(text) for text in CELLS]
        kernel.close()
    assert [(result.status, result.error) for result in results] == [("ok", "")] * len(CELLS)
    return results[3].text


def test_the_hour(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "home", simulate_gpus=2)
    environment = {
        **os.environ, "CARREL_HOME": str(lab.home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    here, said = tmp_path, {}
    try:
        for line in commands():
            words = shlex.split(line)
            if words[0] == "cd":
                here = here / words[1]
                continue
            if words == ["carrel", "notebook"]:
                line = "carrel notebook --no-browser --json"
            done = subprocess.run(
                ["bash", "-c", line], cwd=here, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            said[" ".join(words)] = done.stdout
            if words == ["carrel", "notebook"]:
                assert "loss 0.0" in work_in_jupyterlab(json.loads(done.stdout)["url"])
                write_notebook(here / "fit.ipynb")
            if words[:2] == ["carrel", "sweep"] and words[2] != "show":
                with Client(home=lab.home) as client:
                    wait_until(lambda client=client: client.sweep(1).state == SweepState.COMPLETED, "the sweep")
        lab.end_jobs()
    finally:
        lab.stop()
    assert "loss 0.0" in said["carrel run fit.ipynb -P steps=300"]
    assert json.loads((here / "results/outputs/result.json").read_text())["loss"] < 0.02
    assert "steps = 300" in said["carrel record 2"]
    assert "The best is trial" in said["carrel sweep show 1"]
    assert "First to look at: parameter rate." in said["carrel compare 2 10"]
    assert "Bit-identical" in said["carrel verify 2 --times 1"]

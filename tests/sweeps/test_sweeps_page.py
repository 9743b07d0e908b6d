"""The commands and the project of docs/sweeps.md, with fewer trials."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from swept import wait_for_sweep

from carrel import Client
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
#: The lab of these tests has no GPU.
FEWER = {
    " --gpus 1": "",
    "--trials 100": "--trials 3",
    "--parallel 8": "--parallel 2",
    "trials: 100": "trials: 3",
    "parallel: 8": "parallel: 2",
}
TRAIN = """
import argparse
import carrel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--layers", type=int)
parser.add_argument("--epochs", type=int, default=2)
given = parser.parse_args()
for epoch in range(given.epochs):
    carrel.report(given.lr * given.layers / (epoch + 1), epoch)
"""


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for many, few in FEWER.items():
        found = found.replace(many, few)
    return str(found)


@pytest.mark.parametrize(
    ("command", "fixed"), [(block("bash"), {"epochs": "20"}), ("carrel sweep .", {})], ids=["a script", "a project"]
)
def test_the_page_is_right(lab: LabProcess, client: Client, tmp_path: Path, command: str, fixed: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    if not fixed:
        (tmp_path / "MLproject").write_text(block("yaml"))
    program, *words = shlex.split(command.replace("\\\n", " "))
    assert program == "carrel"
    environment = {**os.environ, "CARREL_HOME": str(lab.home)}
    done = subprocess.run(
        [Path(sys.executable).parent / "carrel", *words, "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = wait_for_sweep(client, json.loads(done.stdout)["id"])
    assert (found.state, found.metric, len(found.all_trials)) == ("COMPLETED", "val_loss", 3), found
    for trial in found.all_trials:
        assert 1e-5 <= float(trial.parameters["lr"]) <= 1e-2
        assert 2 <= int(trial.parameters["layers"]) <= 8
        assert client.job(trial.job_id).parameters == {name: str(value) for name, value in {**trial.parameters, **fixed}.items()}

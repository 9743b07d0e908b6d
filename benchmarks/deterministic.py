"""What `carrel run --deterministic` costs in processor time: the start of Python, the import of PyTorch, a training.

`python benchmarks/deterministic.py PYTHON`, where PYTHON is the interpreter of an environment with PyTorch. Both ways in turn,
without a lab: the variables are those that the runner sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import carrel
from carrel.node.runner.variables import DETERMINISTIC
from figure import Figure, median

ROUNDS = 5
_TIMED = """
import time
began = time.process_time()
import torch
imported = time.process_time() - began
from torch import nn
model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
model = nn.Sequential(model, nn.Flatten(), nn.Linear(512, 10))
step = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
def train(times):
    for _ in range(times):
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step.step()
train(3)
began = time.process_time()
train(20)
print(imported, time.process_time() - began)
"""


def measure(python: str) -> list[Figure]:
    """All figures; in each round both ways, one after the other."""
    hook = Path(carrel.__file__).parent / "engines" / "task_client_hook"
    plain = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0"}
    ways = {"without": plain, "with": {**plain, **DETERMINISTIC, "CARREL_SEED": "0", "PYTHONPATH": str(hook)}}
    found: dict[str, dict[str, list[float]]] = {way: {"start": [], "import": [], "training": []} for way in ways}
    for _ in range(ROUNDS):
        for way, variables in ways.items():
            found[way]["start"].append(_seconds_to_start(python, variables))
            done = subprocess.run([python, "-c", _TIMED], env=variables, capture_output=True, text=True, check=True)
            imported, trained = map(float, done.stdout.split())
            found[way]["import"].append(imported)
            found[way]["training"].append(trained)
    return [median(f"{what} {way}", seconds, "s") for way, all_of in found.items() for what, seconds in all_of.items()]


def _seconds_to_start(python: str, variables: dict[str, str]) -> float:
    code = "import time; print(time.process_time())"
    return float(subprocess.run([python, "-c", code], env=variables, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    for figure in measure(sys.argv[1]):
        print(figure.row())

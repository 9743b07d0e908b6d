"""Records as `carrel record` prints them, for tests that change one thing in a copy."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from carrel.core.comparison import Code, Comparison, Metrics, Side, compare, side_of

LOCK = "idna==3.7 --hash=sha256:aa\nnumpy==1.26.4 \\\n    --hash=sha256:bb\ntorch==2.4.0 --hash=sha256:cc\n"
FILES = {
    "train.py": "import argparse\nfrom model import Net\nimport numpy as np\nopen('config.yaml')\nprint(np.float32(1))\n",
    "model.py": "import torch\n\nclass Net:\n    width = 10\n",
    "plot.py": "print('a picture')\n",
    "config.yaml": "width: 10\n",
    "README.md": "Train.\n",
}
HARDWARE = {
    "cpu": "EPYC 7713",
    "cpu_flags": "avx avx2 fma",
    "kernel": "Linux 6.1",
    "gpu_driver": "550.1",
    "gpu_0": "NVIDIA H100, 80 GiB, GPU-1",
    "network": "on",
    "cgroup_memory": "2 GiB",
}
SEEDS = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "4"}


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def code(files: Mapping[str, str] = FILES) -> Code:
    return Code(files={path: digest(text)[7:19] for path, text in files.items()}, read=files.get)


def record(number: int = 1) -> dict[str, Any]:
    resources = {"nodes": 1, "cpus": 4, "memory": 2**31, "gpus": 1, "gpu_memory": 0, "time": 3600}
    attempt = {
        "job_id": number,
        "number": 1,
        "node": "node1",
        "devices": ["GPU-1"],
        "state": "COMPLETED",
        "exit_code": 0,
        "started_at": 100.0,
        "ended_at": 160.0,
        "suspended_seconds": 0.0,
        "environment_lock": digest(LOCK),
        "environment_lock_text": LOCK,
        "python": "cpython-3.11.9",
        "hardware": dict(HARDWARE),
        "seeds": dict(SEEDS),
        "inputs": {"data.csv": digest("data")},
        "input_sources": {},
        "outputs": [{"path": "model.pt", "size": 3, "digest": digest("model")}],
    }
    return {
        "lab": "x",
        "job": {"id": number, "name": "train", "owner": "ada", "account": "physics", "qos": "normal", "resources": resources},
        "task": {
            "entry_point": "main",
            "command": "python train.py --lr 0.1",
            "snapshot": digest(repr(FILES)),
            "directory": ".",
            "parameters": {"lr": "0.1"},
            "variables": {"MODE": "fast"},
            "environment": {"kind": "requirements"},
            "inputs": [{"path": "data.csv", "uri": "file:/data/a.csv"}],
            "git": {"commit": "c0ffee", "branch": "main", "dirty": False},
            "tasks_per_node": 1,
            "launcher": "none",
        },
        "attempts": [attempt],
    }  # fmt: skip


METRICS = Metrics(last={"loss": 0.5}, curves={"loss": {0: 1.0, 1: 0.7, 2: 0.5}}, parameters={"lr": "0.1", "width": "10"})


def side(change: Callable[[dict[str, Any]], object] = lambda _record: None, number: int = 1, **more: Any) -> Side:
    """A side of the record, after a change to a copy of it."""
    changed = copy.deepcopy(record(number))
    change(changed)
    known = {"code": code(), "metrics": METRICS, "label": str(number)} | more
    return side_of(changed, more.pop("attempt", 1), **{name: known[name] for name in ("code", "metrics", "label")})


def compared(change: Callable[[dict[str, Any]], object] = lambda _record: None, **more: Any) -> Comparison:
    """The plain record beside one that was changed."""
    return compare([side(), side(change, 2, **more)])

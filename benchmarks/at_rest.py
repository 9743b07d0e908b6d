"""What a lab costs while nothing happens, and how soon it is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from figure import Figure, median
from support.lab_process import start_lab

_REST_SECONDS = 20.0


def measure(scratch: Path) -> list[Figure]:
    ready = []
    for number in range(5):
        lab = start_lab(scratch / f"lab{number}", simulate_gpus=0)
        ready.append(lab.seconds_to_ready)
        lab.stop()
    again = start_lab(scratch / "lab0", simulate_gpus=0)
    try:
        time.sleep(3)
        before = _cpu_seconds(again.process.pid)
        time.sleep(_REST_SECONDS)
        cpu = 100 * (_cpu_seconds(again.process.pid) - before) / _REST_SECONDS
        memory = sum(_pss(pid) for pid in _family(again.process.pid))
    finally:
        again.stop()
    return [
        median("carrel up → ready, without MLflow, new home", ready, "s", at_most=2),
        Figure(name="at rest: memory (PSS, server and nursery)", value=memory, unit="MiB", at_most=200),
        Figure(name="at rest: processor", value=cpu, unit="% of a core", spread=f"over {_REST_SECONDS:.0f} s", at_most=1),
    ]


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in _family(int(child)))]


def _cpu_seconds(root: int) -> float:
    total = 0
    for pid in _family(root):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> float:
    """MiB, shared pages divided among their users (proc_pid_smaps(5))."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0

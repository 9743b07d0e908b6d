"""From submit to the first line of user code, to the event stream, and through the whole life of many small tasks."""

from __future__ import annotations

import time
from pathlib import Path

from carrel import Client
from figure import Figure, median, percentile
from support.lab_process import LabProcess, start_lab

#: The command prints the time at which its first line runs, with microseconds (bash(1), EPOCHREALTIME).
_STAMP = "name: stamp\nentry_points:\n  main:\n    command: 'echo $EPOCHREALTIME'\n"
#: The same behind an environment that exists: the interpreter's own start is in the figure.
_PYTHON = """
name: warm
python_env: python_env.yaml
entry_points:
  main:
    command: python -c "import time; print(time.time())"
"""
_TRUE = "name: trivial\nentry_points:\n  main:\n    command: 'true'\n"
_SINGLE = 60
_MANY = 500
FIRST_LINE = "submit → first line of user code, median"
THROUGHPUT = f"{_MANY} trivial tasks, submit to all complete"


def measure(scratch: Path) -> list[Figure]:
    lab = start_lab(scratch / "lab", simulate_gpus=0)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            stamp, trivial = _project(scratch, "stamp", _STAMP), _project(scratch, "trivial", _TRUE)
            warm = _project(scratch, "warm", _PYTHON)
            (warm / "python_env.yaml").write_text("dependencies: [idna]\n")
            return [*_first_lines(client, stamp), *_python_lines(client, warm), *_throughput(client, trivial, lab)]
    finally:
        lab.stop()


def _project(scratch: Path, name: str, text: str) -> Path:
    directory = scratch / name
    directory.mkdir()
    (directory / "MLproject").write_text(text)
    return directory


def _python_lines(client: Client, project: Path) -> list[Figure]:
    waits = []
    for number in range(_SINGLE // 2 + 2):
        began = time.time()
        job = client.submit_project(project)
        stamp = float("".join(client.stream_log(job.id)).strip())
        if number >= 2:  # the first one builds the environment
            waits.append(1000 * (stamp - began))
    return [
        median("the same, Python in a warm environment, median", waits, "ms", at_most=150),
        percentile("the same, Python in a warm environment, p95", waits, "ms", 95, at_most=300),
    ]


def _first_lines(client: Client, project: Path) -> list[Figure]:
    waits, shown = [], []
    for number in range(_SINGLE + 3):
        began = time.time()
        job = client.submit_project(project)
        running = 0.0
        for event in client.events(job.id):
            if event.type == "state" and event.data["state"] == "RUNNING":
                running = time.time()
        stamp = float("".join(client.stream_log(job.id)).strip())
        started = client.job(job.id).started_at
        if number >= 3 and started is not None:  # the first ones warm everything up
            waits.append(1000 * (stamp - began))
            shown.append(1000 * (running - started.timestamp()))
    return [
        median(FIRST_LINE, waits, "ms", at_most=150),
        percentile("submit → first line of user code, p95", waits, "ms", 95, at_most=300),
        percentile("state change → event stream, p95", shown, "ms", 95, at_most=100),
    ]


def _throughput(client: Client, project: Path, lab: LabProcess) -> list[Figure]:
    rates, memory = [], []
    for _ in range(3):
        began = time.monotonic()
        jobs = [client.submit_project(project).id for _ in range(_MANY)]
        submitted = time.monotonic() - began
        open_jobs = set(jobs)
        for event in client.events(after=0):
            if event.type == "state" and event.job_id in open_jobs and event.data["state"] == "COMPLETED":
                open_jobs.discard(event.job_id)
                if not open_jobs:
                    break
        rates.append(_MANY / (time.monotonic() - began))
        memory.append(_resident(lab.process.pid))
        print(f"  {_MANY} tasks: {rates[-1]:.0f}/s, of which submitting took {submitted:.1f} s")
    growth = (memory[-1] - memory[0]) / (2 * _MANY)
    return [
        median(THROUGHPUT, rates, "tasks/s", at_least=60),
        Figure(
            name="server memory per finished job",
            value=growth * 1024,
            unit="KiB",
            spread=f"{memory[0]:.0f} → {memory[-1]:.0f} MiB",
        ),
    ]


def _resident(pid: int) -> float:
    """MiB resident (proc_pid_status(5), VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")

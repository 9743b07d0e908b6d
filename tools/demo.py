"""`make demo`: a lab, a real training task, and where to look. Uses only the commands that a user types."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARREL = ROOT / ".venv" / "bin" / "carrel"
HOME = Path(os.environ.get("CARREL_HOME") or Path.home() / ".local" / "share" / "carrel-demo")
READY_SECONDS = 60


def carrel(*words: str) -> int:
    """Run one command, shown as a user would type it."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}$ carrel {shlex.join(words)}{plain}", flush=True)
    return subprocess.run([CARREL, *words], env=environment(), cwd=ROOT).returncode


def newest_job() -> str:
    """Number of the job that was submitted last."""
    listed = subprocess.run([CARREL, "ps", "--all", "--limit", "1", "--json"], env=environment(), capture_output=True, check=True)
    found = json.loads(listed.stdout)
    return str((found["jobs"] if isinstance(found, dict) else found)[0]["id"])


def environment() -> dict[str, str]:
    return {**os.environ, "CARREL_HOME": str(HOME)}


def start_lab() -> subprocess.Popen[bytes]:
    """`carrel up` with simulated GPUs, so that the demonstration looks the same on every machine."""
    print(f"Starting a lab in {HOME} with 2 simulated GPUs.", flush=True)
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "address.json").unlink(missing_ok=True)
    output = (HOME / "up.log").open("wb")
    lab = subprocess.Popen(
        [CARREL, "up", "--simulate-gpus", "2"], env=environment(), stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
    )
    deadline = time.monotonic() + READY_SECONDS
    while not (HOME / "address.json").exists():
        if lab.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"The lab did not start:\n{(HOME / 'up.log').read_text()}")
        time.sleep(0.05)
    return lab


def main() -> int:
    lab = start_lab()
    try:
        code = carrel("run", "examples/digits", "-P", "epochs=5", "--name", "demo")
        if code != 0:
            return code
        job = newest_job()
        carrel("ps", "--all")
        carrel("show", job)
        carrel("outputs", job, str(HOME / "results"))
        carrel("nodes")
    finally:
        lab.send_signal(signal.SIGINT)
        lab.wait(timeout=30)
    print(
        f"""
What happened: the directory examples/digits was packed and sent to the lab, which built its environment once, ran it as a
task with its own processes and limits, streamed its log here, and stored its outputs, its environment lock and an MLflow run.

Where to look:
    CARREL_HOME={HOME} .venv/bin/carrel up --simulate-gpus 2     the same lab again; it prints a link to its pages
    examples/digits/MLproject                                    how the task is described
    docs/                                                        commands, tasks, environments, scheduling, tracking, API"""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

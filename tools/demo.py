"""`make demo`: a lab, a real training task, two notebooks that share one GPU, and where to look.

Uses the commands that a user types; only the cells are typed by a program instead of a person in a browser.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.notebook_client import SessionBrowser

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


def notebook(name: str) -> tuple[str, SessionBrowser]:
    """Open a notebook as `carrel notebook` does, without a browser on the screen; return its session's number and a way in."""
    words = ("notebook", "--new", "--name", name, "--no-browser", "--json", str(HOME / "files" / name))
    (HOME / "files" / name).mkdir(parents=True, exist_ok=True)
    print(f"$ carrel notebook --name {name}", flush=True)
    began = time.monotonic()
    opened = subprocess.run([CARREL, *words], env=environment(), capture_output=True, check=False, text=True)
    if opened.returncode != 0:
        sys.exit(f"The notebook did not start: {opened.stderr}")
    session = json.loads(opened.stdout)
    print(f"  session {session['job']['id']} was ready after {time.monotonic() - began:.1f} s", flush=True)
    return str(session["job"]["id"]), SessionBrowser(session["url"])


#: A cell that works for a second. On real GPUs no mark is needed: the first use of CUDA asks by itself.
CELL = "# carrel: gpus=1\nimport time\ntime.sleep(1)\nn = globals().get('n', 0) + 1\nprint('cell', n, 'done')"


def share_one_gpu() -> None:
    """Two notebooks, three cells each, one GPU: who has it when."""
    opened = [notebook("first"), notebook("second")]
    began = time.monotonic()
    say = threading.Lock()

    def line(name: str, text: str) -> None:
        with say:
            print(f"  {time.monotonic() - began:5.2f} s  {name:<7} {text}", flush=True)

    def work(name: str, browser: SessionBrowser) -> None:
        kernel = browser.start_kernel(f"{name}.ipynb")

        def show(message: dict[str, Any]) -> None:
            data = message["content"].get("data", {}) if isinstance(message.get("content"), dict) else {}
            if "text/plain" in data:
                line(name, data["text/plain"])

        for _ in range(3):
            line(name, "runs a cell that needs a GPU")
            line(name, kernel.execute(CELL, on_message=show).text.strip())
        kernel.close()

    print("\nTwo notebooks, one simulated GPU:", flush=True)
    threads = [
        threading.Thread(target=work, args=(name, browser))
        for name, (_job, browser) in zip(("first", "second"), opened, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    carrel("gpus")
    carrel("sessions")
    for job, browser in opened:
        browser.close()
        carrel("cancel", job)


def environment() -> dict[str, str]:
    return {**os.environ, "CARREL_HOME": str(HOME)}


def start_lab() -> subprocess.Popen[bytes]:
    """`carrel up` with simulated GPUs, so that the demonstration looks the same on every machine."""
    print(f"Starting a lab in {HOME} with 1 simulated GPU.", flush=True)
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "address.json").unlink(missing_ok=True)
    output = (HOME / "up.log").open("wb")
    lab = subprocess.Popen(
        [CARREL, "up", "--simulate-gpus", "1"], env=environment(), stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
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
        share_one_gpu()
    finally:
        lab.send_signal(signal.SIGINT)
        lab.wait(timeout=30)
    print(
        f"""
What happened: the directory examples/digits was packed and sent to the lab, which built its environment once, ran it as a
task with its own processes and limits, streamed its log here, and stored its outputs, its environment lock and an MLflow run.
Then two notebooks shared one GPU: each held it only while one of its cells ran.

Where to look:
    CARREL_HOME={HOME} .venv/bin/carrel up --simulate-gpus 1     the same lab again; it prints a link to its pages
    examples/digits/MLproject                                    how the task is described
    docs/                                                        commands, tasks, environments, scheduling, tracking, API"""
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

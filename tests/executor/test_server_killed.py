"""The lab's server is killed while calls wait, run and end: each result comes once, and nothing begins twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import called

from carrel import Client, Executor
from carrel.testing.lab_process import start_lab
from carrel.testing.waiting import PATIENCE, wait_until


def test_calls_survive_a_killed_server(tmp_path: Path) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as client, Executor(2, requirements=[], modules=[called], memory="256M", client=client) as executor:
        futures = [executor.submit(called.leaves_a_trace, str(trace), number) for number in range(300)]
        for share in (20, 120, 220):
            wait_until(lambda share=share: trace.exists() and len(trace.read_text().splitlines()) > share)  # type: ignore[misc]
            lab.kill()
            lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
        assert [future.result(PATIENCE) for future in futures] == [number * number for number in range(300)]
    began = Counter(int(line) for line in trace.read_text().splitlines())
    assert began == Counter(dict.fromkeys(range(300), 1))
    lab.end_jobs()
    lab.stop()

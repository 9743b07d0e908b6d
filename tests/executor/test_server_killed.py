"""The lab's server is killed while calls wait, run and end: each result comes once, and nothing begins twice."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import called
import pytest

from carrel import Client, Executor
from carrel.client.executor import WorkerDied
from carrel.testing.lab_process import start_lab
from carrel.testing.waiting import PATIENCE, wait_until


@pytest.mark.soak
def test_ten_thousand_calls_while_everything_is_killed(tmp_path: Path) -> None:
    """Workers and server are killed at random (SEED=n): every call ends once, and without retries it begins at most once."""
    chance = random.Random(os.environ.get("SEED", "1"))
    home, trace = tmp_path / "home", tmp_path / "trace"
    trace.touch()
    number = 10_000
    lab = start_lab(home, "--cpus", "8", simulate_gpus=0)
    options: dict[str, Any] = {"requirements": [], "modules": [called], "memory": "256M"}
    with (
        Client(home=home) as client,
        Executor(2, client=client, **options) as once,
        Executor(2, retries=50, client=client, **options) as often,
    ):
        half = number // 2
        futures = [once.submit(called.tells_its_process, str(trace), one) for one in range(half)]
        futures += [often.submit(called.tells_its_process, str(trace), one) for one in range(half, number)]
        while not all(future.done() for future in futures):
            wait([future for future in futures if not future.done()], timeout=chance.uniform(0.2, 1.0))
            if chance.random() < 0.15:
                lab.kill()
                lab = start_lab(home, "--cpus", "8", simulate_gpus=0)
            else:
                last = trace.read_text().splitlines()[-20:]
                with suppress(ProcessLookupError, IndexError):
                    os.kill(int(chance.choice(last).partition(" ")[0]), signal.SIGKILL)
        died = [one for one, future in enumerate(futures) if isinstance(future.exception(), WorkerDied)]
        assert all(future.result() == one for one, future in enumerate(futures) if one not in set(died))
        began = Counter(int(line.partition(" ")[2]) for line in trace.read_text().splitlines())
        assert max(began[one] for one in range(half)) == 1
        assert all(one < half for one in died)
        assert all(began[one] >= 1 for one in range(number) if one not in set(died))
        print(f"{number} calls, {len(died)} of those without retries lost their worker, {sum(began.values())} beginnings")
    lab.end_jobs()
    lab.stop()


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

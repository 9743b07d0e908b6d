"""The lab's server is killed while calls wait, run and end: each result comes once, and nothing begins twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import called
import pytest

from carrel import Client, Executor
from carrel.client.executor import Future, WorkerDied
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab


@dataclass
class Storm:
    """A lab whose processes are killed while calls run; SEED=n chooses others."""

    home: Path
    gpus: int
    kills: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(os.environ.get("SEED", "1")))

    def __post_init__(self) -> None:
        self.lab = self._start()

    def _start(self) -> LabProcess:
        return start_lab(self.home, "--cpus", "8", simulate_gpus=self.gpus)

    def kill(self, what: str) -> None:
        """Kill the server, and start it again; or a worker, the runner of one, or the broker, which the lab starts again."""
        if what == "server":
            self.lab.kill()
            self.lab = self._start()
        elif not self._kill_process(what):
            return
        self.kills[what] += 1

    def _kill_process(self, what: str) -> bool:
        with suppress(OSError, IndexError):  # there is none now
            chosen = self.chance.choice((brokers_of if what == "broker" else workers_of)(self.home))
            os.kill(parent_of(chosen) if what == "runner" else chosen, signal.SIGKILL)
            return True
        return False

    def cancel_some(self, futures: Sequence[Future[int]], said: dict[int, bool], enough: threading.Event) -> None:
        """Cancel calls that are next, or that a worker has: what each cancel says is kept in `said`."""
        chance = random.Random(self.chance.random())
        while not enough.wait(chance.uniform(0.05, 0.3)):
            middle = len(futures) // 2
            half = chance.choice((range(middle), range(middle, len(futures))))
            found = list(itertools.islice((one for one in half if one not in said and not futures[one].done()), 4))
            if found:
                one = chance.choice(found)
                said[one] = futures[one].cancel()

    def end(self) -> None:
        self.lab.end_jobs()
        self.lab.stop()


def calls_in(storm: Storm, number: int, kills: Callable[[Storm, Sequence[Future[int]]], None]) -> None:
    """Half of the calls may begin again, some are cancelled. Every call ends once, and without retries begins at most once."""
    began, trace = time.monotonic(), storm.home.parent / "trace"
    trace.touch()
    options: dict[str, Any] = {"requirements": [], "modules": [called], "memory": "256M", "gpus": 1 if storm.gpus else None}
    said: dict[int, bool] = {}
    enough = threading.Event()
    with (
        Client(home=storm.home) as client,
        Executor(2, client=client, **options) as once,
        Executor(2, retries=50, client=client, **options) as often,
    ):
        half = number // 2
        futures = [once.submit(called.tells_its_process, str(trace), one) for one in range(half)]
        futures += [often.submit(called.tells_its_process, str(trace), one) for one in range(half, number)]
        with ThreadPoolExecutor() as threads:
            cancels = threads.submit(storm.cancel_some, futures, said, enough)
            try:
                kills(storm, futures)
            finally:
                enough.set()
            cancels.result()
        wait(futures, timeout=PATIENCE)
        cancelled = {one for one, future in enumerate(futures) if future.cancelled()}
        assert cancelled == {one for one, done in said.items() if done}, "a cancel says what becomes of the call"
        well = [one for one in range(number) if one not in cancelled]
        died = {one for one in well if isinstance(futures[one].exception(), WorkerDied)}
        assert all(futures[one].result() == one for one in well if one not in died)
        beginnings = Counter(int(line.partition(" ")[2]) for line in trace.read_text().splitlines())
        assert max(beginnings[one] for one in range(half)) == 1
        assert not any(beginnings[one] for one in cancelled if one < half), "what was cancelled never ran"
        assert all(one < half for one in died)
        assert all(beginnings[one] >= 1 for one in well if one not in died)
        states = Counter(call.state for pool in (once, often) for call in client.calls(pool.pool_id, limit=None))
        expected = {"COMPLETED": len(well) - len(died), "FAILED": len(died), "CANCELLED": len(cancelled)}
        assert states == Counter(expected)
    storm.end()
    minutes = (time.monotonic() - began) / 60
    print(f"{number} calls, {len(died)} of those without retries lost their worker, {beginnings.total()} beginnings;")
    print(f"cancelled {len(cancelled)} of {len(said)} that were to be; killed: {dict(storm.kills)}; {minutes:.1f} minutes")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("gpus", [0, 2], ids=["without GPUs", "with GPUs that are borrowed"])
def test_ten_thousand_calls_while_everything_is_killed(tmp_path: Path, gpus: int) -> None:
    """SEED=n chooses other kills, CALLS=n so many calls."""

    def kills(storm: Storm, futures: Sequence[Future[int]]) -> None:
        chance = storm.chance
        while not all(future.done() for future in futures):
            wait([future for future in futures if not future.done()], timeout=chance.uniform(0.1, 0.6))
            weights = {"worker": 7, "runner": 2, "server": 2, "broker": 2 if gpus else 0}
            storm.kill(chance.choices([*weights], [*weights.values()])[0])

    calls_in(Storm(home=tmp_path / "home", gpus=gpus), int(os.environ.get("CALLS", "10000")), kills)


def test_calls_that_borrow_survive_kills_of_everything(tmp_path: Path) -> None:
    """A few hundred of those calls, and each kind of kill in its turn."""

    def kills(storm: Storm, futures: Sequence[Future[int]]) -> None:
        for done, what in ((40, "broker"), (80, "worker"), (120, "server"), (160, "runner"), (200, "broker")):
            wait_until(lambda done=done: sum(future.done() for future in futures) >= done)  # type: ignore[misc]
            storm.kill(what)

    calls_in(Storm(home=tmp_path / "home", gpus=2), 300, kills)


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


def processes() -> Iterator[tuple[int, list[bytes]]]:
    """All processes, with the words of their command lines."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes().split(b"\0")


def brokers_of(home: Path) -> list[int]:
    """The lab's broker, if it runs."""
    place = os.fsencode(str(home))
    return [pid for pid, words in processes() if b"carrel.node.broker" in words and any(place in word for word in words)]


def workers_of(home: Path) -> list[int]:
    """The lab's workers: they run below its home."""
    found = []
    for pid, words in processes():
        with suppress(OSError):
            if b"carrel_worker" in words and Path(f"/proc/{pid}/cwd").readlink().is_relative_to(home):
                found.append(pid)
    return found


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_idle_executor_follows_its_pool_again(tmp_path: Path) -> None:
    """For a pool that is followed the lab keeps workers."""
    home = tmp_path / "home"
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as client, Executor(1, requirements=[], modules=[], memory="256M", client=client) as executor:
        assert executor.submit(pow, 2, 3).result(PATIENCE) == 8
        lab.kill()
        lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
        wait_until(lambda: client.pool(executor.pool_id).unfollowed_since is None)
    lab.end_jobs()
    lab.stop()

"""Several jobs, and what their functions often need."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from carrel.client.submitit.errors import FailedJobError
from carrel.client.submitit.job import Job

R = TypeVar("R")
#: Variables of jobs and of process groups, which a program that a job starts should not take for its own.
_OF_JOBS = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
_OF_GROUPS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


class CommandFunction:
    """A program as a function: called with arguments, which become words (``x=1``: ``--x=1``), it returns the standard output.

    It raises `FailedJobError` with the standard error when the program fails. `verbose`: what it prints appears here, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        verbose: bool = True,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(command, str):
            raise TypeError(f'The command is "{command}". Give a list of words.')
        self.command = list(command)
        self.verbose = verbose
        self.cwd = None if cwd is None else str(cwd)
        self.env = None if env is None else dict(env)

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Run the program."""
        words = [*self.command, *map(str, args), *(f"--{name}={value}" for name, value in kwargs.items())]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.cwd, env=self.env)
        kept: tuple[list[bytes], list[bytes]] = ([], [])
        pipes = ((process.stdout, kept[0], sys.stdout), (process.stderr, kept[1], sys.stderr))
        threads = [threading.Thread(target=self._read, args=pipe) for pipe in pipes]
        try:
            for thread in threads:
                thread.start()
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            for thread in threads:
                thread.join()
        out, err = (b"".join(pieces).decode("utf-8", "replace") for pieces in kept)
        if code:
            raise FailedJobError(f"{' '.join(words)} ended with {code}:\n{err or out}")
        return out.strip()

    def _read(self, pipe: IO[bytes], kept: list[bytes], shown: IO[str]) -> None:
        with pipe:
            for line in pipe:
                kept.append(line)
                if self.verbose:
                    print(line.decode("utf-8", "replace"), end="", file=shown, flush=True)


def as_completed(jobs: Sequence[Job[R]], timeout: float | None = None, poll_frequency: float = 10) -> Iterator[Job[R]]:
    """Yield jobs as they end; look every `poll_frequency` seconds. Raises `TimeoutError` after `timeout` seconds."""
    began, left = time.monotonic(), list(jobs)
    while True:
        for job in list(left):
            if job.done():
                left.remove(job)
                yield job
        if not left:
            return
        if timeout is not None and time.monotonic() - began > timeout:
            raise TimeoutError(f"{len(left)} of {len(jobs)} jobs have not ended within {timeout:g} s.")
        time.sleep(poll_frequency)


def monitor_jobs(
    jobs: Sequence[Job[Any]],
    poll_frequency: float = 30,
    test_mode: bool = False,
    custom_logging: Callable[[float, int, dict[str, set[int]]], None] | None = None,
) -> None:
    """Return when all jobs have ended; say every `poll_frequency` seconds how many are in which state.

    `custom_logging` is called instead with the seconds since the beginning, the number of jobs, and their places by state.
    """
    if not test_mode and poll_frequency < 1:
        raise ValueError(f"poll_frequency is {poll_frequency:g}. Look once a second at most.")
    began, say = time.time(), custom_logging or _say
    while True:
        states: dict[str, set[int]] = {}
        for place, job in enumerate(jobs):
            state = job.state.upper()
            states.setdefault(state, set()).add(place)
            if job.done():
                states.setdefault("DONE", set()).add(place)
        say(time.time() - began, len(jobs), states)
        if len(states.get("DONE", ())) == len(jobs):
            return
        time.sleep(poll_frequency)


def _say(seconds: float, count: int, states: dict[str, set[int]]) -> None:
    told = Counter({state: len(places) for state, places in states.items() if state != "DONE"})
    print(f"{seconds:.0f} s: {', '.join(f'{number} {state}' for state, number in told.items())}, of {count} jobs", flush=True)


@contextlib.contextmanager
def environment_variables(**variables: Any) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def clean_env(extra_names: Sequence[str] = ()) -> Iterator[None]:
    """Take the variables of a job and of its process group out for a while: a program that is started does not see them."""
    names = {name for name in os.environ if name.startswith(_OF_JOBS) or name in _OF_GROUPS or name in extra_names}
    before = {name: os.environ.pop(name, None) for name in names}
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

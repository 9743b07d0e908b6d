"""A limit for each call: one that takes longer is stopped, whatever it does, and costs no other call anything."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import called
import cloudpickle
import pytest

from carrel import Client, Executor
from carrel.client.executor import CallTimeout
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess

# Its functions travel as those of a script do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def executor(lab: LabProcess) -> Iterator[Executor]:
    with (
        Client(url=lab.url, token=lab.token) as client,
        Executor(1, requirements=[], modules=[called], cpus=1, memory="512M", client=client, idle_time=600) as executor,
    ):
        yield executor


def sleeps() -> None:
    print("sleeps", flush=True)
    threading.Event().wait()


def holds_the_interpreter() -> None:
    """As a library in C does."""
    import ctypes

    print("computes", flush=True)
    ctypes.PyDLL(None).sleep(int(PATIENCE))


def starts_a_program(place: str) -> None:
    child = subprocess.Popen(["sleep", str(PATIENCE)])
    Path(place).write_text(str(child.pid))
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(PATIENCE)


@pytest.mark.gate
@pytest.mark.parametrize("function", [sleeps, holds_the_interpreter])
def test_a_call_over_its_limit_is_stopped(executor: Executor, function: Callable[[], None]) -> None:
    late = executor.submit_within(1, function)
    others = [executor.submit(pow, 2, number) for number in range(3)]
    with pytest.raises(TimeoutError, match=r"limit of 1 s(.|\n)*(sleeps|computes)") as caught:
        late.result(PATIENCE)
    assert isinstance(caught.value, CallTimeout)
    assert late.stdout() in ("sleeps\n", "computes\n")
    assert [other.result(PATIENCE) for other in others] == [1, 2, 4]
    assert executor.client.call(late.call_id).error == "time_limit"


def test_the_worker_of_a_call_that_can_be_stopped_goes_on(executor: Executor) -> None:
    """What it has in memory stays; where the call was is told."""
    before = executor.submit(os.getpid).result(PATIENCE)
    late = executor.submit_within(0.5, sleeps)
    with pytest.raises(CallTimeout) as caught:
        late.result(PATIENCE)
    assert "in sleeps" in str(caught.value.__cause__)
    assert executor.submit(os.getpid).result(PATIENCE) == before


def test_what_a_call_started_ends_with_it(executor: Executor, tmp_path: Path) -> None:
    late = executor.submit_within(0.5, starts_a_program, str(tmp_path / "pid"))
    with pytest.raises(CallTimeout):
        late.result(PATIENCE)
    assert executor.submit(pow, 2, 3).result(PATIENCE) == 8
    pid = (tmp_path / "pid").read_text()
    with contextlib.suppress(FileNotFoundError):
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_limit_for_all_calls_counts_from_their_beginning(client: Client) -> None:
    with Executor(1, requirements=[], modules=[called], memory="256M", client=client, call_time="2s") as executor:
        late, queued = executor.submit(sleeps), executor.submit(time.sleep, 1)
        with pytest.raises(CallTimeout):
            late.result(PATIENCE)
        queued.result(PATIENCE)


def test_a_limit_is_a_duration(executor: Executor) -> None:
    with pytest.raises(Invalid, match="no unit"):
        executor.submit_within("10", pow, 2, 3)
    with pytest.raises(Invalid, match="more than 0"):
        executor.submit_within(0, pow, 2, 3)


def test_the_gpu_of_a_call_that_was_killed_is_free_for_the_next(client: Client) -> None:
    with Executor(1, requirements=[], modules=[called], gpus=1, memory="256M", client=client) as executor:
        assert executor.borrows == 1
        late, other = executor.submit_within(0.5, holds_the_interpreter), executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES")
        with pytest.raises(CallTimeout):
            late.result(PATIENCE)
        assert other.result(PATIENCE)
        assert other.job_id == late.job_id  # the same job has begun anew

"""Calls that borrow a GPU while they run: a real lab with one simulated GPU, real workers, a real kernel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import called
import pytest
from called import begins_and_waits, begun

from carrel import Client, Executor
from carrel.client.executor import Future, WorkerDied
from carrel.core.domain.errors import Impossible
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab
from support.notebook_client import Kernel, SessionBrowser

Opens = Callable[..., Executor]
CELL = """\
# carrel: gpus=1
import pathlib, time
pathlib.Path({here!r}).touch()
while not pathlib.Path({go!r}).exists(): time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    found = start_lab(tmp_path_factory.mktemp("leases") / "home", "--cpus", "16", simulate_gpus=1)
    yield found
    found.end_jobs()
    found.stop()


@pytest.fixture
def client(lab: LabProcess) -> Iterator[Client]:
    with Client(url=lab.url, token=lab.token) as client:
        yield client


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    """Pools whose workers stay for an hour although they have nothing to do."""
    opened: list[Executor] = []

    def opens(workers: int = 1, **more: Any) -> Executor:
        options = {"gpus": 1, "cpus": 1, "memory": "256M", "idle_time": 3600.0, **more}
        opened.append(Executor(workers, requirements=[], modules=[called], client=client, **options))
        return opened[-1]

    yield opens
    for executor in opened:
        for worker in client.pool(executor.pool_id).workers:
            client.cancel(worker.job_id)
        executor.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def kernel(lab: LabProcess) -> Iterator[Kernel]:
    with Client(url=lab.url, token=lab.token) as client:
        session = client.start_session(SessionRequest(gpus=1, memory="512M")).job.id
        wait_until(lambda: client.session(session).ready, "the session")
        with SessionBrowser(client.open_session(session)) as browser:
            kernel = browser.start_kernel("a.ipynb")
            yield kernel
            kernel.close()


@contextmanager
def busy(executor: Executor, flags: Path) -> Iterator[Future[str]]:
    """A call that has the GPU until the end of the block."""
    flags.mkdir(exist_ok=True)
    future = executor.submit(begins_and_waits, str(flags))
    wait_until(lambda: begun(flags), "the call to begin")
    try:
        yield future
    finally:
        (flags / "go").touch()


def waits(client: Client, future: Future[Any]) -> str:
    """Return what is said of a call that a worker has and that waits for a GPU."""
    return wait_until(lambda: (call := client.call(future.call_id)).state == "RUNNING" and call.message, "the call to wait")


@pytest.mark.gate
def test_a_worker_without_a_call_holds_no_gpu_and_a_cell_has_it(
    opens: Opens, client: Client, kernel: Kernel, tmp_path: Path
) -> None:
    executor = opens()
    (gpu,) = client.gpus().devices
    assert executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result(PATIENCE) == gpu.uuid
    (worker,) = wait_until(
        lambda: (pool := client.pool(executor.pool_id)).borrows == 1 and not pool.workers[0].borrowed and pool.workers
    )
    job = client.job(worker.job_id)
    assert (job.state, job.resources.gpus, job.devices) == ("RUNNING", 0, [])
    assert kernel.execute("# carrel: gpus=1\nprint('computes')").text == "computes\n"

    here, go = tmp_path / "here", tmp_path / "go"
    cell = kernel.send(CELL.format(here=str(here), go=str(go)))
    wait_until(here.exists, "the cell to run")
    future = executor.submit(abs, -1)
    assert re.match(r"#1 in line for a GPU: .", waits(client, future)), "as soon as it has the call"
    wait_until(lambda: client.pool(executor.pool_id).workers[0].message == client.call(future.call_id).message, "the same words")
    assert not future.done()
    go.touch()
    assert future.result(PATIENCE) == 1
    assert kernel.result(cell).status == "ok"
    assert client.call(future.call_id).message == ""


def test_the_command_says_who_has_it(opens: Opens, client: Client, lab: LabProcess, tmp_path: Path) -> None:
    executor = opens()

    def says() -> str:
        command = [sys.executable, "-m", "carrel.cli.main", "pool", "show", str(executor.pool_id)]
        environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    with busy(executor, tmp_path) as future:
        (gpu,) = wait_until(lambda: client.pool(executor.pool_id).workers[0].borrowed, "the lease to be shown")
        assert f"RUNNING, {gpu}" in says()
        assert [row.job for row in client.gpus().leases] == [client.call(future.call_id).job_id]
    assert future.result(PATIENCE) == "done"
    wait_until(lambda: not client.gpus().leases, "the lease's end")
    assert "RUNNING, no GPU" in says()
    assert "each call borrows 1; a worker without a call holds none" in says()


def test_calls_of_two_pools_take_turns_and_never_compute_at_once(opens: Opens, tmp_path: Path) -> None:
    pools = opens(), opens()
    alone = str(tmp_path / "alone")
    futures = [pool.submit(called.computes_alone, alone, number) for number in range(20) for pool in pools]
    assert [future.result(PATIENCE) for future in futures] == [number for number in range(20) for _ in pools]


def test_a_pool_has_no_more_workers_than_can_compute(opens: Opens, client: Client) -> None:
    executor = opens(8, min_workers=2)
    pool = client.pool(executor.pool_id)
    assert (executor.max_workers, pool.max_workers, pool.min_workers) == (1, 1, 1)


def test_a_worker_that_is_killed_in_a_call_frees_the_gpu(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    with busy(one, tmp_path) as killed:
        next_one = other.submit(abs, -2)
        assert "in line for a GPU" in waits(client, next_one)
        os.kill(begun(tmp_path)[0], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            killed.result(PATIENCE)
        assert next_one.result(PATIENCE) == 2
    assert one.submit(abs, -3).result(PATIENCE) == 3, "the pool has another worker"


def test_a_call_that_waits_has_not_begun_when_its_worker_has_to_leave(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    with busy(one, tmp_path / "one"):
        future = other.submit(called.leaves_a_trace, str(tmp_path / "trace"), 3)
        waits(client, future)
        (worker,) = client.pool(other.pool_id).workers
        client.cancel(worker.job_id)
        client.wait(worker.job_id, timeout=PATIENCE)
        waits(client, future)
        assert client.pool(other.pool_id).workers[0].job_id != worker.job_id
    assert future.result(PATIENCE) == 9
    assert (tmp_path / "trace").read_text() == "3\n"


def test_a_call_that_waits_can_be_interrupted(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    with busy(one, tmp_path / "one"):
        future = other.submit(called.leaves_a_trace, str(tmp_path / "trace"), 3)
        waits(client, future)
        client.interrupt_call(future.call_id)
        with pytest.raises(KeyboardInterrupt):
            future.result(PATIENCE)
        wait_until(lambda: not client.gpus().queue, "its place in line to be given up")
    assert other.submit(abs, -4).result(PATIENCE) == 4
    assert not (tmp_path / "trace").exists()


def test_a_call_that_waits_for_its_gpu_can_be_cancelled(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    with busy(one, tmp_path / "one") as computes:
        future = other.submit(called.leaves_a_trace, str(tmp_path / "trace"), 3)
        waits(client, future)
        job = client.call(future.call_id).job_id
        assert not future.running(), "its function has not begun"
        assert future.cancel()
        assert future.cancelled()
        assert client.call(future.call_id).state == "CANCELLED"
        wait_until(lambda: not client.gpus().queue, "its place in line to be given up")
        wait_until(computes.running, "what has the GPU to be known as running")
        assert not computes.cancel()
    assert computes.result(PATIENCE) == "done"
    assert other.submit(abs, -4).result(PATIENCE) == 4
    assert [one.job_id for one in client.pool(other.pool_id).workers] == [job], "the worker went on"
    assert not (tmp_path / "trace").exists()


def test_a_pool_that_is_shut_down_cancels_calls_that_wait_for_a_gpu(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    with busy(one, tmp_path / "one"):
        futures = [other.submit(called.leaves_a_trace, str(tmp_path / "trace"), number) for number in range(3)]
        waits(client, futures[0])
        other.shutdown(cancel_futures=True)
        assert all(future.cancelled() for future in futures)
    assert not (tmp_path / "trace").exists()


def test_a_cancel_and_the_gpu_come_at_once_and_the_answer_is_what_happens(opens: Opens, client: Client, tmp_path: Path) -> None:
    one, other = opens(), opens()
    for number in range(12):
        with busy(one, tmp_path / str(number)):
            future = other.submit(called.leaves_a_trace, str(tmp_path / "trace"), number)
            waits(client, future)
            if number % 2:
                (tmp_path / str(number) / "go").touch()
                asked = future.cancel()
            else:
                asked = future.cancel()
        traces = (tmp_path / "trace").read_text().split() if (tmp_path / "trace").exists() else []
        if asked:
            assert future.cancelled()
            assert str(number) not in traces
        else:
            assert future.result(PATIENCE) == number * number
    assert client.call(future.call_id).state in ("CANCELLED", "COMPLETED")


def test_what_a_call_computed_is_charged(opens: Opens, client: Client, tmp_path: Path) -> None:
    executor = opens()
    with busy(executor, tmp_path) as future:
        job = client.call(future.call_id).job_id
        assert job is not None
    future.result(PATIENCE)
    # The lab hears of a lease a moment later than the call's future of its result.
    wait_until(lambda: any(row.job == job and row.gpu_seconds > 0 for row in client.gpus().tenants), "the lease's beginning")
    wait_until(lambda: not client.gpus().leases, "the lease's end")
    (used,) = [row.gpu_seconds for row in client.gpus().tenants if row.job == job]
    client.cancel(job)
    client.wait(job, timeout=PATIENCE)
    wait_until(lambda: client.record(job)["attempts"][0]["lease_seconds"] == pytest.approx(used, abs=0.05), "the charge")


def test_gpus_can_be_reserved(opens: Opens, client: Client) -> None:
    executor = opens(reserve=True)
    (gpu,) = client.gpus().devices
    assert executor.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result(PATIENCE) == gpu.uuid
    (worker,) = client.pool(executor.pool_id).workers
    assert (executor.borrows, client.job(worker.job_id).devices) == (0, [gpu.uuid])


def test_more_gpus_than_there_are_is_said_at_once(opens: Opens) -> None:
    with pytest.raises(Impossible, match="2 GPUs"):
        opens(gpus=2)


def test_an_initializer_has_a_gpu_too(opens: Opens, client: Client, tmp_path: Path) -> None:
    one = opens()
    with busy(one, tmp_path / "one"):
        other = opens(initializer=called.leaves_a_trace, initargs=(str(tmp_path / "trace"), 1))
        future = other.submit(abs, -5)
        wait_until(lambda: (found := client.pool(other.pool_id).workers) and "in line" in found[0].message, "it to wait")
        assert not (tmp_path / "trace").exists()
    assert future.result(PATIENCE) == 5
    assert (tmp_path / "trace").read_text() == "1\n"


def test_leases_outlive_a_killed_server_and_a_killed_broker(tmp_path: Path) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    lab = start_lab(home, "--cpus", "8", simulate_gpus=1)
    options: dict[str, Any] = {"requirements": [], "modules": [called], "memory": "256M", "gpus": 1, "cpus": 1}
    with Client(home=home) as client, Executor(client=client, **options) as one, Executor(client=client, **options) as other:
        with busy(one, tmp_path / "flags") as first:
            second = other.submit(called.leaves_a_trace, str(trace), 7)
            waits(client, second)
            lab.kill()
            lab = start_lab(home, "--cpus", "8", simulate_gpus=1)
            waits(client, second)
            (lease,) = wait_until(lambda: client.gpus().leases, "the lease to be known again")
            assert lease.job == client.call(first.call_id).job_id
            before = broker_of(home)
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: broker_of(home) not in (0, before), "another broker")
            waits(client, second)
            assert not trace.exists()
        assert first.result(PATIENCE) == "done"
        assert second.result(PATIENCE) == 49
        many = [pool.submit(called.leaves_a_trace, str(trace), number) for number in range(30) for pool in (one, other)]
        wait_until(lambda: len(trace.read_text().splitlines()) > 20)
        lab.kill()
        lab = start_lab(home, "--cpus", "8", simulate_gpus=1)
        assert [future.result(PATIENCE) for future in many] == [number * number for number in range(30) for _ in "ab"]
    began = Counter(int(line) for line in trace.read_text().splitlines())
    assert began == Counter([7, *range(30), *range(30)])
    assert len(begun(tmp_path / "flags")) == 1
    lab.end_jobs()
    lab.stop()


def broker_of(home: Path) -> int:
    """The process of the lab's broker; 0 while there is none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"carrel.node.broker" in words and any(os.fsencode(str(home)) in word for word in words):
            return int(path.parent.name)
    return 0

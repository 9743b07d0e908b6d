"""Functions that run as calls in a real lab."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import called
import pytest
from called import begins_and_waits, begun

from carrel import Client, Executor
from carrel.client.executor import RemoteTraceback, WorkerDied, WorkersDoNotStart
from carrel.core.domain.errors import Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

DOCS = Path(__file__).parents[2] / "docs"
Opens = Callable[..., Executor]


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    opened: list[Executor] = []

    def opens(workers: int = 1, **more: Any) -> Executor:
        found = Executor(workers, requirements=[], modules=[called], cpus=1, memory="256M", client=client, **more)
        opened.append(found)
        return found

    yield opens
    for executor in opened:
        for worker in client.pool(executor.pool_id).workers:  # a call may wait for what a test that failed did not say
            client.cancel(worker.job_id)
        executor.shutdown(cancel_futures=True)


@pytest.fixture
def executor(opens: Opens) -> Executor:
    return opens()


@pytest.mark.gate
def test_results_arguments_and_order(executor: Executor) -> None:
    base = 10
    assert executor.submit(lambda a, *, b: a + b + base, 1, b=2).result(PATIENCE) == 13
    assert list(executor.map(lambda a, b: a * b, range(5), range(5, 10))) == [0, 6, 14, 24, 36]
    assert list(executor.map(abs, range(-7, 0), chunksize=3)) == [7, 6, 5, 4, 3, 2, 1]


def test_what_is_raised_is_raised_here_with_its_traceback(executor: Executor) -> None:
    def inner() -> None:
        raise KeyError("not there")

    def outer() -> None:
        inner()

    with pytest.raises(KeyError, match="not there") as raised:
        executor.submit(outer).result(PATIENCE)
    cause = raised.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert re.search(r"in outer\n.*in inner\n.*KeyError: 'not there'", str(cause), re.DOTALL)
    assert "carrel_worker" not in str(cause)


def test_a_result_that_cannot_be_pickled_says_so_and_the_worker_goes_on(executor: Executor) -> None:
    with pytest.raises(TypeError, match="pickle.*lock") as raised:
        executor.submit(threading.Lock).result(PATIENCE)
    assert raised.value.__notes__ == ["What the call returned cannot be pickled."]
    with pytest.raises(SystemExit):
        executor.submit(sys.exit, 3).result(PATIENCE)
    assert executor.submit(abs, -1).result(PATIENCE) == 1


def test_arguments_that_cannot_be_pickled_are_the_error_of_their_future(executor: Executor) -> None:
    future = executor.submit(abs, threading.Lock())
    with pytest.raises(TypeError, match="pickle.*lock"):
        future.result(0)
    with pytest.raises(TypeError, match="pickle.*lock"):
        _ = future.call_id


def test_what_is_printed_comes_back_apart(executor: Executor) -> None:
    def prints() -> None:
        print("by python")
        print("a warning", file=sys.stderr)
        os.write(1, b"by C\n")
        subprocess.run(["echo", "by a process"], check=True)

    first, second = executor.submit(prints), executor.submit(print, "another")
    first.result(PATIENCE)
    second.result(PATIENCE)
    assert sorted(first.stdout().splitlines()) == ["by C", "by a process", "by python"]
    assert first.stderr() == "a warning\n"
    assert (second.stdout(), second.stderr()) == ("another\n", "")


def test_what_is_printed_is_seen_while_the_call_runs(executor: Executor, flags: Path) -> None:
    def prints(where: str) -> None:
        print("now")
        begins_and_waits(where)
        print("then")

    future = executor.submit(prints, str(flags))
    wait_until(lambda: future.stdout() == "now\n", future.stdout)
    assert future.running()
    (flags / "go").touch()
    future.result(PATIENCE)
    assert future.stdout() == "now\nthen\n"


def test_it_is_an_executor_of_concurrent_futures(executor: Executor) -> None:
    futures = [executor.submit(pow, 2, n) for n in range(4)]
    assert {future.result() for future in concurrent.futures.as_completed(futures, PATIENCE)} == {1, 2, 4, 8}
    told = threading.Event()
    executor.submit(abs, 1).add_done_callback(lambda _: told.set())
    assert told.wait(PATIENCE)

    async def waits() -> int:
        return await executor.submit(abs, -5)

    assert asyncio.run(waits()) == 5


def test_buffers_larger_than_a_frame_travel_there_and_back(executor: Executor) -> None:
    data = os.urandom(5_000_000)
    assert executor.submit(lambda text: text[::-1], data).result(PATIENCE) == data[::-1]


def test_a_call_that_waits_can_be_cancelled(executor: Executor, flags: Path) -> None:
    running = executor.submit(begins_and_waits, str(flags))
    waiting = executor.submit(abs, 1)
    wait_until(lambda: begun(flags))
    assert waiting.cancel()
    assert not running.cancel()
    assert waiting.cancelled()
    (flags / "go").touch()
    assert running.result(PATIENCE) == "done"
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(0)


def test_a_call_is_found_again_by_its_number(executor: Executor, client: Client, flags: Path) -> None:
    future = executor.submit(begins_and_waits, str(flags))
    again = Executor.future(future.call_id, client=client)
    assert not again.done()
    (flags / "go").touch()
    assert again.result(PATIENCE) == "done"
    assert Executor.future(future.call_id, client=client).result(PATIENCE) == "done"
    with pytest.raises(NotFound, match="no call 999999"):
        Executor.future(999999, client=client)


def test_a_worker_that_is_killed_fails_its_call_and_no_other(executor: Executor, flags: Path) -> None:
    dies = executor.submit(begins_and_waits, str(flags))
    waits = executor.submit(abs, -2)
    (pid,) = wait_until(lambda: begun(flags))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"carrel logs \d+"):
        dies.result(PATIENCE)
    assert waits.result(PATIENCE) == 2


def test_with_retries_the_call_begins_again(opens: Opens, flags: Path) -> None:
    future = opens(retries=1).submit(begins_and_waits, str(flags))
    (pid,) = wait_until(lambda: begun(flags))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(begun(flags)) == 2)
    (flags / "go").touch()
    assert future.result(PATIENCE) == "done"


def test_workers_are_as_many_as_there_is_to_do_and_leave(opens: Opens, client: Client, flags: Path) -> None:
    executor = opens(2, idle_time=0)
    futures = [executor.submit(begins_and_waits, str(flags)) for _ in range(3)]
    wait_until(lambda: len(begun(flags)) == 2)
    assert len(client.pool(executor.pool_id).workers) == 2
    (flags / "go").touch()
    assert [future.result(PATIENCE) for future in futures] == ["done"] * 3
    wait_until(lambda: not client.pool(executor.pool_id).workers)
    assert client.pool(executor.pool_id).calls == {"COMPLETED": 3}
    assert executor.submit(abs, -3).result(PATIENCE) == 3


def test_an_array_is_a_call_for_each_argument(executor: Executor) -> None:
    futures = executor.submit_array(abs, range(-3, 1))
    assert [future.result(PATIENCE) for future in futures] == [3, 2, 1, 0]


def test_a_person_is_told_why_there_is_no_worker_yet(lab: LabProcess, client: Client, tmp_path: Path) -> None:
    text = (
        "import carrel\n"
        "with carrel.Executor(1, requirements=[], modules=[], memory='256M', gpus=2, reserve=True) as lab:\n"
        "    print(lab.submit(abs, -7).result())\n"
    )
    with Executor(1, requirements=[], modules=[called], memory="256M", gpus=2, reserve=True, client=client) as holds:
        holds.submit(begins_and_waits, str(tmp_path))
        wait_until(lambda: begun(tmp_path))
        environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
        ours, theirs = os.openpty()
        with open(ours, "rb", buffering=0) as reads, open(theirs, "wb") as writes:
            program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=writes, env=environment)
            said = b""
            while b"is PENDING: " not in said:
                said += reads.read(65536)
            assert re.search(rb"waiting for a worker: job \d+ is PENDING: .*needs 2 GPUs", said)
            (tmp_path / "go").touch()
        holds.shutdown()
        assert program.communicate()[0] == b"7\n"


@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_map_says_to_a_person_how_many_are_done(lab: LabProcess, at_a_terminal: bool) -> None:
    text = (
        "import carrel, time\n"
        "with carrel.Executor(1, requirements=[], modules=[], memory='256M') as lab:\n"
        "    print(len(list(lab.map(time.sleep, [0.3] * 8))))\n"
    )
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    ours, theirs = os.openpty() if at_a_terminal else os.pipe()
    with open(ours, "rb", buffering=0) as reads, open(theirs, "wb") as writes:
        done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=writes, check=True, env=environment)
        writes.write(b"end")
        writes.flush()
        said = b""
        while not said.endswith(b"end"):
            said += reads.read(65536)
    assert done.stdout == b"8\n"
    assert (b" of 8 calls done" in said) == at_a_terminal
    assert said.endswith(b"\rend" if at_a_terminal else b"end")
    assert at_a_terminal or said == b"end"


def test_joblib_runs_in_the_workers(client: Client) -> None:
    from joblib import Parallel, delayed, effective_n_jobs

    def job(number: int) -> tuple[int, str]:
        return number, os.environ["CARREL_JOB_ID"]

    def fails(number: int) -> int:
        raise ValueError(f"number {number}")

    packages = [f"joblib=={version('joblib')}"]
    with Executor(2, requirements=packages, modules=[], cpus=1, memory="256M", client=client) as executor, executor.joblib():
        assert effective_n_jobs() == 2
        found = Parallel()(delayed(job)(number) for number in range(20))
        assert [number for number, _ in found] == list(range(20))
        assert all(client.job(int(where)).name == "executor" for where in {where for _, where in found})
        with pytest.raises(ValueError, match="number 0"):
            Parallel(n_jobs=1, batch_size=1)(delayed(fails)(number) for number in range(1))
        with pytest.raises(ValueError, match="number"):
            Parallel()(delayed(fails)(number) for number in range(4))


def test_an_initializer_runs_before_the_first_call(opens: Opens) -> None:
    def prepares(value: str) -> None:
        os.environ["PREPARED"] = value

    executor = opens(initializer=prepares, initargs=("yes",))
    assert executor.submit(os.getenv, "PREPARED").result(PATIENCE) == "yes"


def test_workers_that_do_not_start_are_no_endless_wait(opens: Opens) -> None:
    def fails() -> None:
        raise OSError("not here")

    executor = opens(initializer=fails)
    with pytest.raises(WorkersDoNotStart, match=r"job \d+ is FAILED"):
        executor.submit(abs, 1).result(PATIENCE)


def test_own_modules_are_there(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_by_a_test.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import made_by_a_test  # type: ignore[import-not-found]

    try:
        with Executor(1, requirements=[], modules=[made_by_a_test], memory="256M", client=client) as executor:
            assert executor.submit(made_by_a_test.double, 4).result(PATIENCE) == 8
    finally:
        sys.modules.pop("made_by_a_test", None)


def test_a_module_that_was_edited_since_is_named_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    source = tmp_path / "edited_by_a_test.py"
    source.write_text("def answer():\n    return 'old'\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("edited_by_a_test")
    try:
        with Executor(1, requirements=[], modules=[module], client=client) as executor:
            source.write_text("def answer():\n    return 'edited'\n")
            with pytest.warns(UserWarning, match="edited_by_a_test was edited after this executor was made.*another executor"):
                assert executor.submit(module.answer).result(PATIENCE) == "old"
            assert executor.submit(module.answer).result(PATIENCE) == "old"
        assert not [one for one in recwarn if "edited_by_a_test" in str(one.message)]
        with Executor(1, requirements=[], modules=[module], client=client) as executor:
            assert executor.submit(module.answer).result(PATIENCE) == "edited"
    finally:
        sys.modules.pop("edited_by_a_test", None)


def test_a_shut_executor_takes_nothing_and_has_finished(opens: Opens, client: Client) -> None:
    executor = opens()
    future = executor.submit(abs, -1)
    executor.shutdown()
    assert future.done()
    assert client.pool(executor.pool_id).closed_at is not None
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)


def test_bad_arguments_are_said_before_anything_is_sent(client: Client) -> None:
    before = len(client.pools(closed=True))
    with pytest.raises(ValueError, match="greater than 0"):
        Executor(0, client=client)
    with pytest.raises(TypeError, match="callable"):
        Executor(1, initializer="no", client=client)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="requirements and image"):
        Executor(1, requirements=[], image="python:3.12", client=client)
    assert len(client.pools(closed=True)) == before


def test_what_a_program_submitted_is_carried_out_after_its_end(lab: LabProcess, client: Client, tmp_path: Path) -> None:
    script = (
        "import atexit, carrel\n"
        "@atexit.register\n"
        "def too_late():\n"
        "    try: pool.submit(abs, 1)\n"
        "    except RuntimeError as error: print(error)\n"
        "pool = carrel.Executor(1, min_workers=1, requirements=[], modules=[], memory='256M')\n"
        "futures = [pool.submit(pow, 2, n) for n in range(50)]\n"
        "print(pool.pool_id)\n"
    )
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    number, *refused = done.stdout.splitlines()
    assert refused == ["cannot schedule new futures after interpreter shutdown"]
    pool = int(number)
    wait_until(lambda: client.pool(pool).calls == {"COMPLETED": 50})
    assert client.pool(pool).closed_at is not None
    wait_until(lambda: not client.pool(pool).workers)


def test_a_job_uses_the_lab_from_inside(executor: Executor) -> None:
    """A call's own token opens the lab: what it makes there belongs to its owner."""

    def looks() -> tuple[int, int]:
        import json
        import urllib.request

        headers = {"Authorization": f"Bearer {os.environ['CARREL_TOKEN']}"}
        request = urllib.request.Request(f"{os.environ['CARREL_URL']}/api/v1/pools", headers=headers)
        with urllib.request.urlopen(request) as answer:
            return int(os.environ["CARREL_POOL"]), len(json.load(answer)["pools"])

    pool, pools = executor.submit(looks).result(PATIENCE)
    assert pool == executor.pool_id
    assert pools >= 1


def test_the_examples_of_the_page_run(lab: LabProcess) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "functions.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    for block in blocks:
        program = block.replace("carrel.Executor(4, ", "carrel.Executor(2, requirements=[], ")
        program = program.replace("carrel.Executor(4)", f"carrel.Executor(2, requirements=['joblib=={version('joblib')}'])")
        packages = [f"distributed=={version('distributed')}"]
        program = re.sub(r"(CarrelCluster\((?:2, )?)", rf"\1requirements={packages}, modules=[], ", program)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_the_command_shows_pools_and_calls(executor: Executor, lab: LabProcess) -> None:
    executor.submit(abs, -1).result(PATIENCE)
    speaks = executor.submit(called.speaks_and_fails)
    speaks.exception(PATIENCE)
    carrel = [sys.executable, "-m", "carrel.cli.main", "pool"]
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}

    def says(*words: str) -> str:
        return subprocess.run([*carrel, *words], capture_output=True, text=True, check=True, env=environment).stdout

    assert re.search(rf"^{executor.pool_id} +executor +1 of 1 +0 +0 +1 +1 ", says("list"), re.MULTILINE)
    shown = says("show", str(executor.pool_id))
    assert re.search(r"worker: job \d+ RUNNING", shown)
    assert re.search(r"COMPLETED .+ builtins.abs", shown)
    failed = says("show", str(executor.pool_id), "--state", "failed")
    assert re.search(rf"^{speaks.call_id} +FAILED +20.+ called.speaks_and_fails +\d+ +KeyError: 'this'$", failed, re.MULTILINE)
    assert "builtins.abs" not in failed
    assert says("log", str(speaks.call_id)) == "out\n"
    told = json.loads(says("log", str(speaks.call_id), "--json"))
    assert told == {"stdout": "out\n", "stderr": "err\n", "stdout_size": 4, "stderr_size": 4}
    assert says("close", str(executor.pool_id)) == f"Pool {executor.pool_id} is closed.\n"

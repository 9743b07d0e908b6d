"""What people's functions do in a process: they print, fork, crash, and change it. The call has its result, or says why not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import called
import cloudpickle
import pytest

from carrel import Client, Executor
from carrel.client.executor import WorkerDied, WorkersDoNotStart
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

KEPT = 256 * 1024
# Its functions travel as those of a script do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def executor(lab: LabProcess) -> Iterator[Executor]:
    with (
        Client(url=lab.url, token=lab.token) as client,
        Executor(1, requirements=[], modules=[called], cpus=1, memory="512M", client=client, idle_time=600) as executor,
    ):
        yield executor


@pytest.fixture
def other(client: Client) -> Iterator[Callable[..., Executor]]:
    opened: list[Executor] = []

    def opens(**more: Any) -> Executor:
        found = Executor(1, requirements=[], modules=[called], cpus=1, memory="512M", client=client, **more)
        opened.append(found)
        return found

    yield opens
    for one in opened:
        one.shutdown(cancel_futures=True)


def prints(size: int, stream: str, pieces: int) -> int:
    """Write so many bytes, in so many pieces."""
    for _ in range(pieces):
        getattr(sys, stream).write("x" * (size // pieces))
    return size


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("size", [32 * 1024, KEPT, 5_000_000])
def test_much_that_is_printed_costs_no_result_and_its_end_is_kept(executor: Executor, size: int, stream: str) -> None:
    future = executor.submit(prints, size, stream, 1 if size > KEPT else 64)
    assert future.result(PATIENCE) == size
    printed = getattr(future, stream)()
    assert printed.endswith("x" * min(size, KEPT))
    assert ("bytes were not kept" in printed) == (printed.count("x") < size)


@pytest.mark.gate
def test_a_library_that_prints_while_it_holds_the_lock_of_the_interpreter(executor: Executor, flags: Path) -> None:
    def chatty(where: str) -> int:
        libc = ctypes.PyDLL(None)
        libc.write(1, b"x" * 200_000, 200_000)
        libc.printf(b"then\n")
        Path(where, "printed").touch()
        while not Path(where, "go").exists():
            libc.usleep(1000)  # nothing else of Python runs meanwhile
        return libc.printf(b"and no line")

    future = executor.submit(chatty, str(flags))
    wait_until(lambda: future.stdout().endswith("then\n"))  # while it runs
    assert not future.done()
    (flags / "go").touch()
    assert future.result(PATIENCE) == len("and no line")
    assert future.stdout() == "x" * 200_000 + "then\nand no line"


def test_bytes_that_are_no_text_and_children(executor: Executor) -> None:
    def prints() -> None:
        os.write(1, b"caf\xe9 \xff\x00\n")
        if os.fork() == 0:
            print("of a child", flush=True)
            os._exit(0)
        os.wait()
        sys.stderr.buffer.write(b"\xf0\x9f")

    future = executor.submit(prints)
    future.result(PATIENCE)
    assert future.stdout() == "caf\ufffd \ufffd\0\nof a child\n"
    assert future.stderr() == "\ufffd"


def test_a_child_that_outlives_the_call_and_never_stops_printing(executor: Executor) -> None:
    def leaves() -> int:
        return subprocess.Popen(["yes"]).pid

    pid = executor.submit(leaves).result(PATIENCE)
    try:
        assert [executor.submit(abs, -n).result(PATIENCE) for n in range(5)] == list(range(5))
    finally:
        os.kill(pid, signal.SIGKILL)


def test_what_a_call_closes_is_there_for_the_next(executor: Executor, tmp_path: Path) -> None:
    def closes(where: str) -> None:
        os.chdir(where)
        print("last words", flush=True)
        sys.stdout.close()
        os.close(1)
        os.close(2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    here = executor.submit(os.getcwd).result(PATIENCE)
    future = executor.submit(closes, str(tmp_path))
    future.result(PATIENCE)
    assert future.stdout() == "last words\n"
    assert executor.submit(os.getcwd).result(PATIENCE) == here
    again = executor.submit(lambda: print("again") or time.sleep(0.6))
    again.result(PATIENCE)
    assert again.stdout() == "again\n"


def in_a_pool(method: str) -> list[int]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(double, range(4))


def double(number: int) -> int:
    return 2 * number


class Doubled:
    def __init__(self, number: int) -> None:
        self.number = number


def doubled(number: int) -> Doubled:
    return Doubled(2 * number)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_with_functions_of_the_program(
    executor: Executor, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (in_a_pool, double, doubled, Doubled):  # as those of a script are
        monkeypatch.setattr(one, "__module__", "__main__")

    def of_futures(method: str) -> list[int]:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            return [one.number for one in pool.map(doubled, range(4)) if type(one) is Doubled]

    assert executor.submit(in_a_pool, method).result(PATIENCE) == [0, 2, 4, 6]
    assert executor.submit(of_futures, method).result(PATIENCE) == [0, 2, 4, 6]


def test_pools_that_are_left_while_they_begin_and_while_they_work_end(executor: Executor) -> None:
    def leaves() -> str:
        for _ in range(20):
            with multiprocessing.get_context("fork").Pool(2):
                pass
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.apply_async(time.sleep, (600,))
        return "left"

    assert executor.submit(leaves).result(PATIENCE) == "left"


@pytest.mark.parametrize("ends", [lambda: None, lambda: sys.exit(3), lambda: 1 // 0])
def test_a_forked_process_that_returns_from_the_call_is_no_second_worker(executor: Executor, ends: Callable[[], None]) -> None:
    def forks() -> int:
        pid = os.fork()
        if pid == 0:
            print("child")
            ends()
            return -1
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    future = executor.submit(forks)
    assert future.result(PATIENCE) in (0, 1, 3)
    assert future.stdout() == "child\n"
    assert executor.submit(abs, -1).result(PATIENCE) == 1


def aborts() -> None:
    ctypes.CDLL(None).printf(b"by C\n")
    print("about to end", file=sys.stderr, flush=True)
    os.abort()


def leaves() -> None:
    os.write(2, b"about to end\n")
    os._exit(0)


def crashes() -> None:
    os.write(2, b"about to end\n")
    ctypes.string_at(8)


@pytest.mark.parametrize(
    ("function", "why"), [(aborts, "SIGABRT"), (leaves, "ended by itself. Exit code 0"), (crashes, "SIGSEGV")]
)
def test_the_last_words_of_a_call_that_crashes(other: Callable[..., Executor], function: Callable[[], None], why: str) -> None:
    executor = other()
    future = executor.submit(function)
    with pytest.raises(WorkerDied, match=why) as raised:
        future.result(PATIENCE)
    assert "COMPLETED" not in str(raised.value)
    assert "about to end\n" in future.stderr()
    assert future.job_id is not None
    assert executor.submit(abs, -1).result(PATIENCE) == 1


@pytest.mark.slow
def test_threads_that_a_call_has_left_do_not_keep_the_worker(other: Callable[..., Executor], client: Client) -> None:
    def leaves() -> None:
        threading.Thread(target=lambda: time.sleep(10_000)).start()

    executor = other(idle_time=0)
    future = executor.submit(leaves)
    future.result(PATIENCE)
    assert future.job_id is not None
    assert client.wait(future.job_id, timeout=PATIENCE).state == "COMPLETED"


@pytest.mark.parametrize("ends", [lambda: 1 // 0, lambda: os._exit(0), os.abort])
def test_why_an_initializer_failed(other: Callable[..., Executor], ends: Callable[[], object]) -> None:
    def prepares() -> None:
        print("the model is not there", file=sys.stderr, flush=True)
        ends()

    with pytest.raises(WorkersDoNotStart, match="the model is not there") as raised:
        other(initializer=prepares).submit(abs, 1).result(PATIENCE)
    assert ("ZeroDivisionError" in str(raised.value)) == (ends is not os.abort and "Exit code 1" in str(raised.value))


@pytest.mark.gate
def test_an_exception_whose_text_is_no_utf8(executor: Executor) -> None:
    def reads() -> None:
        raise ValueError("cannot read caf\udce9.csv \0")

    with pytest.raises(ValueError, match="cannot read caf"):
        executor.submit(reads).result(PATIENCE)
    assert executor.submit(abs, -1).result(PATIENCE) == 1


REFUSES = """CREATE TRIGGER {0} BEFORE UPDATE ON calls WHEN {1} BEGIN SELECT RAISE(ABORT, 'the database refuses'); END"""


@pytest.fixture
def refuses(lab: LabProcess) -> Iterator[Callable[[str], None]]:
    """Let the lab's database refuse the endings of calls for which this is true."""

    def refuses(when: str) -> None:
        with closing(sqlite3.connect(lab.home / "lab.db", timeout=PATIENCE)) as database, database:
            database.execute(REFUSES.format("refuses", when))

    yield refuses
    with closing(sqlite3.connect(lab.home / "lab.db", timeout=PATIENCE)) as database, database:
        database.execute("DROP TRIGGER refuses")


def test_what_a_call_printed_is_left_out_where_the_lab_does_not_take_it(
    executor: Executor, refuses: Callable[[str], None]
) -> None:
    refuses("NEW.stdout IS NOT NULL")
    future = executor.submit(lambda: print("x") or 7)
    assert future.result(PATIENCE) == 7
    assert "what this call printed was left out: the lab answers 500" in future.stderr()
    assert executor.submit(abs, -1).result(PATIENCE) == 1


@pytest.mark.gate
def test_a_result_that_the_lab_does_not_take_is_an_error_and_the_worker_goes_on(
    executor: Executor, refuses: Callable[[str], None]
) -> None:
    worker = executor.submit(os.getpid).result(PATIENCE)
    refuses("NEW.result_size > 5000 AND NEW.state = 'COMPLETED'")
    with pytest.raises(RuntimeError, match=r"did not take what this call returned \(\d+ bytes\): .*the lab answers 500"):
        executor.submit(bytes, 6000).result(PATIENCE)
    assert executor.submit(abs, -1).result(PATIENCE) == 1
    assert executor.submit(os.getpid).result(PATIENCE) == worker

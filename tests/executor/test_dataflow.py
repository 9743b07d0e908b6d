"""Futures as arguments of other calls, and results that are kept for equal calls, in a real lab."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import called
import pytest
from called import begins_and_waits, begun, leaves_a_trace

from carrel import Client, Executor
from carrel.client.executor import DependencyFailed, Future
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab

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
        for worker in client.pool(executor.pool_id).workers:
            client.cancel(worker.job_id)
        executor.shutdown(cancel_futures=True)
    client.forget_results()


@pytest.fixture
def executor(opens: Opens) -> Executor:
    return opens()


@pytest.mark.gate
def test_a_future_stands_for_its_result_wherever_it_is(executor: Executor) -> None:
    two, three = executor.submit(pow, 2, 1), executor.submit(int, "3")
    total = executor.submit(lambda *a, **k: (a, k), two, [three, (two, {"x": three})], key={"y": [two]})
    assert total.result(PATIENCE) == ((2, [3, (2, {"x": 3})]), {"key": {"y": [2]}})
    same = executor.submit(lambda a, b: a is b, executor.submit(list), executor.submit(list))
    one = executor.submit(list)
    assert not same.result(PATIENCE)
    assert executor.submit(lambda a, b: a is b, one, one).result(PATIENCE)


def test_what_waits_holds_no_worker_and_says_what_it_waits_for(
    opens: Opens, client: Client, lab: LabProcess, flags: Path
) -> None:
    executor = opens(2)
    first = executor.submit(begins_and_waits, str(flags))
    wait_until(lambda: begun(flags))
    then = executor.submit(str.upper, first)
    assert client.call(then.call_id).waits_for == [first.call_id]
    assert executor.submit(abs, -1).result(PATIENCE) == 1  # the second worker is free for others
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    words = [sys.executable, "-m", "carrel.cli.main", "pool", "show", str(executor.pool_id)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout
    assert re.search(rf"^{then.call_id} +PENDING .*waits for call {first.call_id}$", shown, re.MULTILINE)
    (flags / "go").touch()
    assert then.result(PATIENCE) == "DONE"
    assert client.call(then.call_id).waits_for == []


def test_large_results_go_from_call_to_call(executor: Executor) -> None:
    large = executor.submit(lambda: bytes(range(256)) * 10_000)
    assert executor.submit(len, large).result(PATIENCE) == 2_560_000


def test_a_failed_argument_fails_the_calls_that_need_it_and_says_which_it_was(executor: Executor) -> None:
    fails = executor.submit(int, "no number")
    chain = executor.submit(abs, fails)
    for _ in range(20):
        chain = executor.submit(abs, [chain])
    with pytest.raises(DependencyFailed, match=rf"call {fails.call_id} \(builtins.int\), which failed.*no number") as raised:
        chain.result(PATIENCE)
    assert isinstance(raised.value.__cause__, ValueError)
    after = executor.submit(abs, fails)  # it has failed by now
    with pytest.raises(DependencyFailed, match=rf"call {fails.call_id} "):
        after.result(PATIENCE)


def test_what_needs_a_cancelled_call_does_not_begin(executor: Executor, flags: Path) -> None:
    running = executor.submit(begins_and_waits, str(flags))
    wait_until(lambda: begun(flags))
    waits = executor.submit(abs, 1)
    needs, other = executor.submit(abs, waits), executor.submit(str.upper, running)
    assert waits.cancel()
    with pytest.raises(DependencyFailed, match=r"abs\), which was cancelled"):
        needs.result(PATIENCE)
    assert other.cancel()
    with pytest.raises(CancelledError):
        other.result(PATIENCE)
    (flags / "go").touch()
    assert running.result(PATIENCE) == "done"


def test_calls_of_other_pools_and_of_yesterday_can_be_needed(opens: Opens, client: Client) -> None:
    number = opens().submit(pow, 2, 5).call_id
    assert opens().submit(abs, Executor.future(number, client=client)).result(PATIENCE) == 32


def test_a_future_within_a_function_is_refused_with_the_way_out(executor: Executor) -> None:
    one = executor.submit(abs, 1)
    with pytest.raises(TypeError, match="Pass it to submit"):
        executor.submit(lambda: one).result(PATIENCE)


def test_a_future_of_another_lab_is_refused(executor: Executor) -> None:
    @dataclass
    class Elsewhere:
        url: str

    other: Future[int] = Future("f", lambda _: False, lambda: None)
    other.client, other._number = Elsewhere("http://127.0.0.1:1"), 5
    with pytest.raises(Invalid, match="call 5 in another lab"):
        executor.submit(abs, other).result(PATIENCE)


def test_a_pool_that_is_shut_finishes_the_chain(client: Client) -> None:
    with Executor(1, requirements=[], modules=[], memory="256M", client=client) as executor:
        value = executor.submit(int, 1)
        for _ in range(10):
            value = executor.submit(lambda n: n + 1, value)
    assert value.result(0) == 11


def test_an_equal_call_is_not_carried_out(opens: Opens, flags: Path) -> None:
    trace = str(flags / "trace")
    first = opens(cache=True).submit(leaves_a_trace, trace, 3)
    assert (first.result(PATIENCE), first.cached) == (9, False)
    second = opens().submit_cached(leaves_a_trace, trace, 3)
    assert (second.result(PATIENCE), second.cached) == (9, True)
    other, plain = opens(cache=True).submit(leaves_a_trace, trace, 4), opens().submit(leaves_a_trace, trace, 3)
    assert (other.result(PATIENCE), plain.result(PATIENCE)) == (16, 9)
    assert Path(trace).read_text().split() in (["3", "4", "3"], ["3", "3", "4"])


def test_with_other_code_a_call_is_another(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    place = tmp_path / "changed_by_a_test.py"

    def run(factor: int, **more: Any) -> tuple[int, bool]:
        place.write_text(f"def times(n):\n    return {factor} * n\n")
        sys.modules.pop("changed_by_a_test", None)
        importlib.invalidate_caches()
        module = importlib.import_module("changed_by_a_test")
        options = {"requirements": [], "modules": [module], "memory": "256M", "client": client, "cache": True, **more}
        with Executor(1, **options) as executor:
            future = executor.submit(module.times, 4)
            return future.result(PATIENCE), future.cached

    assert run(2) == (8, False)
    assert run(2) == (8, True)
    assert run(3) == (12, False)
    assert run(2, variables={"MODE": "other"}) == (8, False)
    assert run(2, idle_time=1) == (8, True)
    sys.modules.pop("changed_by_a_test", None)
    client.forget_results()


def test_of_equal_calls_under_way_one_is_carried_out(opens: Opens, client: Client, flags: Path) -> None:
    executor = opens(2)
    first = executor.submit_cached(begins_and_waits, str(flags))
    wait_until(lambda: begun(flags))
    second = executor.submit_cached(begins_and_waits, str(flags))
    assert client.call(second.call_id).waits_for == [first.call_id]
    assert executor.submit(abs, -1).result(PATIENCE) == 1
    (flags / "go").touch()
    assert [first.result(PATIENCE), second.result(PATIENCE)] == ["done", "done"]
    assert (first.cached, second.cached, len(begun(flags))) == (False, True, 1)
    assert client.call(second.call_id).cached_from == first.call_id


def test_what_raised_is_carried_out_again(executor: Executor, flags: Path) -> None:
    def fails_first(where: str) -> str:
        with open(where, "a") as file:
            file.write("x")
        if Path(where).stat().st_size == 1:
            raise OSError("not yet")
        return "well"

    futures = [executor.submit_cached(fails_first, str(flags / "n")) for _ in range(3)]
    with pytest.raises(OSError, match="not yet"):
        futures[0].result(PATIENCE)
    assert [future.result(PATIENCE) for future in futures[1:]] == ["well", "well"]
    assert [future.cached for future in futures] == [False, False, True]


def test_a_chain_of_cached_calls_is_found_again_without_its_values(opens: Opens, flags: Path) -> None:
    trace = str(flags / "trace")

    def run(executor: Executor) -> list[bool]:
        first = executor.submit(leaves_a_trace, trace, 2)
        second = executor.submit(leaves_a_trace, trace, first)
        assert second.result(PATIENCE) == 16
        return [first.cached, second.cached]

    assert run(opens(cache=True)) == [False, False]
    assert run(opens(cache=True)) == [True, True]
    assert Path(trace).read_text().split() == ["2", "4"]


def test_large_results_are_kept_and_forgotten(opens: Opens, client: Client, lab: LabProcess) -> None:
    executor = opens()

    def large() -> bytes:
        return bytes(100_000)

    first, second = (executor.submit_cached(large) for _ in range(2))
    assert first.result(PATIENCE) == second.result(PATIENCE) == bytes(100_000)
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    words = [sys.executable, "-m", "carrel.cli.main", "pool", "forget", "--function"]

    def forgets(name: str) -> str:
        return subprocess.run([*words, name], capture_output=True, text=True, check=True, env=environment).stdout

    assert forgets("another") == "0 results forgotten.\n"
    assert forgets(client.call(first.call_id).label) == "1 result forgotten.\n"
    third = executor.submit_cached(large)
    assert (third.result(PATIENCE), third.cached) == (bytes(100_000), False)
    assert Executor.future(second.call_id, client=client).result(PATIENCE) == bytes(100_000)


def test_five_hundred_arguments_are_one_submission(executor: Executor) -> None:
    futures = executor.submit_array(lambda n: n + 1, range(500))
    assert [future.result(PATIENCE) for future in futures] == list(range(1, 501))


def test_a_killed_server_knows_what_waits_for_what(tmp_path: Path) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as client, Executor(2, requirements=[], modules=[called], memory="256M", client=client) as executor:
        first = executor.submit_cached(begins_and_waits, str(tmp_path))
        wait_until(lambda: begun(tmp_path))
        second = executor.submit_cached(begins_and_waits, str(tmp_path))
        needs = executor.submit(lambda words, place: (words, called.leaves_a_trace(place, 1)), [first, second], str(trace))
        fails = executor.submit(int, second)
        after = executor.submit(abs, fails)
        numbers = [one.call_id for one in (second, needs, after)]
        waits = [client.call(number).waits_for for number in numbers]
        lab.kill()
        lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
        assert [client.call(number).waits_for for number in numbers] == waits
        (tmp_path / "go").touch()
        assert needs.result(PATIENCE) == (["done", "done"], 1)
        assert second.cached
        with pytest.raises(DependencyFailed, match="invalid literal"):
            after.result(PATIENCE)
    assert (len(begun(tmp_path)), trace.read_text()) == (1, "1\n")
    lab.end_jobs()
    lab.stop()

"""Values that are sent once, and are arguments of many calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pickle import PickleBuffer
from typing import Any

import called
import cloudpickle
import pytest

from carrel import Client, Executor
from carrel.client import body_files
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

MIB = 1024 * 1024
# Its functions travel as those of a script do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def executor(client: Client) -> Iterator[Executor]:
    with Executor(2, requirements=[], modules=[called], cpus=1, memory="512M", client=client) as executor:
        yield executor


def size_and_place(value: Any, more: dict[str, Any]) -> tuple[int, int, bool]:
    """Of a value that comes twice: its size, and where it lies."""
    return len(value), id(value), value is more["again"]


@pytest.mark.gate
@pytest.mark.parametrize("where", ["files", "http"])
def test_a_value_is_sent_once_for_many_calls(executor: Executor, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "http":  # as on another machine
        monkeypatch.setattr(body_files, "write", lambda *_: (_ for _ in ()).throw(OSError("not here")))
    value = bytes(3 * MIB)
    sent = executor.scatter(value)
    found = [executor.submit(size_and_place, sent, {"again": sent}).result(PATIENCE) for _ in range(4)]
    assert {(size, same) for size, _, same in found} == {(3 * MIB, True)}
    assert len({place for _, place, _ in found}) <= 2  # a worker keeps it
    assert sum(call.arguments_size for call in executor.client.calls(executor.pool_id)) < 10_000
    assert executor.scatter(bytes(3 * MIB)) == sent


def test_a_call_cannot_change_what_others_have(executor: Executor) -> None:
    sent = executor.scatter(PickleBuffer(bytearray(2 * MIB)))
    with pytest.raises(TypeError, match="read-only"):
        executor.submit(called.changed, sent).result(PATIENCE)


def test_a_scattered_value_is_an_argument_of_its_own_pools_calls_alone(executor: Executor, client: Client) -> None:
    sent = executor.scatter([1, 2, 3])
    assert executor.submit(sum, sent).result(PATIENCE) == 6
    with pytest.raises(TypeError, match="as an argument of a call"):
        executor.submit(lambda: sent).result(PATIENCE)
    with Executor(1, requirements=[], modules=[], memory="256M", client=client) as other:
        with pytest.raises(Invalid, match=f"of pool {executor.pool_id}"):
            other.submit(sum, sent).result(PATIENCE)


def test_equal_calls_may_have_scattered_arguments(executor: Executor) -> None:
    results = [executor.submit_cached(len, executor.scatter(b"x" * 50)) for _ in range(2)]
    assert [one.result(PATIENCE) for one in results] == [50, 50]
    assert results[1].cached


def test_tasks_of_joblib_send_a_large_array_once(client: Client, lab: LabProcess) -> None:
    from joblib import Parallel, delayed

    calls = lab.home / "calls"
    before = {one.name for one in calls.iterdir()} if calls.exists() else set()
    array = bytes(16 * MIB)
    packages = [f"joblib=={version('joblib')}"]
    with Executor(2, requirements=packages, modules=[], cpus=1, memory="256M", client=client) as executor, executor.joblib():
        assert Parallel(batch_size=1)(delayed(len)(array) for _ in range(12)) == [16 * MIB] * 12
        kept = sum(one.stat().st_size for one in calls.iterdir() if one.name not in before)
        assert 16 * MIB <= kept < 17 * MIB
        assert sum(call.arguments_size for call in client.calls(executor.pool_id)) < 100_000
    wait_until(lambda: {one.name for one in calls.iterdir()} <= before)  # the pool is over

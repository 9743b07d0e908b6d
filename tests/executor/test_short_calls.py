"""Short calls, of which a worker gets several at once: each begins once, and a long one holds none of them up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import called
import pytest
from called import begun, make_kept, short_unless

from carrel import Client, Executor
from carrel.client.executor import Future, WorkerDied
from carrel.testing.waiting import PATIENCE, wait_until

Opens = Callable[..., Executor]
Calls = Callable[..., "list[Future[int]]"]
MANY = 60


@pytest.fixture
def opens(client: Client, flags: Path) -> Iterator[Opens]:
    """Pools that know already that calls of the function are short."""
    opened: list[Executor] = []

    def opens(workers: int = 1) -> Executor:
        found = Executor(workers, requirements=[], modules=[called], cpus=1, memory="256M", client=client)
        opened.append(found)
        for number in range(100, 104):
            found.submit(short_unless, str(flags), number, -1, "").result(PATIENCE)
        (flags / "numbers").unlink()
        return found

    yield opens
    (flags / "go").touch()
    for executor in opened:
        for worker in client.pool(executor.pool_id).workers:
            client.cancel(worker.job_id)
        executor.shutdown(cancel_futures=True)


def submit(executor: Executor, flags: Path, odd: int, then: str) -> list[Future[int]]:
    arguments: list[tuple[Any, ...]] = [(str(flags), number, odd, then) for number in range(MANY)]
    return [executor.submit(short_unless, *one) for one in arguments]


def numbers(flags: Path) -> list[int]:
    """What has begun, in its order."""
    return [int(line) for line in (flags / "numbers").read_text().split()]


@pytest.mark.gate
def test_a_worker_that_dies_takes_no_other_call_with_it(opens: Opens, flags: Path) -> None:
    futures = submit(opens(), flags, 30, "dies")
    with pytest.raises(WorkerDied):
        futures[30].result(PATIENCE)
    assert [future.result(PATIENCE) for future in futures if future is not futures[30]] == [*range(30), *range(31, MANY)]
    assert numbers(flags) == list(range(MANY)), "each has begun once, in its order"


def test_a_call_that_takes_long_holds_up_none_behind_it(opens: Opens, flags: Path) -> None:
    futures = submit(opens(2), flags, 7, "waits")
    assert [future.result(PATIENCE) for future in futures if future is not futures[7]] == [*range(7), *range(8, MANY)]
    assert not futures[7].done()
    wait_until(futures[7].running, "the lab to hear that it has begun")
    (flags / "go").touch()
    assert futures[7].result(PATIENCE) == 7
    assert sorted(numbers(flags)) == list(range(MANY))


def test_calls_behind_one_that_takes_long_can_be_cancelled(opens: Opens, flags: Path) -> None:
    futures = submit(opens(), flags, 7, "waits")
    wait_until(lambda: begun(flags), "the long one to begin")
    assert [future.cancel() for future in futures[7:]] == [False] + [True] * (MANY - 8)
    (flags / "go").touch()
    assert [future.result(PATIENCE) for future in futures[:8]] == list(range(8))
    assert numbers(flags) == list(range(8))


def test_a_map_that_is_given_up_cancels_what_is_left_at_once(opens: Opens, flags: Path) -> None:
    executor = opens()
    arguments = [str(flags)] * 3000, range(3000), [0] * 3000, ["raises"] * 3000
    with pytest.raises(KeyError):
        list(executor.map(short_unless, *arguments))
    assert executor.submit(abs, -1).result(PATIENCE) == 1
    begun_before = len(numbers(flags))
    assert begun_before < 3000, "most of them never begin"
    executor.shutdown()
    assert len(numbers(flags)) == begun_before


def test_a_map_keeps_no_result_that_it_has_given(opens: Opens) -> None:
    for found in opens().map(make_kept, range(3)):
        seen = weakref.ref(found)
        del found
        gc.collect()
        assert seen() is None

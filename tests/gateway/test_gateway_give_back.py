"""Calls that a worker has while they wait for a GPU: cancelled before they begin, if the worker says that they have not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from gateway_lab import Rig
from test_gateway_pools import V1, Opens, Pool, Worker, dies, frames, opens

from carrel.testing.waiting import PATIENCE

__all__ = ["opens"]

Asked = Future[dict[str, Any]]
Cancel = Callable[[Pool, int], Asked]


@pytest.fixture
def cancel() -> Iterator[Cancel]:
    """Asks for a cancel, which waits for the worker's word."""
    with ThreadPoolExecutor() as threads:
        yield lambda pool, call: threads.submit(lambda: pool.http.post(f"{V1}/calls/{call}/cancel").raise_for_status().json())


@pytest.fixture
def borrows(opens: Opens, rig: Rig) -> Callable[..., Pool]:
    """Opens pools whose workers borrow a GPU for each call."""
    rig.lender.socket = "/run/broker"

    def borrows(**more: Any) -> Pool:
        task = {"snapshot": rig.upload("ada"), "resources": {"gpus": 1}}
        pool = opens(reserve=False, task=task, **more)
        assert pool.view()["borrows"] == 1
        return pool

    return borrows


def hears(worker: Worker, call: int, **more: Any) -> str:
    """What the worker hears of its call."""
    query = {"call": call, "wait": 20, **more}
    answer = worker.http.post(f"{V1}/pools/{worker.pool}/interrupts", params=query).raise_for_status()
    ((header, _),) = frames(answer.content)
    return str(header["type"])


def taken(pool: Pool, **more: Any) -> tuple[Worker, int]:
    """A worker with a call that waits for its GPU."""
    (call,) = pool.calls(b"1", **more)
    (worker,) = pool.workers(1)
    assert worker.ask()[0]["call"] == call
    return worker, call


@pytest.mark.gate
def test_a_call_that_its_worker_gives_back_is_cancelled(borrows: Callable[..., Pool], cancel: Cancel) -> None:
    pool = borrows()
    worker, call = taken(pool)
    (after,) = pool.calls(b"2")
    asked = cancel(pool, call)
    assert hears(worker, call, begun=False) == "return"
    assert not asked.done(), "the worker has not said yet which came first"
    assert worker.ask()[0]["call"] == after
    assert asked.result(PATIENCE)["state"] == "CANCELLED"
    assert [(header["call"], header["state"]) for header, _ in pool.ended()] == [(call, "CANCELLED")]


def test_a_call_whose_gpu_came_first_goes_on(borrows: Callable[..., Pool], cancel: Cancel) -> None:
    pool = borrows()
    worker, call = taken(pool)
    asked = cancel(pool, call)
    assert hears(worker, call, begun=False) == "return"
    hears(worker, call, begun=True, wait=0)
    assert asked.result(PATIENCE)["state"] == "RUNNING"
    assert cancel(pool, call).result(PATIENCE)["state"] == "RUNNING", "it is known now"
    worker.end(call)
    assert [header["state"] for header, _ in pool.ended()] == ["COMPLETED"]


def test_a_call_that_ends_meanwhile_has_its_result(borrows: Callable[..., Pool], cancel: Cancel) -> None:
    pool = borrows()
    worker, call = taken(pool)
    asked = cancel(pool, call)
    assert hears(worker, call, begun=False) == "return"
    worker.end(call)
    assert asked.result(PATIENCE)["state"] == "COMPLETED"


def test_one_that_waits_again_because_its_worker_died_is_cancelled_in_line(
    borrows: Callable[..., Pool], cancel: Cancel, rig: Rig
) -> None:
    pool = borrows()
    worker, call = taken(pool, retries=1)
    asked = cancel(pool, call)
    assert hears(worker, call, begun=False) == "return"
    dies(rig, worker.job)
    assert asked.result(PATIENCE)["state"] == "CANCELLED"
    assert [header["state"] for header, _ in pool.ended()] == ["CANCELLED"]


def test_an_interrupt_is_heard_before_the_call_has_begun(borrows: Callable[..., Pool]) -> None:
    pool = borrows()
    worker, call = taken(pool)
    assert pool.http.post(f"{V1}/calls/{call}/interrupt").json()["state"] == "RUNNING"
    assert hears(worker, call, begun=False) == "interrupt"


def test_a_worker_that_knows_of_no_giving_back_keeps_its_call(borrows: Callable[..., Pool], cancel: Cancel) -> None:
    pool = borrows()
    worker, call = taken(pool)
    hears(worker, call, wait=0)
    assert cancel(pool, call).result(PATIENCE)["state"] == "RUNNING"


def test_a_pool_that_is_closed_with_its_calls_wants_back_what_waits_for_a_gpu(borrows: Callable[..., Pool]) -> None:
    pool = borrows()
    worker, call = taken(pool)
    pool.http.post(f"{V1}/pools/{pool.id}/close", params={"cancel": "true"}).raise_for_status()
    assert hears(worker, call, begun=False) == "return"
    assert worker.ask()[0]["type"] == "retire"
    assert [(header["call"], header["state"]) for header, _ in pool.ended()] == [(call, "CANCELLED")]

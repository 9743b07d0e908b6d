"""Pools whose program is gone: it was killed, its machine sleeps, it ended without a word."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import a_lab, client, serve
from test_gateway_pools import V1, Pool

from carrel.core.domain.call import WorkerPool
from carrel.lab.gateway.pool_workers import PoolWorkers

DAY = 86_400.0


@pytest.fixture
def now() -> list[float]:
    return [1_800_000_000.0]


@pytest.fixture
def opens(tmp_path: Path, now: list[float]) -> Iterator[Callable[..., Pool]]:
    opened: list[httpx.Client] = []
    with a_lab(tmp_path, clock=lambda: now[0], heartbeat=0.05) as rig, serve(rig.app) as url:
        with client(url, rig.headers("ada")) as http:

            def opens(**more: Any) -> Pool:
                answer = http.post(f"{V1}/pools", json={"task": {"snapshot": rig.upload("ada")}, "max_workers": 1, **more})
                return Pool(rig=rig, http=http, url=url, id=answer.raise_for_status().json()["id"], opened=opened)

            yield opens
        for one in opened:
            one.close()


@contextmanager
def followed(pool: Pool) -> Iterator[None]:
    """A client follows the pool's calls."""
    there, leave = threading.Event(), threading.Event()

    def follow() -> None:
        with pool.http.stream("GET", f"{V1}/pools/{pool.id}/results") as stream:
            for _ in stream.iter_raw():
                there.set()
                if leave.is_set():
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    there.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


@pytest.mark.gate
def test_no_worker_is_kept_for_a_program_that_is_gone(opens: Callable[..., Pool], now: list[float]) -> None:
    pool = opens(min_workers=1, idle_time=10)
    (worker,) = pool.workers(1)
    with followed(pool):
        assert pool.view()["unfollowed_since"] is None
        worker.ask()
        now[0] += 3600
        assert worker.ask()[0]["type"] == "none"
    pool.rig.wait_for(lambda: pool.view()["unfollowed_since"] is not None)
    now[0] += 299
    assert worker.ask()[0]["type"] == "none"
    assert pool.ended() == []  # a client that asks is there, too
    (call,) = pool.calls(b"x")
    now[0] += 301
    assert worker.ask()[0]["call"] == call  # it is carried out all the same
    assert worker.end(call)[0]["type"] == "none"
    now[0] += 10
    assert worker.ask()[0]["type"] == "retire"
    with followed(pool):
        assert len(pool.workers(1)) == 1


def test_a_pool_that_is_left_for_a_day_is_closed(opens: Callable[..., Pool], now: list[float]) -> None:
    left, busy = opens(), opens()
    busy.calls(b"x")
    now[0] += DAY
    other = opens()  # something happens, and all are looked at
    left.rig.wait_for(lambda: left.view()["closed_at"] is not None)
    assert [one["id"] for one in left.http.get(f"{V1}/pools").json()["pools"]] == [other.id, busy.id]


def test_a_worker_that_is_made_while_its_pool_is_closed_may_leave(
    opens: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, http = PoolWorkers.start, opens().http

    def late(workers: PoolWorkers, pool: WorkerPool, key: str) -> int:
        job = start(workers, pool, key)
        http.post(f"{V1}/pools/{pool.id}/close").raise_for_status()
        return job

    monkeypatch.setattr(PoolWorkers, "start", late)
    (worker,) = opens(min_workers=1).workers(1)
    assert worker.ask()[0]["type"] == "retire"

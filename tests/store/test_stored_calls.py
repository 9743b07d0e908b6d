"""Pools and calls, on every database that a lab may use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stored import add_jobs, new_job

from carrel.core.domain.call import Body, CallState, Ending, NewCall, WorkerPool
from carrel.core.domain.retention import Kind, RetentionRules
from carrel.lab.retention import Collector
from carrel.lab.retention.collector import Places
from carrel.lab.store import Store

POOL = WorkerPool(
    owner="ada", created_at=3.0, name="p", min_workers=0, max_workers=2, idle_time=1.5, task={"snapshot": "sha256:1"}
)


@pytest.fixture
def store(store: Store) -> Store:
    """Job 1 is Ada's."""
    add_jobs(store, new_job(name="worker"))
    return store


def new(key: str, body: bytes = b"x", path: Path | None = None) -> NewCall:
    kept = Body(size=len(body), data=body) if path is None else Body(size=len(body), path=str(path))
    return NewCall(key=key, label="f", function="sha256:f", retries=1, body=kept)


def ending(call: int, body: bytes = b"r", path: Path | None = None) -> Ending:
    kept = Body(size=len(body), data=body) if path is None else Body(size=len(body), path=str(path))
    return Ending(call_id=call, state=CallState.COMPLETED, body=kept, stdout=b"\0said")


@pytest.mark.gate
def test_a_call_is_written_down_once_begins_once_and_ends_once(store: Store) -> None:
    table = store.calls
    pool = table.add_pool(POOL)
    assert table.pool(pool.id) == pool
    (first, fresh), (second, _) = table.add_calls(pool.id, [new("a"), new("b", b"yy")], now=4.0)
    assert fresh
    assert table.add_calls(pool.id, [new("b"), new("c")], now=5.0)[0] == (second, False)
    assert table.begin([first], job_id=1, attempt=1, now=6.0) == {first}
    assert table.begin([first], job_id=1, attempt=2, now=6.0) == set()
    running, *_ = table.open_calls(pool.id)
    assert (running.id, running.state) == (first, CallState.RUNNING)
    table.end({1: ending(first)}, now=7.0)
    table.end({2: ending(first, b"again")}, now=8.0)
    assert (table.last_ended(pool.id), table.result(first).data) == (1, b"r")
    assert table.printed(first) == (b"\0said", b"")
    (ended,) = table.ended(pool.id, after=0, limit=10)
    assert (ended.id, ended.ended_number, ended.ended_at, ended.job_id) == (first, 1, 7.0, 1)
    assert table.arguments(second).data == b"yy"
    assert table.counts(pool.id) == {"COMPLETED": 1, "PENDING": 2}


def test_a_call_that_is_lost_waits_again_with_what_it_has_left(store: Store) -> None:
    table = store.calls
    pool = table.add_pool(replace(POOL, parent=1))
    ((call, _),) = table.add_calls(pool.id, [new("a")], now=4.0)
    table.begin([call], job_id=1, attempt=1, now=5.0)
    table.again({call: 0})
    found = table.call(call)
    assert (found.state, found.retries_left, found.job_id, found.started_at) == (CallState.PENDING, 0, None, None)


def test_functions_are_kept_once_and_workers_are_known(store: Store) -> None:
    table = store.calls
    pool = table.add_pool(POOL)
    assert table.add_function(pool.id, "sha256:f", Body(size=1, data=b"f"))
    assert not table.add_function(pool.id, "sha256:f", Body(size=1, data=b"f"))
    assert table.function(pool.id, "sha256:f") == Body(size=1, data=b"f")
    assert table.function(pool.id, "sha256:g") is None
    table.add_worker(pool.id, 1)
    assert table.workers(pool.id) == [1]


def test_a_closed_pool_is_taken_up_only_while_it_has_calls(store: Store) -> None:
    table = store.calls
    pool = table.add_pool(POOL)
    ((call, _),) = table.add_calls(pool.id, [new("a")], now=4.0)
    table.close_pool(pool.id, now=5.0)
    assert [one.id for one in table.unfinished_pools()] == [pool.id]
    assert (table.pools(owner="ada"), [one.id for one in table.pools(owner="ada", closed=True)]) == ([], [pool.id])
    table.end({1: ending(call)}, now=6.0)
    assert table.unfinished_pools() == []


def test_old_calls_go_with_their_files_and_pools_after_them(store: Store, tmp_path: Path) -> None:
    table, places = store.calls, [tmp_path / "calls" / name for name in ("in", "out", "function", "young", "stray")]
    (tmp_path / "calls").mkdir()
    for place in places:
        place.write_bytes(b"content")
    pool = table.add_pool(POOL)
    table.add_worker(pool.id, 1)
    table.add_function(pool.id, "sha256:f", Body(size=7, path=str(places[2])))
    (old, _), (young, _) = table.add_calls(pool.id, [new("a", path=places[0]), new("b")], now=4.0)
    (arguments,) = table.end({1: ending(old, path=places[1])}, now=10.0)
    assert arguments == Body(size=1, path=str(places[0]))
    table.end({2: ending(young, path=places[3])}, now=90.0)
    table.close_pool(pool.id, now=10.0)
    now = [100.0]
    collector = Collector(
        Places(spool=tmp_path, snapshots=tmp_path, blobs=tmp_path, calls=tmp_path / "calls"),
        store.retention,
        rules=lambda: RetentionRules(calls=50, unused=None),
        clock=lambda: now[0],
        calls=table,
    )

    def collect(*, dry_run: bool = False) -> int:
        (found,) = collector.collect([Kind.CALLS], dry_run=dry_run)
        assert found.trouble == ""
        return found.count

    assert (collect(dry_run=True), table.counts(pool.id)) == (1, {"COMPLETED": 2})
    assert (collect(), table.counts(pool.id)) == (1, {"COMPLETED": 1})
    assert [place.exists() for place in places] == [True, False, True, True, True]  # the first is the caller's to remove
    now[0] = 200.0
    assert collect() == 1
    assert table.pool(pool.id) is None
    assert [place.exists() for place in places] == [True, False, False, False, True]


def test_files_that_no_call_names_go_when_they_are_old(store: Store, tmp_path: Path) -> None:
    import os

    pool = store.calls.add_pool(POOL)
    places = [tmp_path / name for name in ("named", "old", "new")]
    for place in places:
        place.write_bytes(b"content")
        os.utime(place, (10.0, 10.0) if place.name != "new" else (95.0, 95.0))
    store.calls.add_calls(pool.id, [new("a", path=places[0])], now=4.0)
    collector = Collector(
        Places(spool=tmp_path, snapshots=tmp_path, blobs=tmp_path, calls=tmp_path),
        store.retention,
        rules=lambda: RetentionRules(unused=50),
        clock=lambda: 100.0,
        calls=store.calls,
    )
    collector.collect([Kind.CALLS])
    assert [place.exists() for place in places] == [True, False, True]


def test_what_a_waiting_call_needs_is_kept(store: Store) -> None:
    table = store.calls
    pool = table.add_pool(POOL)
    ((old, _),) = table.add_calls(pool.id, [new("a")], now=4.0)
    ((waits, _),) = table.add_calls(pool.id, [replace(new("b"), dependencies=(old,))], now=4.0)
    table.end({1: ending(old)}, now=5.0)
    assert table.dependencies([old, waits]) == {waits: [old]}
    assert table.states("ada", [old, waits]) == {old: CallState.COMPLETED, waits: CallState.PENDING}
    assert table.states("bob", [old, waits]) == {}
    assert table.old(50.0) == (0, [])
    table.drop_old(50.0)
    assert table.call(old) is not None
    table.end({2: ending(waits)}, now=6.0)
    table.drop_old(50.0)
    assert (table.call(old), table.call(waits)) == (None, None)


def test_kept_results_go_by_age_and_by_size_those_used_longest_ago_first(store: Store, tmp_path: Path) -> None:
    table, places = store.calls, [tmp_path / str(number) for number in range(3)]
    pool = table.add_pool(POOL)
    wanted = [replace(new(str(number)), cache=f"sha256:{number}") for number in range(3)]
    numbers = [number for number, _ in table.add_calls(pool.id, wanted, now=4.0)]
    for order, (number, place) in enumerate(zip(numbers, places, strict=True), start=1):
        place.write_bytes(b"x" * 10)
        table.end({order: ending(number)}, now=10.0 * order, keep={number: Body(size=10, path=str(place))})
    assert set(places) <= table.files()
    assert list(table.cached("bob", ["sha256:0"], now=35.0)) == []
    assert table.cached("ada", ["sha256:0", "sha256:9"], now=35.0)["sha256:0"].call_id == numbers[0]
    rules = [RetentionRules(cached=None, cached_size=25, unused=None), RetentionRules(cached=65, unused=None)]
    collector = Collector(
        Places(spool=tmp_path, snapshots=tmp_path, blobs=tmp_path, calls=tmp_path),
        store.retention,
        rules=lambda: rules[0],
        clock=lambda: 100.0,
        calls=table,
    )
    (found,) = collector.collect([Kind.CALLS], dry_run=True)
    assert (found.trouble, found.count) == ("", 1)
    assert [place.exists() for place in places] == [True, True, True]
    collector.collect([Kind.CALLS])
    assert [place.exists() for place in places] == [True, False, True]
    rules.reverse()
    collector.collect([Kind.CALLS])
    assert [place.exists() for place in places] == [True, False, False]
    assert table.forget_cached("ada", "g") == (0, [])
    assert table.forget_cached("ada", "f") == (1, [Body(size=10, path=str(places[0]))])

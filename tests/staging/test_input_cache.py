"""Inputs that were fetched before: taken again where they are the same, and never where they are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest
from test_staging_web import digest, say, serving

from carrel.core.domain.task import InputSpec
from carrel.node.staging.cache import InputCache, open_cache
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import stage_inputs

CONTENT = b"rows\n" * 1000
Stage = Callable[..., bytes]


@pytest.fixture
def cache(tmp_path: Path) -> InputCache:
    found = open_cache(str(tmp_path / "cache"), 10_000, leave=0)
    assert found is not None
    return found


@pytest.fixture
def stage(tmp_path: Path, cache: InputCache) -> Stage:
    """Stages one input for one more job and returns what that job finds, which then writes over it."""
    jobs = iter(range(100))

    def staged(uri: str, expected: str | None = None) -> bytes:
        work = tmp_path / f"job{next(jobs)}"
        work.mkdir()
        item = InputSpec(path="data.csv", uri=uri, digest=expected)
        found = stage_inputs((item,), work, lambda _text: None, cache=cache)
        data = (work / "data.csv").read_bytes()
        assert found == {"data.csv": digest(data)}
        (work / "data.csv").write_bytes(b"changed by the job")
        return data

    return staged


@pytest.mark.gate
def test_what_did_not_change_comes_once(stage: Stage) -> None:
    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        if asked[-1].get("If-None-Match") == '"one"':
            say(handler, 304, b"")
        else:
            say(handler, 200, CONTENT, ETag='"one"')

    with serving(respond) as (url, asked):
        assert [stage(f"{url}/data.csv") for _ in range(3)] == [CONTENT] * 3
    assert ["If-None-Match" in headers for headers in asked] == [False, True, True]


def test_what_changed_comes_again(stage: Stage) -> None:
    now, data = ["Mon, 02 Nov 2026 10:00:00 GMT"], [CONTENT]

    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        if asked[-1].get("If-Modified-Since") == now[-1]:
            say(handler, 304, b"")
        else:
            say(handler, 200, data[-1], Last_Modified=now[-1])

    with serving(respond) as (url, _asked):
        assert stage(url) == stage(url) == CONTENT
        now.append("Tue, 03 Nov 2026 10:00:00 GMT")
        data.append(b"new rows")
        assert stage(url) == stage(url) == b"new rows"


@pytest.mark.parametrize("mark", [{}, {"ETag": 'W/"weak"'}], ids=["no mark", "a weak one"])
def test_a_place_that_does_not_say_what_it_has_is_read_each_time(stage: Stage, mark: dict[str, str]) -> None:
    with serving(lambda handler, _asked: say(handler, 200, CONTENT, **mark)) as (url, asked):
        assert stage(url) == stage(url) == CONTENT
    assert len(asked) == 2


def test_with_a_digest_nobody_is_asked(stage: Stage) -> None:
    with serving(lambda handler, _asked: say(handler, 200, CONTENT)) as (url, asked):
        assert stage(url, digest(CONTENT)) == CONTENT
        assert stage(f"{url}/elsewhere", digest(CONTENT)) == CONTENT
        assert len(asked) == 1
        with pytest.raises(InputFailed, match="the task expects"):
            stage(url, digest(b"other"))


def test_damage_is_found_and_the_place_asked_again(stage: Stage, tmp_path: Path) -> None:
    with serving(lambda handler, _asked: say(handler, 200, CONTENT)) as (url, asked):
        stage(url, digest(CONTENT))
        (kept,) = (tmp_path / "cache/content").iterdir()
        kept.write_bytes(b"damaged")
        assert stage(url, digest(CONTENT)) == CONTENT
        assert len(asked) == 2
        assert stage(url, digest(CONTENT)) == CONTENT
        assert len(asked) == 2


def test_what_was_not_used_for_the_longest_time_makes_room(stage: Stage, tmp_path: Path) -> None:
    contents = [bytes([65 + number]) * 4000 for number in range(3)]
    place = tmp_path / "cache/content"

    def respond(handler: BaseHTTPRequestHandler, asked: list[dict[str, str]]) -> None:
        say(handler, 200, contents[int(asked[-1][":path"][1:])])

    def kept() -> set[int]:
        return {number for number, data in enumerate(contents) if (place / digest(data)[7:]).exists()}

    def used(number: int, seconds: float) -> None:
        os.utime(place / digest(contents[number])[7:], (time.time() - seconds,) * 2)

    with serving(respond) as (url, asked):
        for number in (0, 1):
            stage(f"{url}/{number}", digest(contents[number]))
            used(number, 100 - number)
        stage(f"{url}/0", digest(contents[0]))  # used now
        stage(f"{url}/2", digest(contents[2]))
        assert (kept(), len(asked)) == ({0, 2}, 3)
        used(0, 40 * 86400)
        used(2, 41 * 86400)
        stage(f"{url}/1", digest(contents[1]))
        assert kept() == {1}


def test_what_is_larger_than_the_cache_is_not_kept(stage: Stage, tmp_path: Path) -> None:
    with serving(lambda handler, _asked: say(handler, 200, b"x" * 20_000)) as (url, _asked):
        stage(url)
    assert list((tmp_path / "cache/content").iterdir()) == []


def test_an_object_of_a_store_comes_again_when_the_store_says_another_mark(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fsspec.filesystem("memory")
    opened: list[str] = []
    marks = {"ETag": "one"}
    info, opening = type(store).info, type(store)._open

    def told(self: object, path: str, **more: object) -> dict[str, object]:
        return {**info(self, path, **more), **marks}

    def noted(self: object, path: str, *words: object, **more: object) -> object:
        opened.append(path)
        return opening(self, path, *words, **more)

    store.pipe("/bucket/data.csv", CONTENT)
    monkeypatch.setattr(type(store), "info", told)
    monkeypatch.setattr(type(store), "_open", noted)
    assert stage("memory://bucket/data.csv") == stage("memory://bucket/data.csv") == CONTENT
    assert len(opened) == 1
    store.store["/bucket/data.csv"].seek(0)
    store.store["/bucket/data.csv"].truncate()
    store.store["/bucket/data.csv"].write(b"new rows")
    marks["ETag"] = "two"
    assert stage("memory://bucket/data.csv") == b"new rows"


def test_what_would_fill_the_disk_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(CONTENT)
    cache = open_cache(str(tmp_path / "cache"), 10_000, leave=2**62)
    cache.keep(digest(CONTENT), tmp_path / "rows", uri="memory://rows", mark="one")
    assert cache.seen("memory://rows") is None
    assert list((tmp_path / "cache/content").iterdir()) == []


def test_a_cache_that_cannot_be_used_costs_nothing_but_time(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a directory")
    with serving(lambda handler, _asked: say(handler, 200, CONTENT, ETag='"one"')) as (url, asked):
        assert stage(url) == stage(url) == CONTENT
    assert len(asked) == 2

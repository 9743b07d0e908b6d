"""Pools of workers over REST, with workers whose every request is the test's own."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from gateway_lab import V1, Rig, a_lab, client, serve

from carrel.core.domain.call import INLINE
from carrel.core.domain.job import JobState, Reason
from carrel.testing.waiting import PATIENCE
from carrel.wire.frames import Decoder, encode

FUNCTION = "sha256:" + "1" * 64


def frames(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    found: list[tuple[dict[str, Any], bytes]] = []
    decoder = Decoder()
    for kind, value in decoder.feed(data):
        if kind == "frame":
            found.append((value, b""))
        elif kind == "data":
            found[-1] = (found[-1][0], found[-1][1] + value)
    assert decoder.between
    return found


@dataclass
class Worker:
    """What a worker says."""

    http: httpx.Client
    job: int
    pool: int
    holding: list[int] = field(default_factory=list)

    def ask(self, *parts: bytes, wait: float = 0, take: bool = True) -> tuple[dict[str, Any], bytes]:
        body = encode({"type": "holding", "calls": self.holding}) + b"".join(parts)
        query = {"wait": wait, "take": str(take).lower()}
        answer = self.http.post(f"{V1}/pools/{self.pool}/work", params=query, content=body)
        assert answer.status_code == 200, answer.text
        (found,) = frames(answer.content)
        return found

    def prints(self, call: int, stream: str, offset: int, data: bytes) -> None:
        header = {"type": "output", "call": call, "stream": stream, "offset": offset}
        self.http.post(f"{V1}/pools/{self.pool}/output", content=encode(header, data)).raise_for_status()

    def end(self, call: int, body: bytes = b"result", take: bool = True, **header: Any) -> tuple[dict[str, Any], bytes]:
        return self.ask(encode({"type": "ended", "call": call, "state": "COMPLETED", **header}, body), take=take)


@dataclass
class Pool:
    rig: Rig
    http: httpx.Client
    url: str
    id: int
    opened: list[httpx.Client]

    def calls(self, *bodies: bytes, retries: int = 0, keys: list[str] | None = None, **more: Any) -> list[int]:
        self.http.put(f"{V1}/pools/{self.id}/functions/{FUNCTION}", content=encode({}, b"function")).raise_for_status()
        keys = keys or [secrets.token_hex(8) for _ in bodies]
        content = b"".join(
            encode({"key": key, "label": "f", "function": FUNCTION, "retries": retries} | more, body)
            for key, body in zip(keys, bodies, strict=True)
        )
        answer = self.http.post(f"{V1}/pools/{self.id}/calls", content=content)
        assert answer.status_code == 201, answer.text
        return list(answer.json()["calls"])

    def workers(self, number: int) -> list[Worker]:
        def there() -> bool:
            return len(self.view()["workers"]) == number

        self.rig.wait_for(there)
        return [self.worker(one["job_id"]) for one in self.view()["workers"]]

    def worker(self, job: int) -> Worker:
        _, token = self.rig.engine.wait_started(job)
        self.rig.engine.run(job)
        self.rig.wait(job, JobState.RUNNING)
        http = client(self.url, {"Authorization": f"Bearer {token}"})
        self.opened.append(http)
        return Worker(http=http, job=job, pool=self.id)

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{V1}/pools/{self.id}").raise_for_status().json()
        return found

    def ended(self, after: int = 0) -> list[tuple[dict[str, Any], bytes]]:
        answer = self.http.get(f"{V1}/pools/{self.id}/results", params={"after": after, "stream": "false"})
        return frames(answer.raise_for_status().content)

    def state(self, call: int) -> str:
        return str(self.http.get(f"{V1}/calls/{call}").raise_for_status().json()["state"])


Opens = Callable[..., Pool]


@pytest.fixture
def opens(rig: Rig, ada: httpx.Client, url: str) -> Iterator[Opens]:
    opened: list[httpx.Client] = []

    def opens(**more: Any) -> Pool:
        body = {"max_workers": 1, "task": {"snapshot": rig.upload("ada")}, **more}
        answer = ada.post(f"{V1}/pools", json=body)
        assert answer.status_code == 201, answer.text
        return Pool(rig=rig, http=ada, url=url, id=answer.json()["id"], opened=opened)

    yield opens
    for http in opened:
        http.close()


@pytest.fixture
def pool(opens: Opens) -> Pool:
    return opens()


def dies(rig: Rig, job: int) -> None:
    rig.engine.end(job, state=JobState.FAILED, reason=Reason(code="Failed", message="it was killed"), exit_code=1)
    rig.wait(job, JobState.FAILED)


@pytest.mark.gate
def test_a_call_goes_to_a_worker_and_its_result_comes_back(pool: Pool) -> None:
    (call,) = pool.calls(b"arguments")
    (worker,) = pool.workers(1)
    launch, _ = pool.rig.engine.wait_started(worker.job)
    assert launch.task.pool == pool.id
    assert worker.ask() == ({"type": "call", "call": call, "function": FUNCTION, "size": 9}, b"arguments")
    assert pool.state(call) == "RUNNING"
    assert worker.http.get(f"{V1}/pools/{pool.id}/functions/{FUNCTION}").content == b"function"
    printed = encode({"type": "stdout"}, b"said") + encode({"type": "stderr"}, b"warned")
    told = encode({"type": "ended", "call": call, "state": "COMPLETED"}, b"result")
    assert worker.ask(printed + told)[0]["type"] == "none"
    ((header, body),) = pool.ended()
    assert (header["call"], header["number"], header["state"], header["job"]) == (call, 1, "COMPLETED", worker.job)
    assert (header["stdout"], header["stderr"], header["inline"], body) == (4, 6, True, b"saidwarnedresult")
    assert pool.http.get(f"{V1}/calls/{call}/result").content == b"result"
    assert pool.ended(after=1) == []


def test_who_begins_to_follow_hears_first_what_a_call_has_printed_and_shown(pool: Pool) -> None:
    call, second = pool.calls(b"first", b"second")
    (worker,) = pool.workers(1)
    worker.ask()

    def of(call: int, stream: str = "stdout", at: int = 0, data: bytes = b"said") -> bytes:
        return encode({"type": "output", "call": call, "stream": stream, "offset": at}, data)

    pieces = [("stdout", 0, b"before"), ("display", 0, b"{}"), ("stdout", 6, b"after")]
    told = [of(call, *piece) for piece in pieces]
    worker.http.post(f"{V1}/pools/{pool.id}/output", content=b"".join(told)).raise_for_status()

    def hears(number: int, after: int = 0) -> list[tuple[Any, ...]]:
        """The first frames of a stream, but for those that say that it is alive."""
        found: list[tuple[Any, ...]] = []
        decoder = Decoder()
        with pool.http.stream("GET", f"{V1}/pools/{pool.id}/results", params={"after": after}, timeout=PATIENCE) as answer:
            for data in answer.iter_bytes():
                heads = [value for kind, value in decoder.feed(data) if kind == "frame" and value["type"] != "alive"]
                found += [(one["type"], one["call"], one.get("stream"), one.get("offset")) for one in heads]
                if len(found) >= number:
                    return found
        raise AssertionError(found)

    outputs = [("output", call, stream, at) for stream, at, _ in pieces]
    assert hears(4) == [("begun", call, None, None), *outputs]
    worker.end(call, take=False)
    assert hears(4) == [*outputs, ("ended", call, None, None)], "in their order, though it is over"
    assert worker.ask()[0]["call"] == second
    worker.http.post(f"{V1}/pools/{pool.id}/output", content=told[0]).raise_for_status()  # late: of a call that is over
    worker.http.post(f"{V1}/pools/{pool.id}/output", content=of(second)).raise_for_status()
    assert hears(2, after=1) == [("begun", second, None, None), ("output", second, "stdout", 0)]


def test_a_worker_is_not_run_again(pool: Pool) -> None:
    pool.calls(b"")
    (worker,) = pool.workers(1)
    answer = pool.http.post(f"{V1}/jobs/{worker.job}/rerun")
    assert (answer.status_code, answer.json()["detail"]) == (422, f"Job {worker.job} is a worker of pool {pool.id}.")


def test_large_bodies_go_through_files_and_come_back_whole(pool: Pool) -> None:
    large = bytes(range(256)) * (INLINE // 64)
    (call,) = pool.calls(large)
    (worker,) = pool.workers(1)
    assert worker.ask()[1] == large
    worker.end(call, large[::-1])
    ((header, body),) = pool.ended()
    assert (header["inline"], body) == (False, b"")
    assert pool.http.get(f"{V1}/calls/{call}/result").content == large[::-1]


def test_what_a_call_printed_may_be_longer_than_what_fits_into_a_row(pool: Pool) -> None:
    (call,) = pool.calls(b"x")
    (worker,) = pool.workers(1)
    worker.ask()
    printed = (300 * 1024).to_bytes(8, "big") + b"y" * 256 * 1024
    ended = encode({"type": "ended", "call": call, "state": "COMPLETED"}, b"result")
    worker.ask(encode({"type": "stdout"}, printed), encode({"type": "stderr"}, printed), ended)
    ((header, body),) = pool.ended()
    assert (header["stdout"], header["stderr"], body) == (len(printed), len(printed), printed + printed + b"result")
    assert list((pool.rig.home / "calls").iterdir()) == []
    answer = worker.http.post(f"{V1}/pools/{pool.id}/work", content=encode({"type": "stdout"}, b"y" * 1024 * 1024 + b"y"))
    assert answer.status_code == 413


def test_text_that_no_encoding_has_is_taken(pool: Pool) -> None:
    (call,) = pool.calls(b"x", label="caf\udce9")
    (worker,) = pool.workers(1)
    worker.ask()
    worker.end(call, state="FAILED", error="\udce9\0", message="cannot read caf\udce9.csv\0")
    ((header, _),) = pool.ended()
    assert header["message"] == "cannot read caf\\udce9.csv"
    assert pool.http.get(f"{V1}/calls/{call}").json()["label"] == "caf\\udce9"


def test_arguments_go_when_a_call_has_ended(pool: Pool) -> None:
    calls = pool.calls(b"x" * (INLINE + 1), b"y" * (INLINE + 1), retries=1)
    (worker,) = pool.workers(1)
    worker.ask()
    worker.end(calls[0])
    assert len(list((pool.rig.home / "calls").iterdir())) == 1
    dies(pool.rig, worker.job)
    pool.rig.wait_for(lambda: [one for one in pool.view()["workers"] if one["job_id"] != worker.job])  # the pool has heard of it
    ((_, second),) = [one.ask() for one in pool.workers(1)]
    assert second == b"y" * (INLINE + 1)
    pool.worker(pool.view()["workers"][0]["job_id"]).end(calls[1])
    assert list((pool.rig.home / "calls").iterdir()) == []


def test_a_worker_is_told_how_long_a_call_may_take(pool: Pool) -> None:
    (first,) = pool.calls(b"x", time_limit=2.5)
    pool.calls(b"y")
    (worker,) = pool.workers(1)
    assert worker.ask()[0]["time_limit"] == 2.5
    assert "time_limit" not in worker.end(first)[0]
    assert [one["time_limit"] for one in pool.http.get(f"{V1}/pools/{pool.id}/calls").json()["calls"]] == [None, 2.5]


def test_the_same_key_is_the_same_call(pool: Pool) -> None:
    first = pool.calls(b"1", b"2", keys=["a", "b"])
    assert pool.calls(b"2", b"3", keys=["b", "c"])[0] == first[1]
    assert len(pool.http.get(f"{V1}/pools/{pool.id}/calls").json()["calls"]) == 3


def test_calls_are_taken_in_their_order_by_as_many_workers_as_there_may_be(opens: Opens) -> None:
    pool = opens(max_workers=2)
    calls = pool.calls(b"1", b"2", b"3")
    first, second = pool.workers(2)
    assert [first.ask()[0]["call"], second.ask()[0]["call"]] == calls[:2]
    assert first.end(calls[0])[0]["call"] == calls[2]
    assert second.end(calls[1])[0]["type"] == "none"


def test_a_call_that_never_reached_its_worker_waits_again(pool: Pool) -> None:
    (call,) = pool.calls(b"x")
    (worker,) = pool.workers(1)
    assert worker.ask()[0]["call"] == call
    assert worker.ask(take=False)[0]["type"] == "none"
    assert pool.state(call) == "PENDING"
    assert worker.ask()[0]["call"] == call
    worker.holding = [call]
    assert worker.ask(take=False)[0]["type"] == "none"
    assert pool.state(call) == "RUNNING"


def test_a_call_whose_worker_died_fails_and_says_why(pool: Pool) -> None:
    (call,) = pool.calls(b"x")
    (worker,) = pool.workers(1)
    worker.ask()
    dies(pool.rig, worker.job)
    pool.rig.wait_for(lambda: pool.state(call) == "FAILED")
    ((header, _),) = pool.ended()
    assert header["error"] == "worker_died"
    assert "it was killed" in header["message"]
    assert f"carrel logs {worker.job}" in header["message"]


def test_the_last_words_of_a_worker_are_what_its_call_printed(pool: Pool) -> None:
    (call,) = pool.calls(b"x")
    (worker,) = pool.workers(1)
    worker.ask()
    for offset, data in ((0, b"one "), (4, b"two "), (2, b"e two three"), (4, b"two ")):  # the end comes again, whole
        worker.prints(call, "stderr", offset, data)
    log = pool.http.get(f"{V1}/calls/{call}/log").json()
    assert log == {"stdout": "", "stderr": "one two three", "stdout_size": 0, "stderr_size": 13}
    pool.rig.engine.end(
        worker.job, state=JobState.COMPLETED, reason=Reason(code="Completed", message="Exit code 0."), exit_code=0
    )
    pool.rig.wait_for(lambda: pool.state(call) == "FAILED")
    ((header, body),) = pool.ended()
    assert body == (13).to_bytes(8, "big") + b"one two three"
    assert header["job"] == worker.job
    assert header["message"].startswith(f"Its worker died: job {worker.job} ended by itself. Exit code 0.")


def test_a_call_with_retries_begins_again_elsewhere_and_so_often(pool: Pool) -> None:
    (call,) = pool.calls(b"x", retries=1)
    (first,) = pool.workers(1)
    assert first.ask()[0]["call"] == call
    dies(pool.rig, first.job)
    pool.rig.wait_for(lambda: [one["job_id"] for one in pool.view()["workers"]] not in ([], [first.job]))
    (second,) = pool.workers(1)
    assert second.ask()[0]["call"] == call
    dies(pool.rig, second.job)
    pool.rig.wait_for(lambda: pool.state(call) == "FAILED")


def test_an_ending_that_is_told_twice_counts_once(pool: Pool) -> None:
    calls = pool.calls(b"x", b"y")
    (worker,) = pool.workers(1)
    worker.ask()
    assert worker.end(calls[0], b"first")[0]["call"] == calls[1]
    worker.holding = [calls[1]]
    worker.ask(encode({"type": "ended", "call": calls[0], "state": "FAILED"}, b"second"), take=False)
    assert [(header["state"], body) for header, body in pool.ended()] == [("COMPLETED", b"first")]
    assert pool.state(calls[1]) == "RUNNING"


def test_a_worker_ends_only_the_call_that_it_has(opens: Opens) -> None:
    pool = opens(max_workers=2)
    calls = pool.calls(b"1", b"2")
    first, second = pool.workers(2)
    first.ask(), second.ask()
    second.holding = [calls[1]]
    second.ask(encode({"type": "ended", "call": calls[0], "state": "COMPLETED"}, b"not its own"), take=False)
    assert pool.ended() == []


def test_workers_that_end_before_they_ask_are_not_started_for_ever(pool: Pool) -> None:
    (call,) = pool.calls(b"x")
    seen: set[int] = set()
    for _ in range(3):
        pool.rig.wait_for(lambda: bool({one["job_id"] for one in pool.view()["workers"]} - seen))
        (job,) = {one["job_id"] for one in pool.view()["workers"]} - seen
        seen.add(job)
        pool.worker(job).prints(0, "stderr", 0, b"OSError: no such model\n")
        dies(pool.rig, job)
    pool.rig.wait_for(lambda: pool.state(call) == "FAILED")
    ((header, _),) = pool.ended()
    assert header["error"] == "workers_do_not_start"
    assert "it was killed" in header["message"]
    assert header["message"].endswith("It said last:\nOSError: no such model")


def test_an_idle_worker_leaves_and_those_that_are_kept_stay(opens: Opens) -> None:
    pool = opens(max_workers=2, min_workers=1, idle_time=0)
    calls = pool.calls(b"1", b"2")
    first, second = pool.workers(2)
    first.ask(), second.ask()
    assert first.end(calls[0])[0]["type"] == "retire"
    assert second.end(calls[1])[0]["type"] == "none"
    assert [one["job_id"] for one in pool.view()["workers"]] == [second.job]


def test_a_waiting_worker_is_given_the_next_call_at_once(pool: Pool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    calls = pool.calls(b"1")
    (worker,) = pool.workers(1)
    worker.ask()
    worker.end(calls[0])
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(worker.ask, wait=30)
        (call,) = pool.calls(b"2")
        assert answer.result()[0]["call"] == call


def test_a_call_that_waits_can_be_cancelled_and_one_that_runs_goes_on(pool: Pool) -> None:
    running, waiting = pool.calls(b"1", b"2")
    (worker,) = pool.workers(1)
    worker.ask()
    assert pool.http.post(f"{V1}/calls/{waiting}/cancel").json()["state"] == "CANCELLED"
    assert pool.http.post(f"{V1}/calls/{running}/cancel").json()["state"] == "RUNNING"
    assert worker.end(running)[0]["type"] == "none"
    assert [header["state"] for header, _ in pool.ended()] == ["CANCELLED", "COMPLETED"]


def test_a_closed_pool_finishes_what_runs_and_sends_its_workers_home(pool: Pool) -> None:
    running, waiting = pool.calls(b"1", b"2")
    (worker,) = pool.workers(1)
    worker.ask()
    closed = pool.http.post(f"{V1}/pools/{pool.id}/close", params={"cancel": "true"}).json()
    assert closed["closed_at"] is not None
    assert pool.state(waiting) == "CANCELLED"
    refused = pool.http.post(
        f"{V1}/pools/{pool.id}/calls", content=encode({"key": "k", "label": "f", "function": FUNCTION, "retries": 0}, b"")
    )
    assert refused.status_code == 409
    assert worker.end(running)[0]["type"] == "retire"
    assert pool.state(running) == "COMPLETED"


def test_a_pool_that_is_over_is_removed_with_what_its_calls_returned(pool: Pool) -> None:
    (call,) = pool.calls(b"x" * 100_000)
    (worker,) = pool.workers(1)
    assert pool.http.delete(f"{V1}/pools/{pool.id}").json()["detail"] == f"Pool {pool.id} is open."
    worker.ask()
    pool.http.post(f"{V1}/pools/{pool.id}/close")
    assert "1 call not over" in pool.http.delete(f"{V1}/pools/{pool.id}").json()["detail"]
    assert worker.end(call, b"y" * 100_000)[0]["type"] == "retire"
    pool.rig.engine.end(worker.job, state=JobState.COMPLETED)
    pool.rig.wait(worker.job, JobState.COMPLETED)
    files = pool.rig.home / "calls"
    assert list(files.iterdir())
    pool.rig.wait_for(lambda: pool.http.delete(f"{V1}/pools/{pool.id}").status_code == 204)
    assert not list(files.iterdir())
    for path in (f"/pools/{pool.id}", f"/calls/{call}"):
        assert pool.http.get(f"{V1}{path}").status_code == 404


def test_others_do_not_see_the_pool_and_no_job_but_its_workers_takes_calls(pool: Pool, bob: httpx.Client) -> None:
    (call,) = pool.calls(b"x")
    (worker,) = pool.workers(1)
    for method, path in (("GET", f"/pools/{pool.id}"), ("GET", f"/calls/{call}"), ("POST", f"/pools/{pool.id}/close")):
        assert bob.request(method, f"{V1}{path}").status_code == 404
    other = pool.http.post(f"{V1}/jobs", json={"snapshot": pool.rig.upload("ada")}).json()["id"]
    stranger = pool.worker(other)
    work = encode({"type": "holding", "calls": []})
    for who in (pool.http, stranger.http, bob):
        assert who.post(f"{V1}/pools/{pool.id}/work", params={"wait": 0}, content=work).status_code == 404
    assert worker.ask()[0]["call"] == call


def test_calls_and_endings_that_wait_have_room_for_each_user(pool: Pool) -> None:
    pool.calls(b"x")
    (worker,) = pool.workers(1)
    pool.rig.app.state.gateway.bodies._room.most = 100_000
    call = encode({"key": "k", "label": "f", "function": FUNCTION, "retries": 0}, b"x" * 30_000)
    ending = encode({"type": "ended", "call": 10**6, "state": "COMPLETED"}, b"x" * 30_000)
    for http, path, content in (
        (pool.http, "calls", call * 4),
        (worker.http, "work", ending * 4),
        (worker.http, "work", ending * 4),
    ):
        answer = http.post(f"{V1}/pools/{pool.id}/{path}", params={"wait": 0}, content=content)
        assert (answer.status_code, "too large for so many at once" in answer.text) == (429, True)
    worker.ask(ending * 2)  # what was given up counts no more


def test_what_a_request_has_brought_goes_with_it_when_it_makes_no_sense(pool: Pool) -> None:
    pool.calls(b"x")
    (worker,) = pool.workers(1)
    large = encode({"type": "ended", "call": 10**6, "state": "COMPLETED"}, b"x" * 300_000)
    before = sorted(pool.rig.home.glob("calls/*"))
    printed = encode({"type": "stdout"}, b"x" * 2_000_000)
    for content, status in ((encode({"type": "nonsense"}), 422), (b"\xff\xff\xff\xff", 422), (printed, 413)):
        answer = worker.http.post(f"{V1}/pools/{pool.id}/work", params={"wait": 0}, content=large + content)
        assert answer.status_code == status
    assert sorted(pool.rig.home.glob("calls/*")) == before


def test_a_pool_that_a_job_opened_ends_with_the_job(pool: Pool, rig: Rig) -> None:
    parent = pool.worker(pool.http.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada")}).json()["id"])
    answer = parent.http.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("ada")}})
    assert answer.json()["parent"] == parent.job
    inner = replace(pool, id=answer.json()["id"])
    running, waiting = inner.calls(b"1", b"2")
    (worker,) = inner.workers(1)
    worker.ask()
    rig.engine.end(parent.job)
    rig.wait_for(lambda: inner.state(waiting) == "CANCELLED")
    assert inner.view()["closed_at"] is not None
    assert worker.end(running)[0]["type"] == "retire"
    assert pool.view()["closed_at"] is None


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"key": "", "label": "f", "function": FUNCTION, "retries": 0}, "key"),
        ({"key": "k", "label": 3, "function": FUNCTION, "retries": 0}, "label"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 101}, "retries is 101"),
        ({"key": "k", "label": "f", "function": "sha256:" + "2" * 64, "retries": 0}, "no function"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "dependencies": [99]}, "no call 99"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "dependencies": [True]}, "numbers of calls"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "dependencies": 1}, "numbers of calls"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "cache": "1"}, "a digest"),
        ({"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "time_limit": 0}, "time_limit of a call is 0"),
    ],
)
def test_what_is_no_call_is_refused_and_says_why(pool: Pool, header: dict[str, Any], words: str) -> None:
    pool.http.put(f"{V1}/pools/{pool.id}/functions/{FUNCTION}", content=encode({}, b"function")).raise_for_status()
    answer = pool.http.post(f"{V1}/pools/{pool.id}/calls", content=encode(header, b"x"))
    assert answer.status_code in (404, 422)
    assert words in answer.json()["detail"]
    assert pool.http.get(f"{V1}/pools/{pool.id}/calls").json()["calls"] == []


@pytest.mark.parametrize("content", [b"\0\0", b"\0\0\0\x02{}", encode({}, b"xy")[:-1], b"\xff\xff\xff\xff"])
def test_what_is_no_frame_is_refused(pool: Pool, content: bytes) -> None:
    assert pool.http.post(f"{V1}/pools/{pool.id}/calls", content=content).status_code == 422


def test_a_pool_whose_workers_can_never_run_is_refused(rig: Rig, ada: httpx.Client) -> None:
    task = {"snapshot": rig.upload("ada"), "resources": {"gpus": 1000}}
    assert ada.post(f"{V1}/pools", json={"max_workers": 1, "task": task}).status_code == 422
    few = {"max_workers": 1, "min_workers": 2, "task": {"snapshot": rig.upload("ada")}}
    answer = ada.post(f"{V1}/pools", json=few)
    assert answer.status_code == 422
    assert "min_workers is 2" in answer.json()["detail"]
    assert ada.get(f"{V1}/pools").json()["pools"] == []


def test_a_call_waits_for_those_that_it_needs(opens: Opens) -> None:
    pool = opens(max_workers=2)
    first, second = pool.calls(b"1", b"2")
    (needs,) = pool.calls(b"3", dependencies=[first, second, first])
    one, two = pool.workers(2)
    one.ask(), two.ask()
    assert pool.http.get(f"{V1}/calls/{needs}").json()["waits_for"] == [first, second]
    assert one.end(first)[0]["type"] == "none"
    assert pool.http.get(f"{V1}/calls/{needs}").json()["waits_for"] == [second]
    assert two.end(second)[0]["call"] == needs
    assert one.http.get(f"{V1}/calls/{first}/result").content == b"result"  # a worker may read what it needs


def test_calls_of_others_cannot_be_needed(pool: Pool, rig: Rig, bob: httpx.Client) -> None:
    (call,) = pool.calls(b"x")
    answer = bob.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("bob")}})
    theirs = replace(pool, http=bob, id=answer.json()["id"])
    theirs.http.put(f"{V1}/pools/{theirs.id}/functions/{FUNCTION}", content=encode({}, b"f")).raise_for_status()
    header = {"key": "k", "label": "f", "function": FUNCTION, "retries": 0, "dependencies": [call]}
    refused = bob.post(f"{V1}/pools/{theirs.id}/calls", content=encode(header, b""))
    assert refused.status_code == 404
    assert f"no call {call}" in refused.json()["detail"]


def test_results_are_shared_with_ones_own_equal_calls_and_with_nobody_elses(pool: Pool, rig: Rig, bob: httpx.Client) -> None:
    cache = "sha256:" + "5" * 64
    (call,) = pool.calls(b"x", cache=cache)
    (worker,) = pool.workers(1)
    worker.ask()
    worker.end(call)
    (again,) = pool.calls(b"x", cache=cache)
    assert pool.state(again) == "COMPLETED"
    assert [(header["cached"], body) for header, body in pool.ended()] == [(False, b"result"), (True, b"result")]
    answer = bob.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("bob")}})
    theirs = replace(pool, http=bob, id=answer.json()["id"])
    (other,) = theirs.calls(b"x", cache=cache)
    assert theirs.state(other) == "PENDING"
    assert bob.delete(f"{V1}/cached-results").json() == {"results": 0}
    assert pool.http.delete(f"{V1}/cached-results").json() == {"results": 1}
    (carried_out,) = pool.calls(b"x", cache=cache)
    assert pool.state(carried_out) == "PENDING"


def test_when_the_one_that_is_carried_out_is_cancelled_its_equal_begins(pool: Pool) -> None:
    cache = "sha256:" + "6" * 64
    first, second, third = (pool.calls(b"x", cache=cache)[0] for _ in range(3))
    assert pool.http.get(f"{V1}/calls/{third}").json()["waits_for"] == [first]
    pool.http.post(f"{V1}/calls/{first}/cancel").raise_for_status()
    assert pool.http.get(f"{V1}/calls/{third}").json()["waits_for"] == [second]
    (worker,) = pool.workers(1)
    assert worker.ask()[0]["call"] == second
    assert worker.end(second)[0]["type"] == "none"
    assert pool.state(third) == "COMPLETED"


def test_a_long_chain_fails_at_once(pool: Pool) -> None:
    (first,) = pool.calls(b"x")
    last = first
    for _ in range(300):
        (last,) = pool.calls(b"x", dependencies=[last])
    pool.http.post(f"{V1}/calls/{first}/cancel").raise_for_status()
    found = pool.http.get(f"{V1}/calls/{last}").json()
    assert (found["state"], found["error"]) == ("FAILED", "dependency_failed")
    assert f"call {first} (f), which was cancelled" in found["message"]


def test_what_calls_have_on_the_disk_counts_for_their_owner(tmp_path: Path) -> None:
    with a_lab(tmp_path, quota=300_000) as rig, serve(rig.app) as url, client(url, rig.headers()) as ada:
        answer = ada.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("ada")}})
        pool = Pool(rig=rig, http=ada, url=url, id=answer.json()["id"], opened=[])
        calls = pool.calls(b"x" * 200_000, b"y" * 200_000)
        assert ada.get(f"{V1}/storage").json()["mine"]["calls"] == 400_000
        frame = encode({"key": "k", "label": "f", "function": FUNCTION, "retries": 0}, b"z" * 200_000)
        refused = ada.post(f"{V1}/pools/{pool.id}/calls", content=frame)
        assert (refused.status_code, "of calls" in refused.json()["detail"]) == (507, True)
        assert "carrel pool remove" in refused.json()["remedy"]
        value = "sha256:" + "3" * 64
        assert ada.put(f"{V1}/pools/{pool.id}/functions/{value}", content=encode({}, b"v" * 200_000)).status_code == 507
        assert len(list((rig.home / "calls").iterdir())) == 2
        ada.post(f"{V1}/calls/{calls[0]}/cancel").raise_for_status()  # its arguments go
        assert ada.post(f"{V1}/pools/{pool.id}/calls", content=frame).status_code == 201


def test_calls_of_a_user_that_have_not_ended_have_a_limit(tmp_path: Path) -> None:
    with a_lab(tmp_path, waiting_calls=3) as rig, serve(rig.app) as url, client(url, rig.headers()) as ada:
        answer = ada.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("ada")}})
        pool = Pool(rig=rig, http=ada, url=url, id=answer.json()["id"], opened=[])
        first, _ = pool.calls(b"1", b"2")
        frames = [encode({"key": key, "label": "f", "function": FUNCTION, "retries": 0}, b"z") for key in "ab"]
        refused = ada.post(f"{V1}/pools/{pool.id}/calls", content=b"".join(frames))
        assert (refused.status_code, refused.json()["detail"][:34]) == (429, "You have 2 calls that have not end")
        ada.post(f"{V1}/calls/{first}/cancel").raise_for_status()
        assert ada.post(f"{V1}/pools/{pool.id}/calls", content=b"".join(frames)).status_code == 201


def test_a_worker_that_is_killed_while_it_tells_something_leaves_one_line_in_the_log(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.calls(b"x")
    (worker,) = pool.workers(1)
    parts, token = urlsplit(pool.url), worker.http.headers["Authorization"]
    with caplog.at_level(logging.INFO), socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as stream:
        head = f"POST {V1}/pools/{pool.id}/output HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: {token}\r\n"
        stream.sendall(f"{head}Content-Length: 1000\r\n\r\nx".encode())
        stream.shutdown(socket.SHUT_RDWR)
        pool.rig.wait_for(lambda: "/output" in caplog.text)
    (line,) = [one for one in caplog.records if "/output" in one.getMessage()]
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert "the client has gone before all of the request was here" in line.getMessage()

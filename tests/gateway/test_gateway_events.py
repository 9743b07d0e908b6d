from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig, a_lab, client, serve
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.job import JobState, Reason
from carrel.lab.gateway.events import LOG_PIECE, boundary

SSE = {"Accept": "text/event-stream"}


@dataclass
class Message:
    id: int | None
    event: str
    data: dict[str, Any]


def messages(response: httpx.Response) -> Iterator[Message]:
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            yield Message(number, fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


def submit(http: httpx.Client, rig: Rig) -> int:
    return int(http.post(f"{V1}/jobs", json={"snapshot": rig.upload(http.headers["x-name"])}).json()["id"])


@pytest.fixture(autouse=True)
def _names(ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    for http, name in ((ada, "ada"), (bob, "bob"), (root, "root")):
        http.headers["x-name"] = name


def text_of(found: list[Message]) -> str:
    return "".join(message.data["data"]["text"] for message in found if message.event == "log")


@pytest.mark.gate
def test_the_stream_of_a_job_tells_its_life_and_ends(rig: Rig, ada: httpx.Client) -> None:
    job = submit(ada, rig)
    rig.engine.run(job)
    rig.engine.say(job, log=b"one\n")
    rig.engine.say(job, log=b"two\n")
    with ada.stream("GET", f"{V1}/jobs/{job}/events", headers=SSE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = messages(response)
        found = [next(stream)]
        rig.engine.end(
            job, state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit 3."), exit_code=3, log=b"three\n"
        )
        found += list(stream)
    assert [m.data["data"]["state"] for m in found if m.event == "state"] == ["PENDING", "CONFIGURING", "RUNNING", "FAILED"]
    assert [m.data["data"]["message"] for m in found if m.event == "progress"] == ["Building the environment."]
    assert text_of(found) == "one\ntwo\nthree\n"
    last = found[-1].data
    assert last["data"] == {
        "state": "FAILED", "reason": "NonZeroExitCode", "message": "Exit 3.", "attempt": 1, "exit_code": 3, "signal": None,
    }  # fmt: skip
    assert last["at"].endswith(("Z", "+00:00"))
    ids = [m.id for m in found if m.id is not None]
    assert ids == sorted(set(ids))

    # Coming back anywhere gives the rest, by header or by parameter; after the end there is nothing to come back for.
    for position, cut in enumerate(ids[:-1]):
        with ada.stream("GET", f"{V1}/jobs/{job}/events", headers={**SSE, "Last-Event-ID": str(cut)}) as response:
            assert [m.id for m in messages(response)] == ids[position + 1 :]
    assert ada.get(f"{V1}/jobs/{job}/events", headers=SSE, params={"after": ids[-1]}).status_code == 204
    assert ada.get(f"{V1}/jobs/{job}/events", headers={**SSE, "Last-Event-ID": "x"}).status_code == 422

    page = ada.get(f"{V1}/jobs/{job}/events").json()
    assert [event["id"] for event in page["events"]] == ids
    assert page["last"] == ids[-1]
    assert "".join(event["data"]["text"] for event in page["events"] if event["type"] == "log") == "one\ntwo\nthree\n"
    some = ada.get(f"{V1}/jobs/{job}/events", params={"limit": 2}).json()
    assert [event["id"] for event in some["events"]] == ids[:2]
    states = ada.get(f"{V1}/jobs/{job}/events", params={"type": ["state", "progress"]}).json()
    assert {event["type"] for event in states["events"]} == {"state", "progress"}
    assert states["last"] == ids[-1]
    with ada.stream("GET", f"{V1}/jobs/{job}/events", headers=SSE, params={"type": "state"}) as response:
        assert [m.data["data"]["state"] for m in messages(response)] == ["PENDING", "CONFIGURING", "RUNNING", "FAILED"]
    assert ada.get(f"{V1}/jobs/{job}/events", params={"type": "lgo"}).status_code == 422
    assert ada.get(f"{V1}/jobs/{job}/events", params={"after": -1}).json() == {"events": [], "last": ids[-1]}


def test_everybody_sees_the_events_of_ones_own_and_an_administrator_all(
    rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    first, second = submit(ada, rig), submit(bob, rig)
    rig.engine.end(first)
    rig.engine.end(second)
    rig.wait(first, JobState.COMPLETED)
    rig.wait(second, JobState.COMPLETED)

    def jobs(http: httpx.Client) -> set[int]:
        return {event["job_id"] for event in http.get(f"{V1}/events").json()["events"]}

    assert (jobs(ada), jobs(bob), jobs(root)) == ({first}, {second}, {first, second})
    with bob.stream("GET", f"{V1}/events", headers=SSE) as response:
        stream = messages(response)
        while (message := next(stream)).data["data"].get("state") != "COMPLETED":
            assert message.data["job_id"] == second
        third = submit(ada, rig)
        rig.engine.end(third)
        fourth = submit(bob, rig)
        assert next(stream).data["job_id"] == fourth


def test_what_happens_is_on_the_stream_without_waiting_for_a_heartbeat(tmp_path: Path) -> None:
    with a_lab(tmp_path / "second", heartbeat=3600.0) as rig, serve(rig.app) as url:
        with client(url, rig.headers() | {"x-name": "ada"}) as http:
            job = submit(http, rig)
            rig.engine.run(job)
            rig.wait(job, JobState.RUNNING)
            with http.stream("GET", f"{V1}/jobs/{job}/events", headers=SSE) as response:
                stream = messages(response)
                while next(stream).data["data"].get("state") != "RUNNING":
                    pass
                for number in range(20):
                    rig.engine.say(job, log=b"%d\n" % number)
                    assert next(stream).data["data"]["text"] == f"{number}\n"


def test_idle_streams_hold_no_thread_and_slow_readers_hold_up_nobody(tmp_path: Path) -> None:
    with a_lab(tmp_path / "second", heartbeat=0.2) as rig, serve(rig.app) as url:
        with client(url, rig.headers() | {"x-name": "ada"}) as http:
            job = submit(http, rig)
            rig.engine.run(job)
            rig.wait(job, JobState.RUNNING)
            open_streams = [
                http.send(http.build_request("GET", f"{V1}/jobs/{job}/events", headers=SSE), stream=True) for _ in range(90)
            ]
            try:
                before = threading.active_count()
                # 90 streams that nobody reads, each with more to send than the sockets take; the pool has 40 threads.
                rig.engine.say(job, log=b"x" * 3_000_000)
                assert http.get(f"{V1}/lab").status_code == 200
                with http.stream("GET", f"{V1}/events", headers=SSE, params={"after": -1}) as response:
                    other = submit(http, rig)
                    lines = response.iter_lines()
                    # The long log may reach the store only now, so its events may come first.
                    data = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
                    assert next(event for event in data if event["job_id"] == other)
                    assert next(line for line in lines if line.startswith(":")) == ": still here"
                assert threading.active_count() <= max(before, 60)
            finally:
                for stream in open_streams:
                    stream.close()


def test_a_long_piece_of_log_comes_in_pieces_and_characters_stay_whole(rig: Rig, ada: httpx.Client) -> None:
    job = submit(ada, rig)
    text = "aé€😀" * 40_000
    data = text.encode()
    cuts = [0, 1, 2, 3, 150_001, 150_002, 290_003, len(data) - 1, len(data)]
    for left, right in itertools.pairwise(cuts):
        rig.engine.say(job, log=data[left:right])
        rig.wait_for(lambda size=right: rig.store.jobs.attempts(job)[0].log_size == size)  # one event each
    rig.engine.end(job, log=b"\xff\xe2\x82")
    rig.wait(job, JobState.COMPLETED)
    with ada.stream("GET", f"{V1}/jobs/{job}/events", headers=SSE) as response:
        found = list(messages(response))
    assert text_of(found) == text + "\ufffd\ufffd"
    logs = [m for m in found if m.event == "log"]
    assert max(len(m.data["data"]["text"].encode()) for m in logs) <= LOG_PIECE
    assert any(m.data["data"].get("more") and m.id is None for m in logs)
    position = 0
    for m in logs:
        assert m.data["data"]["offset"] == position
        if "\ufffd" in m.data["data"]["text"]:
            break
        position += len(m.data["data"]["text"].encode())
    # From the middle: the same text for the same event.
    ids = [m.id for m in logs if m.id is not None]
    with ada.stream("GET", f"{V1}/jobs/{job}/events", headers={**SSE, "Last-Event-ID": str(ids[2])}) as response:
        rest = list(messages(response))
    start = rest[0].data["data"]["offset"]
    assert text_of(rest) == data[start:].decode() + "\ufffd\ufffd"


def test_a_retried_job_is_not_over_at_the_end_of_its_first_attempt(rig: Rig, ada: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "retries": 1}).json()["id"]
    rig.engine.end(
        job, state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit 1."), exit_code=1, log=b"first\n"
    )
    with ada.stream("GET", f"{V1}/jobs/{job}/events", headers=SSE) as response:
        stream = messages(response)
        found = []
        while not (found and found[-1].data["data"].get("attempt") == 2):
            found.append(next(stream))
        rig.engine.wait_started(job, 2)
        rig.engine.end(job, log=b"second\n")
        found += list(stream)
    assert [(m.data["data"]["attempt"], m.data["data"]["text"]) for m in found if m.event == "log"] == [
        (1, "first\n"),
        (2, "second\n"),
    ]
    assert found[-1].data["data"]["state"] == "COMPLETED"


@given(st.text(max_size=30), st.integers(0, 200))
def test_cutting_at_a_boundary_never_splits_a_character(text: str, position: int) -> None:
    data = text.encode("utf-8", "replace")
    position = min(position, len(data))
    cut = boundary(data[:position], position)
    assert 0 <= position - cut <= 3
    assert data[:cut].decode() + data[cut:].decode() == data.decode()


@given(st.binary(max_size=40), st.integers(0, 40))
def test_a_boundary_exists_in_any_bytes(data: bytes, position: int) -> None:
    position = min(position, len(data))
    cut = boundary(data[:position], position)
    assert data[:cut].decode("utf-8", "replace") + data[cut:].decode("utf-8", "replace") == data.decode("utf-8", "replace")

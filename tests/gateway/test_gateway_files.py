from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from select import select

import httpx
import pytest
from gateway_lab import PROJECT, V1, Rig, a_lab, client, serve

from carrel.testing.waiting import PATIENCE, wait_until


@pytest.mark.gate
def test_code_is_uploaded_once_and_checked(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    digest, archive = rig.archive({"MLproject": PROJECT})
    place = f"{V1}/snapshots/{digest}"
    assert ada.head(place).status_code == 404
    assert ada.put(place, content=archive).status_code == 201
    again = ada.put(place, content=iter([archive[:100], archive[100:]]))
    assert (again.status_code, again.json()) == (200, {"digest": digest})
    assert ada.head(place).status_code == 200
    assert bob.head(place).status_code == 404
    assert bob.put(place, content=archive[:-600]).status_code == 422  # having the digest is not having the code
    assert bob.put(place, content=archive).status_code == 201

    other = "sha256:" + "1" * 64
    wrong = ada.put(f"{V1}/snapshots/{other}", content=archive)
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:carrel:problem:invalid")
    assert ada.put(f"{V1}/snapshots/{other}", content=b"no archive").status_code == 422
    assert ada.put(f"{V1}/snapshots/md5:1", content=archive).status_code == 422
    assert sorted(path.name for path in (rig.home / "snapshots").iterdir()) == [digest.removeprefix("sha256:") + ".tar"]


def test_what_is_too_large_is_refused_before_and_while_it_comes(tmp_path: Path) -> None:
    with a_lab(tmp_path, max_snapshot=200_000, max_body=10_000) as rig, serve(rig.app) as url, client(url, rig.headers()) as http:
        place = f"{V1}/snapshots/sha256:{'2' * 64}"

        def endless() -> Iterator[bytes]:
            for _ in range(100):
                yield b"x" * 10_000

        for answer in (
            http.put(place, content=b"x" * 200_001),
            http.put(place, content=endless()),
            http.post(f"{V1}/jobs", json={"snapshot": "x" * 10_001}),
            http.post(f"{V1}/jobs", content=iter([b"[" * 6000, b"[" * 6000]), headers={"Content-Type": "application/json"}),
        ):
            assert (answer.status_code, answer.json()["type"]) == (413, "urn:carrel:problem:too_large")
            limit = 200_000 if "snapshots" in answer.request.url.path else 10_000
            assert f"larger than the {limit} bytes" in answer.json()["detail"]
        assert not any((tmp_path / "uploads").iterdir())
        assert http.get(f"{V1}/lab").status_code == 200


def test_a_snapshot_of_too_many_files_is_refused(rig: Rig, ada: httpx.Client) -> None:
    digest, archive = rig.archive({str(number): "x" for number in range(6)})
    rig.snapshots._files = 5
    answer = ada.put(f"{V1}/snapshots/{digest}", content=archive)
    assert (answer.status_code, answer.json()["detail"]) == (413, "The snapshot has more than 5 files.")
    rig.snapshots._files = 6
    assert ada.put(f"{V1}/snapshots/{digest}", content=archive).status_code == 201


def test_a_log_is_read_by_ranges(rig: Rig, ada: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    assert ada.get(f"{V1}/jobs/{job}/log").content == b""
    rig.engine.wait_started(job)
    rig.engine.say(job, log=b"0123456789\xff")
    got = ada.get(f"{V1}/jobs/{job}/log", params={"offset": 3, "limit": 4})
    assert (got.content, got.headers["x-carrel-offset"], got.headers["x-carrel-size"]) == (b"3456", "3", "11")
    assert ada.get(f"{V1}/jobs/{job}/log", params={"offset": 99}).content == b""
    assert ada.get(f"{V1}/jobs/{job}/log", params={"offset": 10}).content == b"\xff"
    assert ada.get(f"{V1}/jobs/{job}/log", params={"attempt": 7}).status_code == 404
    assert ada.get(f"{V1}/jobs/{job}/log", params={"limit": -1}).status_code == 422


@pytest.mark.parametrize("what", ["link", "pipe", "device", "directory"])
def test_what_a_job_puts_in_the_place_of_its_log_is_not_shown_or_waited_for(rig: Rig, ada: httpx.Client, what: str) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    rig.engine.wait_started(job)
    rig.engine.say(job, log=b"words")
    log = rig.lab.files.spool.attempt(job, 1).log
    log.unlink()
    put = {
        "link": lambda: log.symlink_to(rig.home / "lab.db"),
        "pipe": lambda: os.mkfifo(log),
        "device": lambda: log.symlink_to("/dev/zero"),
        "directory": log.mkdir,
    }
    put[what]()
    got = ada.get(f"{V1}/jobs/{job}/log", params={"limit": 100})
    assert (got.status_code, got.content) == (200, b"")


def test_requests_that_do_not_end_have_room_for_each_user(tmp_path: Path) -> None:
    with a_lab(tmp_path, max_body=10_000) as rig, serve(rig.app) as url, ExitStack() as stack:

        def begun(user: str, size: int = 10_000) -> socket.socket:
            """A request of which one byte lacks."""
            port = int(url.rpartition(":")[2])
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            head = f"POST {V1}/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {rig.headers(user)['Authorization']}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
            connection.sendall(head.encode() + b" " * (size - 1))
            return connection

        waiting = [begun("ada") for _ in range(17)]
        refused, _, _ = select(waiting, [], [], PATIENCE)
        said = b""
        while b"too large" not in said and (piece := refused[0].recv(10_000)):  # the body may come after the headers
            said += piece
        assert said.startswith(b"HTTP/1.1 429 ")
        assert b"too large for so many at once" in said
        with client(url, rig.headers("bob")) as other:
            assert other.post(f"{V1}/jobs", content=b" " * 9_000).status_code == 422
        for one in waiting:
            one.close()
        with client(url, rig.headers("ada")) as again:
            wait_until(lambda: again.post(f"{V1}/jobs", content=b" " * 9_000).status_code == 422, "the room to be free")
            for _ in range(40):
                assert again.post(f"{V1}/jobs", content=b" " * 9_000).status_code == 422

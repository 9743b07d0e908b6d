"""Files for large arguments and results: tickets, descriptors, and what the lab does not take."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import Rig
from test_gateway_pools import FUNCTION, V1, Pool, Worker, frames, opens, pool

from carrel.client import body_files
from carrel.core.domain.units import GIB
from carrel.testing.waiting import PATIENCE
from carrel.wire.frames import encode

__all__ = ["opens", "pool"]

LARGE = os.urandom(1_500_000)


def offer(pool: Pool, size: int = len(LARGE)) -> dict[str, Any]:
    answer = pool.http.post(f"{V1}/pools/{pool.id}/files", params={"size": size})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def submit(pool: Pool, ticket: str, http: httpx.Client | None = None) -> httpx.Response:
    pool.http.put(f"{V1}/pools/{pool.id}/functions/{FUNCTION}", content=encode({}, b"function")).raise_for_status()
    header = {"key": secrets.token_hex(8), "label": "f", "function": FUNCTION, "retries": 0, "file": ticket}
    return (http or pool.http).post(f"{V1}/pools/{pool.id}/calls", content=encode(header))


def written(pool: Pool) -> int:
    """A call whose arguments went through a file; its number."""
    one = offer(pool)
    with closing(body_files.write(one, [LARGE[:100], LARGE[100:]])):
        answer = submit(pool, one["ticket"])
    assert answer.status_code == 201, answer.text
    return int(answer.json()["calls"][0])


def files_of(rig: Rig) -> list[Path]:
    """What lies in the lab's directory, where calls have no other files than those of these tests."""
    return list((rig.home / "calls").iterdir())


def take(worker: Worker) -> tuple[dict[str, Any], bytes]:
    holding = encode({"type": "holding", "calls": []})
    answer = worker.http.post(f"{V1}/pools/{worker.pool}/work", params={"wait": 0, "files": "true"}, content=holding)
    (found,) = frames(answer.raise_for_status().content)
    return found


def shown(one: dict[str, Any]) -> tuple[int, socket.socket]:
    """The descriptor for a ticket, and the connection that it is bound to."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(one["sockets"][0])
    stream.sendall(b'{"ticket":"' + one["ticket"].encode() + b'"}\n')
    _, (file,), _, _ = socket.recv_fds(stream, 1000, 1)
    return file, stream


def refused(one: dict[str, Any]) -> bool:
    """Whether nothing is handed out for it."""
    try:
        body_files.read(one)
    except body_files.NotHere:
        return True
    return False


def test_connections_that_show_no_ticket_take_no_place_from_one_that_does(rig: Rig, pool: Pool) -> None:
    one = offer(pool)
    silent = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    try:
        for stream in silent:
            stream.connect(one["sockets"][0])
            stream.settimeout(PATIENCE)
        file, stream = shown(one)
        os.close(file)
        stream.close()
        assert silent[0].recv(1) == b""
    finally:
        for stream in silent:
            stream.close()


@pytest.mark.gate
def test_arguments_and_results_go_through_files(rig: Rig, pool: Pool) -> None:
    call = written(pool)
    (worker,) = pool.workers(1)
    header, body = take(worker)
    assert (header["call"], header["files"], body) == (call, True, b"")
    assert bytes(body_files.read(header["file"])) == LARGE
    back = LARGE[::-1]
    one = dict(worker.http.post(f"{V1}/pools/{pool.id}/files", params={"size": len(back)}).raise_for_status().json())
    with closing(body_files.write(one, [back])):
        worker.end(call, b"", file=one["ticket"])
    result = pool.http.get(f"{V1}/calls/{call}/result", params={"file": "true"})
    assert bytes(body_files.read(result.json())) == back
    # And whoever knows of no files gets the same.
    assert pool.http.get(f"{V1}/calls/{call}/result").content == back
    assert len(files_of(rig)) == 1  # that of the arguments went with the end of the call


def test_a_worker_that_knows_no_files_gets_the_arguments_themselves(pool: Pool) -> None:
    call = written(pool)
    (worker,) = pool.workers(1)
    assert worker.ask() == ({"type": "call", "call": call, "function": FUNCTION, "size": len(LARGE)}, LARGE)


def test_a_small_result_is_no_file(pool: Pool) -> None:
    (call,) = pool.calls(b"arguments")
    (worker,) = pool.workers(1)
    assert take(worker)[0]["call"] == call
    worker.end(call, b"result")
    assert pool.http.get(f"{V1}/calls/{call}/result", params={"file": "true"}).content == b"result"


def test_a_ticket_is_good_once(pool: Pool) -> None:
    call = written(pool)
    (worker,) = pool.workers(1)
    header, _ = take(worker)
    assert header["call"] == call
    assert bytes(body_files.read(header["file"])) == LARGE
    assert refused(header["file"])
    assert refused(header["file"] | {"ticket": "x"})


def test_a_new_file_is_taken_once(rig: Rig, pool: Pool) -> None:
    one = offer(pool)
    with closing(body_files.write(one, [LARGE])):
        assert submit(pool, one["ticket"]).status_code == 201
        assert submit(pool, one["ticket"]).status_code == 409
    assert len(files_of(rig)) == 1


def test_anothers_ticket_is_none(rig: Rig, pool: Pool, bob: httpx.Client, url: str) -> None:
    theirs = bob.post(f"{V1}/pools", json={"max_workers": 1, "task": {"snapshot": rig.upload("bob")}}).raise_for_status()
    one = offer(pool)
    with closing(body_files.write(one, [LARGE])):
        other = Pool(rig=rig, http=bob, url=url, id=theirs.json()["id"], opened=[])
        assert submit(other, one["ticket"]).status_code == 409
        assert bob.post(f"{V1}/pools/{pool.id}/files", params={"size": 1}).status_code == 404
        assert submit(pool, one["ticket"]).status_code == 201


@pytest.mark.parametrize("holds", ["descriptor", "mapping"])
def test_a_file_that_somebody_can_still_write_is_not_taken(rig: Rig, pool: Pool, holds: str) -> None:
    import mmap

    one = offer(pool)
    file, stream = shown(one)
    with closing(stream):
        os.write(file, LARGE)
        held: Callable[[], None] = lambda: os.close(file)  # noqa: E731
        if holds == "mapping":
            mapping = mmap.mmap(file, len(LARGE))
            os.close(file)
            held = mapping.close
        answer = submit(pool, one["ticket"])
        assert (answer.status_code, "still writes" in answer.json()["detail"]) == (409, True)
        held()
    assert files_of(rig) == []


def test_a_file_of_another_size_is_not_taken(rig: Rig, pool: Pool) -> None:
    one = offer(pool, len(LARGE) + 1)
    with closing(body_files.write(one, [LARGE])):
        answer = submit(pool, one["ticket"])
        assert (answer.status_code, f"has {len(LARGE)} bytes" in answer.json()["detail"]) == (409, True)
    assert files_of(rig) == []


def test_a_program_that_is_gone_leaves_nothing(rig: Rig, pool: Pool) -> None:
    one = offer(pool)
    body_files.write(one, [LARGE]).close()
    assert refused({**offer(pool), "ticket": "x"})  # answered after the lab has seen the end of the other connection
    assert submit(pool, one["ticket"]).status_code == 409
    assert files_of(rig) == []


def test_who_says_another_proof_is_not_believed(pool: Pool) -> None:
    with pytest.raises(body_files.NotHere):
        body_files.write({**offer(pool), "proof": "another"}, [LARGE])


def test_what_is_too_large_is_refused(pool: Pool) -> None:
    answer = pool.http.post(f"{V1}/pools/{pool.id}/files", params={"size": 65 * GIB})
    assert (answer.status_code, f"takes up to {64 * GIB}" in answer.json()["detail"]) == (422, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another Unix user is needed")
def test_another_unix_user_can_read_what_was_handed_to_them_and_no_more(rig: Rig, pool: Pool) -> None:
    """What is handed out is neither written nor found again by path."""
    call = written(pool)
    (worker,) = pool.workers(1)
    header, _ = take(worker)
    assert header["call"] == call
    file, stream = shown(header["file"])
    (path,) = files_of(rig)
    tries = f"""
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(len(os.read({file}, 10)))
for path, how in (("/proc/self/fd/{file}", os.O_RDWR), ({str(path)!r}, os.O_RDONLY), ({str(path)!r}, os.O_RDWR)):
    try: print(os.open(path, how))
    except PermissionError: print("no")
try: print(os.ftruncate({file}, 0))
except OSError: print("no")
"""
    done = subprocess.run([sys.executable, "-I", "-c", tries], pass_fds=[file], capture_output=True, text=True, check=True)
    os.close(file)
    stream.close()
    assert done.stdout.split() == ["10", "no", "no", "no", "no"]
    assert path.read_bytes() == LARGE

"""What the lab knows of where its sessions take connections."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.spool import Spool
from carrel.lab.server.addresses import SessionAddresses, read_from
from carrel.notebooks.address import TlsAddress, UnixAddress, make_certificate, read_address, write_address


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def address(listener: socket.socket) -> TlsAddress:
    certificate, key = make_certificate("test", datetime.now(UTC))
    return TlsAddress(host="127.0.0.1", port=listener.getsockname()[1], certificate=certificate, key=key)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


@pytest.fixture
def addresses(spool: Spool, clock: Clock) -> SessionAddresses:
    return SessionAddresses(spool=spool, read=read_from(spool), monotonic=clock)


def job(spool: Spool, node: str = "slurm:gpu") -> Job:
    spool.attempt(1, 1).path.mkdir(parents=True, exist_ok=True)
    return Job(
        id=1,
        kind=JobKind.SESSION,
        owner="ada",
        account="lab",
        name="notebook",
        qos="normal",
        resources=Resources(),
        state=JobState.RUNNING,
        reason=Reason(code="Running", message=""),
        submitted_at=0.0,
        attempt=1,
        node=node,
    )


@pytest.mark.gate
def test_on_the_labs_own_machine_it_is_the_socket(spool: Spool, addresses: SessionAddresses) -> None:
    here = job(spool, "ws1")
    path = spool.attempt(1, 1).session_socket
    assert addresses.find(here) == UnixAddress(str(path))
    assert not addresses.ready(here)
    assert addresses.trouble(here) == ""


def test_a_session_elsewhere_says_where_it_is(
    spool: Spool, addresses: SessionAddresses, clock: Clock, address: TlsAddress, listener: socket.socket
) -> None:
    there = job(spool)
    assert addresses.find(there) is None
    assert not addresses.ready(there)
    write_address(spool.attempt(1, 1).session_address, address)
    assert addresses.find(there) == address
    assert addresses.ready(there)
    # Another relay took its place.
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        moved = replace(address, port=other.getsockname()[1])
        write_address(spool.attempt(1, 1).session_address, moved)
        clock.now += 60
        assert addresses.find(there) == moved
        assert addresses.ready(there)
        # That the file cannot be read for a while is no news of the session.
        spool.attempt(1, 1).session_address.rename(spool.attempt(1, 1).path / "away")
        clock.now += 60
        assert addresses.find(there) == moved
        assert addresses.ready(there)
    addresses.keep([])
    clock.now += 60
    assert not addresses.ready(there)


def test_one_that_is_not_reached_says_why_until_it_is(
    spool: Spool, addresses: SessionAddresses, clock: Clock, address: TlsAddress, listener: socket.socket
) -> None:
    there = job(spool)
    write_address(spool.attempt(1, 1).session_address, address)
    listener.close()
    assert not addresses.ready(there)
    assert f"does not reach it at 127.0.0.1, port {address.port}: Connection refused" in addresses.trouble(there)
    with socket.create_server(("127.0.0.1", address.port)):
        clock.now += 60
        assert addresses.ready(there)
        assert addresses.trouble(there) == ""


def test_what_its_user_writes_there_holds_nobody_up(
    spool: Spool, addresses: SessionAddresses, tmp_path: Path, address: TlsAddress, clock: Clock
) -> None:
    there, file = job(spool), spool.attempt(1, 1).session_address
    elsewhere = tmp_path / "elsewhere"
    write_address(elsewhere, address)

    def again(make: object) -> SessionAddresses:
        file.rmdir() if file.is_dir() else file.unlink(missing_ok=True)
        make()  # type: ignore[operator]
        clock.now += 60
        return addresses

    for make in (
        lambda: os.mkfifo(file),
        lambda: file.write_text("nonsense"),
        lambda: file.write_text(json.dumps({"v": 1, **asdict(address), "host": "/etc/passwd"})),
        lambda: file.write_text("x" * 10_000_000),
        lambda: file.write_text("[" * 60_000),
        lambda: file.write_text('{"v":' * 10_000),
        lambda: file.mkdir(),
        lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to(elsewhere),
    ):
        assert again(make).find(there) is None
        assert "cannot be read" in addresses.trouble(there)


STRANGE = [None, True, 7.5, -1, 0, 65_536, 10**30, "", " 8888", "x" * 300, "a b", "\ud800", "a\0b", [], ["x"], {}, {"a": 1}]


@pytest.mark.parametrize("field", ["v", "host", "port", "certificate", "key", "more", ""])
def test_what_no_session_says_of_where_it_is_keeps_nobody_else_from_theirs(address: TlsAddress, field: str) -> None:
    whole = {"v": 1, **asdict(address)}
    assert read_address(json.dumps(whole).encode()) == address
    said: list[object] = [{**whole, field: value} for value in STRANGE] if field else [*STRANGE, 1e400]
    if field in ("certificate", "key"):
        said.append({**whole, field: whole[field] + "\n" * 10_000})
        said.append({**whole, field: whole["key" if field == "certificate" else "certificate"]})
    if field == "v":
        said.remove({**whole, "v": True})  # JSON's true is Python's 1
    for plain in said:
        with pytest.raises(Invalid, match="cannot be read"):
            read_address(json.dumps(plain).encode())


def test_of_a_long_path_only_a_runners_own_link_counts(tmp_path: Path, spool: Spool) -> None:
    attempt = spool.attempt(1, 1)
    attempt.path.mkdir(parents=True)
    assert attempt.session_socket == attempt.temporary / "jupyter.sock"
    attempt.temporary.symlink_to("/tmp/carrel-abc")
    assert attempt.session_socket == Path("/tmp/carrel-abc/jupyter.sock")
    for other in (tmp_path, "/tmp/other", "/tmp/carrel-a/b", "/run/carrel-x", "/tmp/carrel-x/../other"):
        attempt.temporary.unlink()
        attempt.temporary.symlink_to(other)
        assert attempt.session_socket == attempt.temporary / "jupyter.sock"


@pytest.mark.gate
def test_a_session_that_is_long_in_coming_keeps_one_thread(spool: Spool, clock: Clock, address: TlsAddress) -> None:
    """Who asks meanwhile is told what is known: the lab's threads are everybody's."""
    begun, go = threading.Event(), threading.Event()

    def read(_job: Job) -> bytes | None:
        begun.set()
        go.wait()
        write_address(spool.attempt(1, 1).session_address, address)
        return spool.attempt(1, 1).session_address.read_bytes()

    addresses, there = SessionAddresses(spool=spool, read=read, monotonic=clock), job(spool)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(addresses.find, there)
        begun.wait()
        for _ in range(100):
            assert addresses.find(there) is None
            assert not addresses.ready(there)
        go.set()
        assert found.result() == address
    assert addresses.ready(there)


def test_a_session_elsewhere_is_known_by_a_number_and_not_by_a_name(address: TlsAddress, tmp_path: Path) -> None:
    """Looking a name up takes as long as the name server of its owner likes."""
    for name in ("node1", "slow.example.org", "localhost", "127.0.0.1."):
        write_address(tmp_path / "session.json", replace(address, host=name))
        with pytest.raises(Invalid):
            read_address((tmp_path / "session.json").read_bytes())
    for number in ("127.0.0.1", "10.1.2.3", "fd00::1"):
        write_address(tmp_path / "session.json", replace(address, host=number))
        assert read_address((tmp_path / "session.json").read_bytes()).host == number

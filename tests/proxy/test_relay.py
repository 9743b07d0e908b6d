"""The way to a session on another machine: real relay, real TLS, and strangers at the same port."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_rig import Front, Place, Switch, a_front, a_relay, a_session, a_unix_server, short_directory, wait_until
from small_server import SmallServer

from carrel.core.domain.errors import Invalid
from carrel.notebooks.address import TlsAddress, client_context, make_certificate, read_address, read_ports
from carrel.notebooks.relay import NO_WAY, facing
from carrel.testing.waiting import PATIENCE


@pytest.fixture(scope="module")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="module")
def inside(switch: Switch) -> Iterator[str]:
    with a_unix_server(switch) as path:
        yield path


@pytest.fixture(scope="module")
def address(inside: str) -> Iterator[TlsAddress]:
    with a_relay(inside) as (file, _process):
        wait_until(file.exists, "the address")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        yield read_address(file.read_bytes())


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with a_front() as front:
        yield front


@pytest.fixture
def place(front: Front, switch: Switch, address: TlsAddress) -> Place:
    switch.target = SmallServer()
    label = front.sessions.add(a_session("", address=address))
    front.hosts._known.clear()
    return Place(front, switch.target, label, front.enter(label))


@pytest.mark.gate
def test_requests_of_any_size_and_websockets_pass_through(place: Place) -> None:
    said = place.browser.get("/echo?a=b").json()
    assert (said["method"], said["query"]) == ("GET", "a=b")
    headers = dict(said["headers"])
    assert headers["host"] == place.front.host(place.label)
    assert "x-carrel-identity" in headers
    large = b"x" * 3_000_000
    assert place.browser.request("POST", "/echo", content=large).json()["body"] == large.decode()
    with place.browser.websocket("/say") as channel:
        channel.send("a" * 2_000_000)
        assert channel.recv() is not None


def handshake(address: TlsAddress, context: ssl.SSLContext) -> bytes:
    """What a stranger gets to read."""
    with socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname="session") as stream:
            stream.sendall(b"GET /echo HTTP/1.1\r\nHost: session\r\n\r\n")
            return stream.recv(100)


def test_nobody_without_the_key_gets_in(place: Place, address: TlsAddress) -> None:
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    certificate, key = make_certificate("stranger", datetime.now(UTC))
    other = client_context(replace(address, certificate=certificate, key=key))
    trusting = client_context(replace(address, certificate=certificate, key=key, port=1))
    trusting.verify_mode = ssl.CERT_NONE
    for context in (nobody, other, trusting):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert handshake(address, context) == b""
            raise ConnectionError("closed without a word")
    with socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain:
        plain.sendall(b"GET /echo HTTP/1.1\r\nHost: session\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in plain.recv(100)
    assert place.server.paths == []
    # With the key it is different.
    assert handshake(address, client_context(address)).startswith(b"HTTP/1.1 200")


def test_the_lab_does_not_talk_to_somebody_else_at_the_same_port(front: Front, address: TlsAddress) -> None:
    certificate, key = make_certificate("stranger", datetime.now(UTC))
    label = front.sessions.add(a_session("", job_id=70, address=replace(address, certificate=certificate, key=key)))
    browser = front.enter(label)
    assert browser.get("/echo").status_code == 503


def test_it_ends_with_the_session_and_leaves_no_address(inside: str) -> None:
    with a_relay(inside) as (file, process):
        wait_until(file.exists, "the address")
        process.terminate()  # whoever ends a session signals all of its processes
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
        assert not file.exists()


def test_an_address_is_there_only_when_the_session_answers(tmp_path: Path) -> None:
    with short_directory() as place, a_relay(str(place / "s")) as (file, process):
        with socket.socket(socket.AF_UNIX) as listener:
            assert not file.exists()
            listener.bind(str(place / "s"))
            assert not file.exists()
            listener.listen()
            wait_until(file.exists, "the address")
        assert process.poll() is None


def test_ports_are_those_of_the_setting(inside: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with a_relay(inside, str(port)) as (file, process):
            assert process.wait(PATIENCE) == NO_WAY
            assert process.stderr is not None
            assert f"ports {port} to {port}" in process.stderr.read().decode()
            assert not file.exists()
    with a_relay(inside, f"{port}-{port}") as (file, _process):
        wait_until(file.exists, "the address")
        assert read_address(file.read_bytes()).port == port


def test_it_listens_where_the_way_to_the_lab_begins() -> None:
    assert facing("http://127.0.0.1:8642") == "127.0.0.1"
    assert facing("http://[::1]:80") in ("::1", socket.gethostname())


@pytest.mark.parametrize("text", ["0", "1-0", "70000", "a", "1-2-3", "-5", "4000-99999"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="no range of ports"):
        read_ports(text)


def test_a_range_of_ports() -> None:
    assert (read_ports(""), read_ports("4000"), read_ports(" 4000-4002 ")) == (range(1), range(4000, 4001), range(4000, 4003))


@given(st.binary(max_size=300))
def test_an_address_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_address(data)


def test_a_key_with_a_password_or_a_strange_host_is_refused(address: TlsAddress) -> None:
    import json
    from dataclasses import asdict

    from cryptography.hazmat.primitives import serialization

    said = {"v": 1, **asdict(address)}
    assert read_address(json.dumps(said).encode()) == address
    key = serialization.load_pem_private_key(address.key.encode(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    ).decode()
    for wrong in (
        {"key": locked},
        {"key": ""},
        {"host": "a b"},
        {"host": ""},
        {"port": 0},
        {"port": "x"},
        {"v": 2},
        {"certificate": "x"},
    ):
        with pytest.raises(Invalid):
            read_address(json.dumps({**said, **wrong}).encode())

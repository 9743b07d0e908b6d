"""Programs in a session, through the session's own address: the real Jupyter behind the real proxy."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_seat import Seat
from session_rig import Browser
from websockets.exceptions import ConnectionClosed, InvalidStatus

from carrel.testing.waiting import wait_until

PROGRAM = Path(__file__).with_name("small_program.py")


@contextmanager
def a_program(*words: str) -> Iterator[int]:
    """Its port. It is a child of what the notebook server is a child of, as a kernel's children are below the runner."""
    with subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@dataclass
class Program:
    browser: Browser
    port: int


@pytest.fixture(scope="module")
def program(seat: Seat) -> Iterator[Program]:
    with a_program("127.0.0.1", str(seat.jupyter.temporary / "pages" / "board")) as port:
        yield Program(seat.front.enter(seat.label), port)


@pytest.mark.gate
def test_a_page_of_a_program_is_the_owners_alone(program: Program, seat: Seat) -> None:
    answer = program.browser.get(f"/proxy/{program.port}/a%20b/c?d=%2Fe", headers={"X-Mine": "1", "Authorization": "token x"})
    assert answer.status_code == 200
    assert answer.headers["x-program"] == "yes"
    assert answer.headers.get_list("set-cookie")[:2] == ["a=1", "b=2"]
    said = answer.json()
    assert (said["method"], said["uri"]) == ("GET", "/a%20b/c?d=%2Fe")
    assert said["headers"]["x-mine"] == "1"
    assert said["headers"]["x-forwarded-prefix"] == f"/proxy/{program.port}"
    assert not {name for name in said["headers"] if name.startswith("x-carrel") or name == "authorization"}
    assert "carrel" not in said["headers"].get("cookie", "")
    stranger = Browser(seat.front, seat.label)
    for path in (f"/proxy/{program.port}/", "/proxy/board/"):
        assert stranger.get(path).status_code in (401, 403)
        assert program.browser.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    with seat.jupyter.http() as http:  # past the lab's proxy, without what it says of people
        del http.headers["X-Carrel-Identity"]
        assert http.get(f"/proxy/{program.port}/").status_code == 403
        assert http.post(f"/proxy/{program.port}/").status_code == 403


def test_every_method_and_body_passes(program: Program) -> None:
    body = bytes(range(256)) * 2**17  # 32 MiB
    for method in ("POST", "PUT"):
        said = program.browser.request(method, f"/proxy/{program.port}/", content=body).json()
        assert (said["method"], said["size"], said["digest"]) == (method, len(body), hashlib.sha256(body).hexdigest())
    chunks = program.browser.request("POST", f"/proxy/{program.port}/", content=iter([b"a", b"b"]))
    assert chunks.json()["digest"] == hashlib.sha256(b"ab").hexdigest()
    head = program.browser.request("HEAD", f"/proxy/{program.port}/")
    assert (head.status_code, head.headers["content-length"]) == (200, "123")
    assert program.browser.get(f"/proxy/{program.port}/304").status_code == 304
    assert len(program.browser.get(f"/proxy/{program.port}/large").content) == 64 * 2**20


def test_redirections_lead_below_its_own_place(program: Program, seat: Seat) -> None:
    def moved(to: str, place: str = f"proxy/{program.port}") -> str:
        return str(program.browser.get(f"/{place}/moved", params={"to": to}).headers["location"])

    prefix = f"/proxy/{program.port}"
    assert moved("/status?x=1#y") == f"{prefix}/status?x=1#y"
    assert moved(f"{seat.front.origin(seat.label)}/status") == f"{prefix}/status"
    assert moved(f"{prefix}/status") == f"{prefix}/status"
    assert moved("status") == "status"
    assert moved("https://example.org/status") == "https://example.org/status"
    without = program.browser.get(f"{prefix}?x=1")
    assert (without.status_code, without.headers["location"]) == (302, f"{prefix}/?x=1")
    absolute = program.browser.get(f"/proxy/absolute/{program.port}/x?y=1").json()
    assert absolute["uri"] == f"/proxy/absolute/{program.port}/x?y=1"


def test_an_answer_without_end_comes_as_it_is_made_and_ends_with_its_reader(program: Program) -> None:
    browser = program.browser
    with socket.create_connection(("127.0.0.1", browser.front.port)) as raw:
        head = "".join(f"{name}: {value}\r\n" for name, value in browser.headers.items())
        raw.sendall(f"GET /proxy/{program.port}/endless HTTP/1.1\r\n{head}\r\n".encode())
        got = b""
        while b"data: first" not in got:
            piece = raw.recv(65536)
            assert piece, got
            got += piece
    assert browser.get(f"/proxy/{program.port}/left").text == "left"


@pytest.mark.parametrize("named", [False, True])
def test_websockets_pass(program: Program, named: bool) -> None:
    place = "board" if named else program.port
    with program.browser.websocket(f"/proxy/{place}/talk", subprotocols=["bokeh", "token"]) as talk:
        assert talk.subprotocol == "bokeh"
        for message in ("text", b"\x00bytes", "x" * 2**21):
            talk.send(message)
            assert talk.recv() == message
        talk.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            talk.recv()
        assert (closed.value.rcvd and closed.value.rcvd.code) == 4321
    for path in ("/proxy/board/nothing", "/proxy/1/talk"):
        with pytest.raises(InvalidStatus), program.browser.websocket(path):
            pass


def test_a_strangers_websocket_is_refused(program: Program, seat: Seat) -> None:
    for more in ({"cookie": ""}, {"origin": "http://elsewhere.localhost"}):
        with pytest.raises(InvalidStatus) as refused, program.browser.websocket(f"/proxy/{program.port}/talk", **more):
            pass
        assert refused.value.response.status_code == 403
    for token in ("", "carrel-job.7.1.forged"):
        with seat.jupyter.http() as http:
            http.headers["X-Carrel-Identity"] = token
            words = {
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "x" * 24,
            }
            assert http.get(f"/proxy/{program.port}/talk", headers=words).status_code == 403


def test_what_another_session_or_user_listens_at_is_not_reached(program: Program) -> None:
    """Else whoever is first at a port could have their page run in this session's origin, and act as its owner."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:  # not below the runner
        port = stranger.getsockname()[1]
        answer = program.browser.get(f"/proxy/{port}/")
        assert answer.status_code == 404
        assert f"No program of this session listens at port {port}" in answer.text
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()
    for place in ("65536", "0", "99999", "nothing", ".ssh", "..", "%2e%2e", "board%2f..", "localhost:1", "10.0.0.1"):
        assert program.browser.get(f"/proxy/{place}/").status_code in (302, 404), place  # 302: Jupyter's own, of addresses with /


def test_a_program_that_listens_on_all_addresses_or_on_the_sixth_version_is_found(program: Program) -> None:
    for host in ("0.0.0.0", "::1", "::"):
        try:
            socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError:
            continue  # this machine has no IPv6
        with a_program(host) as port:
            assert program.browser.get(f"/proxy/{port}/x").json()["uri"] == "/x"


def test_a_program_that_ends_or_speaks_something_else_is_an_error_of_its_own(program: Program) -> None:
    words = (
        "import socket\nwith socket.create_server(('127.0.0.1', 0)) as s:\n print(s.getsockname()[1], flush=True)\n"
        " while True:\n  c = s.accept()[0]; c.recv(99); c.sendall(b'SSH-2.0-x\\r\\n'); c.close()"
    )
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        answer = program.browser.get(f"/proxy/{port}/")
        assert (answer.status_code, "gives no answer of HTTP" in answer.text) == (502, True)
        process.kill()
        process.wait()
    wait_until(lambda: program.browser.get(f"/proxy/{port}/").status_code == 404)

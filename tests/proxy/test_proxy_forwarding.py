"""What is carried, and what is not: headers, bodies of any size, streams, websockets."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from session_rig import PATIENCE, Place, a_front, a_session, a_unix_server, wait_until
from small_server import SmallServer, resident
from websockets.exceptions import ConnectionClosed, InvalidStatus

from carrel.core.transport.message_room import MessageRoom
from carrel.notebooks import identity
from carrel.notebooks.proxy.headers import is_ours, request_headers, response_headers
from carrel.notebooks.proxy.websocket import sayable

MIB = 1024**2


def seen(place: Place, method: str = "GET", path: str = "/x", **more: Any) -> dict[str, Any]:
    answer = place.browser.request(method, path, **more)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def sent(said: dict[str, Any], name: str) -> list[str]:
    return [value for known, value in said["headers"] if known == name]


# ---- headers


@pytest.mark.gate
def test_the_session_learns_who_asks_and_nothing_that_opens_the_lab(place: Place) -> None:
    cookies = f"carrel_session=portal; {place.browser.headers['Cookie']}; _xsrf=2|a|b|1; __Secure-carrel-x=1; theme=dark"
    said = seen(
        place,
        headers={
            "Cookie": cookies,
            "Authorization": "Bearer carrel.secret",
            "X-Carrel-Identity": "forged",
            "X-CARREL-Anything": "1",
            "X-Forwarded-For": "10.0.0.1",
            "X-Forwarded-User": "root",
            "Forwarded": "for=1",
            "X-XSRFToken": "kept",
        },
    )
    (shown,) = sent(said, "x-carrel-identity")
    assert identity.read_identity(
        shown, place.session.token, job_id=place.session.job_id, attempt=1, now=place.front.clock()
    ) == ("ada", "Ada")
    assert sent(said, "cookie") == ["_xsrf=2|a|b|1; theme=dark"]
    assert sent(said, "x-xsrftoken") == ["kept"]
    assert sent(said, "host") == [place.front.host(place.label)]
    assert sent(said, "origin") == [place.front.origin(place.label)]
    names = {name for name, _value in said["headers"]}
    assert not names & {"authorization", "forwarded", "x-forwarded-for", "x-forwarded-user", "x-carrel-anything"}
    assert "portal" not in json.dumps(said)
    assert "secret" not in json.dumps(said)


def test_headers_for_one_hop_stay_there(place: Place) -> None:
    said = seen(
        place,
        headers={
            "Connection": "keep-alive, X-Private",
            "X-Private": "1",
            "Keep-Alive": "5",
            "TE": "trailers",
            "Proxy-Authorization": "x",
        },
    )
    names = {name for name, _value in said["headers"]}
    assert not names & {"x-private", "keep-alive", "te"}


def test_what_a_session_may_say_to_a_browser(place: Place) -> None:
    asked = [
        ["Set-Cookie", "_xsrf=1; Path=/; Domain=localhost; HttpOnly"],
        ["Set-Cookie", "a=1;DOMAIN=.localhost ; path=/"],
        ["Set-Cookie", "carrel-session=stolen; Path=/"],
        ["Set-Cookie", "__Host-Carrel-Session=stolen; Path=/"],
        ["Clear-Site-Data", '"*"'],
        ["Strict-Transport-Security", "max-age=1"],
        ["Access-Control-Allow-Origin", "*"],
        ["Access-Control-Allow-Credentials", "true"],
        ["Cross-Origin-Resource-Policy", "cross-origin"],
        ["Content-Security-Policy", "default-src 'none'"],
        ["X-Kept", "1"],
    ]
    answer = place.browser.request("POST", "/headers", content=json.dumps(asked))
    assert answer.headers.get_list("set-cookie") == ["_xsrf=1; Path=/; HttpOnly", "a=1; path=/"]
    assert answer.headers["x-kept"] == "1"
    assert "clear-site-data" not in answer.headers
    assert "strict-transport-security" not in answer.headers
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert answer.headers.get_list("content-security-policy") == ["default-src 'none'", "frame-ancestors 'self'"]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["origin-agent-cluster"] == "?1"
    assert len(answer.headers.get_list("date")) == 1


def test_our_cookies_are_known_by_their_names() -> None:
    assert all(is_ours(name) for name in ("carrel", "carrel_session", " Carrel-Session ", "__Host-carrel-x", "__secure-CARREL"))
    assert not any(is_ours(name) for name in ("_xsrf", "xcarrel", "username-localhost", ""))


def test_header_names_are_compared_without_their_case() -> None:
    kept = dict(
        request_headers(
            [(b"X-Carrel-Identity", b"forged"), (b"AUTHORIZATION", b"x"), (b"A", b"1")], {"X-Carrel-Identity": "real"}
        )
    )
    assert kept == {b"a": b"1", b"accept-encoding": b"identity", b"x-carrel-identity": b"real"}
    assert (b"set-cookie", b"a=1") in response_headers([(b"SET-COOKIE", b"a=1; domain=x")])


# ---- requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_is_carried(place: Place, method: str) -> None:
    answer = place.browser.request(method, "/x", content=b"" if method in ("GET", "HEAD") else b"body")
    assert answer.status_code == 200
    if method != "HEAD":
        assert (answer.json()["method"], answer.json()["body"]) == (method, "" if method == "GET" else "body")


@pytest.mark.parametrize("status", [200, 204, 206, 301, 304, 400, 404, 405, 409, 500, 503])
def test_every_status_is_carried(place: Place, status: int) -> None:
    answer = place.browser.get(f"/status?is={status}")
    assert answer.status_code == status
    assert answer.text == ("" if status in (204, 304) else "text")


@pytest.mark.parametrize(
    "path", ["/a%2Fb", "/a%20b/%C3%A4", "//double", "/a%2e%2e/b", "/files/x?a=1&a=2&b=%26", "/x?%00", "/a;b=c", "/[x]?{y}"]
)
def test_addresses_arrive_as_they_were_sent(place: Place, path: str) -> None:
    with socket.create_connection(("127.0.0.1", place.front.port), timeout=PATIENCE) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in place.browser.headers.items())
        connection.sendall(f"GET {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    said = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert said["raw_path"] + (f"?{said['query']}" if said["query"] else "") == path


SMUGGLED = [
    b"POST /x HTTP/1.1\r\n{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    b"GET /smuggled HTTP/1.1\r\n{head}\r\n",
    b"POST /x HTTP/1.1\r\n{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhelloX",
    b"POST /x HTTP/1.1\r\n{head}Content-Length: +5\r\n\r\nhello",
    b"POST /x HTTP/1.1\r\n{head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET /x HTTP/1.1\r\n{head}X-Bad: a\nX-Carrel-Identity: forged\r\n\r\n",
    b"GET /x HTTP/1.1\r\n{head}X-Bad: a\0b\r\n\r\n",
    b"GET /x\r\n y HTTP/1.1\r\n{head}\r\n",
    b"GET * HTTP/1.1\r\n{head}\r\n",
    b"GET \xc3\xa4 HTTP/1.1\r\n{head}\r\n",
    b"GET /\xc3\xa4 HTTP/1.1\r\n{head}\r\n",
    b"GET /x?\xff HTTP/1.1\r\n{head}\r\n",
]


@pytest.mark.parametrize("request_", SMUGGLED)
def test_what_two_servers_could_read_in_two_ways_reaches_one(place: Place, request_: bytes) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in place.browser.headers.items()).encode()
    with socket.create_connection(("127.0.0.1", place.front.port), timeout=PATIENCE) as connection:
        connection.sendall(request_.replace(b"{head}", head))
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert b"smuggled" not in answer
    assert b"forged" not in answer
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 200 ", b"HTTP/1.1 404 ")) or answer == b""
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert len(place.server.paths) <= 1
    assert place.browser.get("/x").status_code == 200


def pieces(count: int, digest: Any = None) -> Iterator[bytes]:
    source = random.Random(1)
    for _ in range(count):
        piece = source.randbytes(MIB)
        if digest is not None:
            digest.update(piece)
        yield piece


def test_an_upload_of_200_mb_streams_through(place: Place) -> None:
    gc.collect()
    before, digest = resident(), hashlib.sha256()
    answer = place.browser.request("POST", "/upload", content=pieces(200, digest))
    assert answer.json() == {"size": 200 * MIB, "digest": digest.hexdigest()}
    assert place.server.peak - before < 50 * MIB


def test_a_download_of_200_mb_streams_through(place: Place) -> None:
    gc.collect()
    before, size, peak = resident(), 0, 0
    for more in ("", "&chunked=1"):
        with httpx.stream(
            "GET",
            f"http://127.0.0.1:{place.front.port}/download?pieces=3200{more}",
            headers=place.browser.headers,
            timeout=PATIENCE,
        ) as answer:
            for piece in answer.iter_raw():
                size += len(piece)
                peak = max(peak, resident())
    assert size == 400 * MIB
    assert max(peak, place.server.peak) - before < 50 * MIB


def test_a_download_that_nobody_reads_is_held_up_at_its_source(place: Place) -> None:
    gc.collect()
    before = resident()
    with socket.create_connection(("127.0.0.1", place.front.port), timeout=PATIENCE) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in place.browser.headers.items())
        connection.sendall(f"GET /download?pieces=6400 HTTP/1.1\r\n{head}\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: place.server.peak, "the download to begin")
        still, last = 0, -1
        while still < 10:  # nothing moves any more
            still = still + 1 if place.server.peak == last else 0
            last = place.server.peak
            threading.Event().wait(0.02)
        assert resident() - before < 50 * MIB


def test_a_browser_that_goes_away_in_an_upload_ends_it_for_the_session(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.front.port), timeout=PATIENCE) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in place.browser.headers.items())
        connection.sendall(f"POST /upload HTTP/1.1\r\n{head}Content-Length: 1000000\r\n\r\n".encode() + b"x" * 1000)
        assert place.server.started.wait(PATIENCE)
    assert place.server.ended.wait(PATIENCE)


def test_a_stream_begins_at_once_and_ends_when_nobody_listens(place: Place) -> None:
    with httpx.stream(
        "GET", f"http://127.0.0.1:{place.front.port}/endless", headers=place.browser.headers, timeout=PATIENCE
    ) as answer:
        stream = answer.iter_raw()  # kept: without it the connection is closed
        assert next(stream) == b"data: 1\n\n"
        assert not place.server.ended.is_set()
    assert place.server.ended.wait(PATIENCE)


def test_an_answer_that_breaks_off_is_not_made_whole(place: Place) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        place.browser.get("/broken")
    assert place.browser.get("/x").status_code == 200


def test_many_at_once(place: Place) -> None:
    answers: list[int] = []

    def ask() -> None:
        answers.extend(place.browser.get("/x").status_code for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 100


# ---- use


def test_use_is_told_at_most_once_a_second(place: Place) -> None:
    place.front.sessions.uses = 0
    began = time.monotonic()
    for _ in range(20):
        place.browser.get("/x")
    assert 1 <= place.front.sessions.uses <= 2 + (time.monotonic() - began)


def test_a_session_is_asked_for_once_a_second(place: Place) -> None:
    place.front.sessions.finds = 0
    began = time.monotonic()
    for _ in range(20):
        place.browser.get("/x")
    assert place.front.sessions.finds <= 2 + (time.monotonic() - began)


def test_open_websockets_are_counted(place: Place) -> None:
    counts, job = place.front.sessions.connections, place.session.job_id
    with place.browser.websocket("/echo"), place.browser.websocket("/echo"):
        assert counts[job] == 2
    wait_until(lambda: counts[job] == 0, "the connections to be given back")
    with pytest.raises(InvalidStatus):
        place.browser.websocket("/refuse")
    wait_until(lambda: counts[job] == 0, "the refused one to be given back")


# ---- websockets


def test_a_websocket_carries_text_and_bytes_of_any_size(place: Place) -> None:
    with place.browser.websocket("/echo") as channel:
        for message in ("", "text", "ä" * 100_000, b"", b"\0\xff" * 1000, random.Random(2).randbytes(32 * MIB), "x" * (8 * MIB)):
            channel.send(message)
            assert channel.recv(timeout=PATIENCE) == message


def test_the_session_chooses_the_subprotocol_and_learns_who_asks(place: Place) -> None:
    with place.browser.websocket("/say", subprotocols=["one", "v1.kernel.websocket.jupyter.org"]) as channel:
        assert channel.subprotocol == "v1.kernel.websocket.jupyter.org"
        headers = json.loads(channel.recv(timeout=PATIENCE))
    names = [name for name, _value in headers]
    assert names.count("x-carrel-identity") == names.count("host") == names.count("origin") == 1
    assert dict(headers)["host"] == place.front.host(place.label)
    assert dict(headers)["origin"] == place.front.origin(place.label)
    assert "carrel-session" not in json.dumps(headers)
    assert "sec-websocket-extensions" not in names  # nothing is compressed on the way next door


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1011, 1012, 3000, 4999])
def test_close_codes_are_carried_both_ways(place: Place, code: int) -> None:
    with place.browser.websocket(f"/close?code={code}") as channel, pytest.raises(ConnectionClosed) as closed:
        channel.recv(timeout=PATIENCE)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, "as asked")
    if code != 1012:
        place.server.ended.clear()
        channel = place.browser.websocket("/echo")
        channel.close(code=code, reason="gone")
        assert place.server.ended.wait(PATIENCE)
        assert place.server.close_code == code


def test_close_codes_that_cannot_be_said() -> None:
    assert sayable(1005, otherwise=1012) == 1000
    assert sayable(1006, otherwise=1012) == 1012
    assert sayable(None, otherwise=1001) == 1001
    assert sayable(999, otherwise=1001) == 1001
    assert sayable(4000, otherwise=1001) == 4000


def test_a_browser_that_vanishes_is_gone_for_the_session(place: Place) -> None:
    channel = place.browser.websocket("/echo")
    channel.socket.shutdown(socket.SHUT_RDWR)
    assert place.server.ended.wait(PATIENCE)
    wait_until(lambda: place.front.sessions.connections[place.session.job_id] == 0, "the connection to be given back")


def test_a_websocket_that_the_session_does_not_take_is_refused(place: Place) -> None:
    with pytest.raises(InvalidStatus) as refused:
        place.browser.websocket("/refuse")
    assert refused.value.response.status_code == 403
    assert len(place.server.paths) == 1


def test_a_session_that_does_not_read_holds_up_its_page_and_not_the_memory(place: Place) -> None:
    gc.collect()
    before = resident()
    channel = place.browser.websocket("/slow")
    over = threading.Event()

    def flood() -> None:
        for _ in range(200):
            channel.send(b"x" * MIB)
        over.set()

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    assert not over.wait(1.5)  # 200 MB do not fit between page and session
    assert resident() - before < 80 * MIB
    place.server.reading.set()
    assert over.wait(PATIENCE)
    wait_until(lambda: place.server.read == 200, "all messages")
    thread.join()
    channel.close()


def test_what_a_session_sends_has_room_for_each_user() -> None:
    with a_front(room=MessageRoom(MIB)) as front, a_unix_server(SmallServer()) as path:
        label = front.sessions.add(a_session(path))
        browser = front.enter(label)
        with browser.websocket("/echo") as channel:
            for _ in range(50):  # what was passed on counts no more
                channel.send(b"x" * (MIB // 2))
                assert len(channel.recv(timeout=PATIENCE)) == MIB // 2
            channel.send(b"x" * (4 * MIB))
            with pytest.raises(ConnectionClosed) as closed:
                channel.recv(timeout=PATIENCE)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        with browser.websocket("/echo") as channel:
            channel.send("again")
            assert channel.recv(timeout=PATIENCE) == "again"


def test_a_websocket_soak(place: Place) -> None:
    """Many messages on many connections, in order, none lost."""
    faults: list[str] = []

    def talk(seed: int) -> None:
        source = random.Random(seed)
        with place.browser.websocket("/echo") as channel:
            waiting: list[bytes] = []
            for number in range(400):
                message = number.to_bytes(4) + source.randbytes(source.choice((0, 10, 1000, 100_000)))
                channel.send(message)
                waiting.append(message)
                if len(waiting) > 8 and channel.recv(timeout=PATIENCE) != waiting.pop(0):
                    faults.append(f"{seed}: message {number}")
            faults.extend(f"{seed}: at the end" for message in waiting if channel.recv(timeout=PATIENCE) != message)

    threads = [threading.Thread(target=talk, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert place.server.read == 8 * 400

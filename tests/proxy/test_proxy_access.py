"""Who gets in: every way that is not the owner's own ends before the session's server."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest
from session_rig import Browser, Front, Place, Switch, a_front, a_session, a_unix_server
from small_server import SmallServer
from starlette.types import Receive, Scope, Send
from websockets.exceptions import InvalidStatus

from carrel.core.domain.errors import Invalid, TooMany
from carrel.notebooks import identity
from carrel.notebooks.address import UnixAddress
from carrel.notebooks.proxy import SessionHosts, TicketIssuer, lab_path


def raw(front: Front, text: bytes) -> bytes:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=20) as connection:
        connection.sendall(text)
        connection.settimeout(20)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


# ---- the way in


@pytest.mark.gate
def test_a_ticket_is_exchanged_for_a_cookie_and_the_address_is_left_behind(place: Place) -> None:
    browser = Browser(place.front, place.label)
    answer = browser.get(place.front.ticket(place.label, "ada", lab_path("a dir/näme?.ipynb")))
    assert answer.status_code == 303
    assert answer.headers["location"] == "/lab/tree/a%20dir/n%C3%A4me%3F.ipynb"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("carrel-session=")
    assert {part.strip() for part in cookie.split(";")[1:]} == {"httponly", "path=/", "samesite=lax"}
    browser.take_cookies(answer)
    assert browser.get("/x").status_code == 200


def test_a_ticket_works_once_even_when_many_try(place: Place) -> None:
    link = place.front.ticket(place.label, "ada", "/lab")
    browser, answers = Browser(place.front, place.label), []
    threads = [threading.Thread(target=lambda: answers.append(browser.get(link).status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [303] + [403] * 7


def test_a_ticket_lasts_a_minute(place: Place) -> None:
    links = [place.front.ticket(place.label, "ada", "/lab") for _ in range(2)]
    place.front.clock.ahead = 30  # and as long again for what follows, on a machine that has much else to do
    assert Browser(place.front, place.label).get(links[0]).status_code == 303
    place.front.clock.ahead = 61
    assert Browser(place.front, place.label).get(links[1]).status_code == 403


def test_looking_at_a_link_does_not_use_it_up(place: Place) -> None:
    link = place.front.ticket(place.label, "ada", "/lab")
    browser = Browser(place.front, place.label)
    assert browser.request("HEAD", link).status_code == 200
    assert browser.request("POST", link).status_code == 403
    assert browser.get(link).status_code == 303


def test_a_ticket_is_for_one_session_and_its_owner(place: Place, bobs: Place) -> None:
    link = place.front.ticket(place.label, "ada", "/lab")
    assert Browser(place.front, bobs.label).get(link).status_code == 403
    # It was shown to the wrong door, and is worth nothing any more.
    assert Browser(place.front, place.label).get(link).status_code == 403
    strangers = place.front.ticket(place.label, "bob", "/lab")
    assert Browser(place.front, place.label).get(strangers).status_code == 403


@pytest.mark.parametrize("query", ["", "?ticket=", "?ticket=x", "?ticket=%00", "?Ticket=x", "?ticket=" + "x" * 20_000])
def test_what_is_no_ticket(place: Place, query: str) -> None:
    answer = Browser(place.front, place.label).get(f"/_carrel/enter{query}")
    assert answer.status_code in (403, 414, 431)
    assert "set-cookie" not in answer.headers


def test_two_tickets_in_one_link_are_none(place: Place) -> None:
    link = place.front.ticket(place.label, "ada", "/lab")
    assert Browser(place.front, place.label).get(link + "&ticket=x").status_code == 403


@pytest.mark.parametrize("path", ["", "lab", "//evil.example", "/\\evil", "/a\r\nb", "http://evil.example/"])
def test_a_ticket_leads_nowhere_else(place: Place, path: str) -> None:
    with pytest.raises(Invalid):
        place.front.ticket(place.label, "ada", path)


@pytest.mark.parametrize("file", ["/etc/passwd", "../x", "a/../../x", "a\\b", "a\0b"])
def test_only_files_of_the_session_are_opened(file: str) -> None:
    with pytest.raises(Invalid):
        lab_path(file)


def test_a_door_keeps_no_ticket_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.notebooks.proxy.tickets._MOST", 3)
    door = TicketIssuer(lambda: 0.0)
    tickets = [door.issue("s1-000000000000", 1, "/lab").partition("ticket=")[2] for _ in range(5)]
    assert not any(ticket in str(door._tickets) for ticket in tickets)
    assert [door.take("s1-000000000000", ticket) is not None for ticket in tickets] == [False, False, True, True, True]


# ---- without a cookie, or with the wrong one


def test_strangers_learn_nothing(place: Place) -> None:
    place.front.sessions.finds = 0
    there = Browser(place.front, place.label).get("/api/status")
    nowhere = Browser(place.front, "s99-0123456789ab").get("/api/status")
    assert (there.status_code, nowhere.status_code) == (401, 401)
    assert there.text == nowhere.text
    assert "carrel notebook" in there.text
    assert "set-cookie" not in there.headers
    assert there.headers["cache-control"] == "no-store"
    assert place.server.paths == []
    assert place.front.sessions.finds == 0  # nobody makes the lab look into its store without a cookie


def attempts(place: Place, bobs: Place) -> dict[str, dict[str, str]]:
    """Cookies that do not belong to Ada's session."""
    ada, bob = place.browser.cookies["carrel-session"], bobs.browser.cookies["carrel-session"]
    secret, label, tokens = place.front.sessions.secret, place.label, place.front.sessions
    other_attempt = identity.session_label(secret, place.session.job_id, 2)
    return {
        "none": {},
        "bob's session": {"carrel-session": bob},
        "bob, signed for Ada's session": {"carrel-session": identity.cookie_value(secret, label, tokens.token_of("bob"))},
        "another attempt": {"carrel-session": identity.cookie_value(secret, other_attempt, tokens.token_of("ada"))},
        "another lab": {"carrel-session": identity.cookie_value(b"x" * 32, label, tokens.token_of("ada"))},
        "tampered": {"carrel-session": ada[:-4] + ("AAAA" if ada[-4:] != "AAAA" else "BBBB")},
        "cut": {"carrel-session": ada.rpartition(".")[0] + "."},
        "another name": {"carrel-sessions": ada},
        "in the name": {ada: "carrel-session"},
        "empty": {"carrel-session": ""},
        "quoted": {"carrel-session": f'"{ada}"'},
    }


@pytest.mark.parametrize(
    "which",
    [
        "none",
        "bob's session",
        "bob, signed for Ada's session",
        "another attempt",
        "another lab",
        "tampered",
        "cut",
        "another name",
        "in the name",
        "empty",
        "quoted",
    ],
)
def test_no_other_cookie_opens_a_session(place: Place, bobs: Place, which: str) -> None:
    browser = Browser(place.front, place.label)
    browser.cookies = attempts(place, bobs)[which]
    assert browser.get("/x").status_code == 401
    assert browser.request("POST", "/x", content=b"x").status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        browser.websocket("/say")
    assert refused.value.response.status_code == 403
    assert place.server.paths == []


def test_a_cookie_outlives_a_restart_of_the_server_and_dies_with_the_job() -> None:
    switch = Switch()
    switch.target = SmallServer()
    with a_unix_server(switch) as path:
        with a_front(secret=b"k" * 32) as front:
            label = front.sessions.add(a_session(path))
            cookies = front.enter(label).cookies
        with a_front(secret=b"k" * 32) as again:
            again.sessions.tokens, front = front.sessions.tokens, again
            front.sessions.add(a_session(path))
            browser = Browser(front, label)
            browser.cookies = cookies
            assert browser.get("/x").status_code == 200
            front.sessions.by_label[label] = a_session(path, over=True, message="Cancelled by <ada>.")
            front.hosts._known.clear()
            over = browser.get("/x")
            assert over.status_code == 410
            assert "Cancelled by &lt;ada&gt;." in over.text
            # The next attempt is another session with another name.
            again = front.sessions.add(a_session(path, attempt=2))
            browser.label = again
            assert browser.get("/x").status_code == 401


def test_a_session_that_was_given_to_somebody_else_is_closed_to_its_first_owner(place: Place) -> None:
    place.becomes(owner="carol")
    assert place.browser.get("/x").status_code == 401


def test_over_https_the_cookie_is_kept_to_its_host(place: Place) -> None:
    # uvicorn believes a proxy on this machine that says it ends TLS.
    link = place.front.ticket(place.label, "ada", "/lab")
    answer = Browser(place.front, place.label).get(link, headers={"X-Forwarded-Proto": "https"})
    assert answer.headers["set-cookie"].startswith("__Host-carrel-session=")
    assert "secure" in answer.headers["set-cookie"].lower()
    browser = Browser(place.front, place.label)
    browser.take_cookies(answer)
    assert browser.get("/x", headers={"Origin": f"https://{place.front.host(place.label)}"}).status_code == 200


# ---- hosts


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "lab.localhost",
        "s7.localhost",
        "x.{label}.localhost",
        "{label}.localhost.example.org",
        "{label}localhost",
        "{label}",
        "s0-000000000000.localhost",
        "[::1]",
        "",
    ],
)
def test_all_other_hosts_are_the_labs(place: Place, host: str) -> None:
    answer = place.browser.get("/x", headers={"Host": host.format(label=place.label)})
    assert answer.text == "the lab"
    assert place.server.paths == []


@pytest.mark.parametrize("host", ["{label}.localhost", "{label}.LOCALHOST:1", "{upper}.localhost", "{label}.localhost."])
def test_a_sessions_host_in_other_letters_is_still_the_session(place: Place, host: str) -> None:
    name = host.format(label=place.label, upper=place.label.upper())
    assert place.browser.get("/x", headers={"Host": name, "Origin": None}).json()["method"] == "GET"
    stranger = Browser(place.front, place.label)
    assert stranger.get("/x", headers={"Host": name}).status_code == 401


def test_a_request_with_two_hosts_is_nobodys(place: Place) -> None:
    cookie = place.browser.headers["Cookie"]
    for first, second in ((f"{place.label}.localhost", "localhost"), ("localhost", f"{place.label}.localhost")):
        request = f"GET /x HTTP/1.1\r\nHost: {first}\r\nHost: {second}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        assert raw(place.front, request.encode()).startswith(b"HTTP/1.1 400 ")
    assert place.server.paths == []


def test_the_host_counts_and_not_the_address_in_the_request_line(place: Place) -> None:
    line = f"GET http://{place.label}.localhost/x HTTP/1.1\r\nHost: localhost\r\nCookie: {place.browser.headers['Cookie']}\r\n"
    assert b"the lab" in raw(place.front, f"{line}Connection: close\r\n\r\n".encode())
    assert place.server.paths == []


def test_websockets_and_the_life_of_the_lab_go_to_the_lab(place: Place) -> None:
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{place.front.port}/", compression=None) as inner:
        assert inner.recv() == "the lab"
    assert place.front.server.lifespan.should_exit is False  # its lifespan came up through the proxy


class Full:
    """A connection of a user who has as many as one may have."""

    def known(self, subject: str, job: int | None) -> None:
        raise TooMany(f"{subject} and {job} have many.")


def test_too_many_at_once_are_refused_before_the_session_hears_of_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    call = SessionHosts.__call__

    async def full(hosts: SessionHosts, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["connection"] = Full()
        await call(hosts, scope, receive, send)

    monkeypatch.setattr(SessionHosts, "__call__", full)
    assert place.browser.get("/x").status_code == 429
    with pytest.raises(InvalidStatus), place.browser.websocket("/echo"):
        pass
    assert place.server.paths == []


def test_another_pattern() -> None:
    with a_unix_server(Switch()) as path, a_front(pattern="{session}.notebooks.lab.example") as front:
        label = front.sessions.add(a_session(path))
        host = f"{label}.notebooks.lab.example"
        answer = httpx.get(f"http://127.0.0.1:{front.port}{front.ticket(label, 'ada')}", headers={"Host": host})
        assert answer.status_code == 303
        elsewhere = httpx.get(f"http://127.0.0.1:{front.port}/", headers={"Host": f"{label}.localhost"})
        assert elsewhere.text == "the lab"


# ---- other sites

OWN = "own"
CASES = [
    # method, origin, sec-fetch-site, mode, dest, allowed
    ("GET", None, None, None, None, True),
    ("GET", OWN, "same-origin", "cors", "empty", True),
    ("GET", None, "none", "navigate", "document", True),
    ("GET", None, "cross-site", "navigate", "document", True),  # a link in the lab's pages, or in a mail
    ("GET", None, "same-site", "navigate", "document", True),
    ("GET", None, "cross-site", "navigate", "iframe", False),
    ("GET", None, "same-site", "no-cors", "script", False),
    ("GET", None, "cross-site", "no-cors", "image", False),
    ("GET", "http://localhost", "cross-site", "cors", "empty", False),
    ("GET", "null", None, None, None, False),
    ("POST", OWN, "same-origin", "cors", "empty", True),
    ("POST", OWN, None, None, None, True),
    ("POST", None, "same-origin", "navigate", "document", True),
    ("POST", None, None, None, None, False),
    ("POST", "null", None, None, None, False),
    ("POST", OWN, "same-site", "cors", "empty", False),
    ("POST", "http://localhost", None, None, None, False),
    ("POST", "http://s8-000000000000.localhost", "cross-site", "cors", "empty", False),
    ("POST", None, "cross-site", "navigate", "document", False),
    ("PUT", "https://evil.example", None, None, None, False),
    ("DELETE", "http://{label}.localhost.evil.example", None, None, None, False),
    ("DELETE", "file://{label}.localhost", None, None, None, False),
    ("PATCH", "http://{label}.localhost:1", None, None, None, False),
]


@pytest.mark.parametrize(("method", "origin", "site", "mode", "dest", "allowed"), CASES)
def test_what_other_sites_may_cause(
    place: Place, method: str, origin: str | None, site: str | None, mode: str | None, dest: str | None, allowed: bool
) -> None:
    own = place.front.origin(place.label)
    headers = {
        "Origin": own if origin == OWN else origin and origin.format(label=place.label),
        "Sec-Fetch-Site": site,
        "Sec-Fetch-Mode": mode,
        "Sec-Fetch-Dest": dest,
    }
    answer = place.browser.request(method, "/x", headers=headers)
    assert answer.status_code == (200 if allowed else 403)
    assert len(place.server.paths) == (1 if allowed else 0)


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://localhost", "https://evil.example", "http://s8-000000000000.localhost", "http://{label}.localhost"],
)
def test_a_websocket_must_come_from_the_sessions_own_page(place: Place, origin: str | None) -> None:
    with pytest.raises(InvalidStatus) as refused:
        place.browser.websocket("/say", origin=origin and origin.format(label=place.label))
    assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus):
        place.browser.websocket("/say", headers={"Sec-Fetch-Site": "same-site"})
    assert place.server.paths == []


# ---- a session that is not there


def test_a_session_that_starts_says_so_and_looks_again_by_itself(place: Place) -> None:
    place.becomes(address=UnixAddress("/nowhere"), ready=False, message="Preparing the environment.")
    answer = place.browser.get("/lab")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert 'http-equiv="refresh"' in answer.text
    assert "Preparing the environment." in answer.text
    assert "carrel-job" not in answer.text
    with pytest.raises(InvalidStatus) as refused:
        place.browser.websocket("/say")
    assert refused.value.response.status_code == 403
    place.becomes(ready=True)
    assert place.browser.get("/lab").status_code == 503  # it went away, and nobody has noticed yet
    with pytest.raises(InvalidStatus):
        place.browser.websocket("/say")


def test_nothing_of_ours_reaches_the_session(place: Place) -> None:
    for path in ("/_carrel", "/_carrel/", "/_carrel/x", "/%5Fcarrel/x", "/_carrel/enter/x"):
        assert place.browser.get(path).status_code == 404
    assert place.server.paths == []

"""A browser is in a session for as long as the token with which it came is good, and what it has open ends with that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from session_rig import Browser, Place
from websockets.exceptions import ConnectionClosed, InvalidStatus

from carrel.testing.waiting import PATIENCE


@pytest.fixture
def revoked(place: Place) -> Iterator[Place]:
    """Ada's session, whose token is void after the test anyway."""
    yield place
    put_out(place)


def put_out(place: Place, name: str = "ada") -> None:
    tokens = place.front.sessions
    del tokens.tokens[tokens.token_of(name)]
    place.front.conversations.look()


@pytest.mark.gate
def test_a_websocket_ends_with_the_token_and_others_go_on(revoked: Place, bobs: Place) -> None:
    with revoked.browser.websocket("/echo") as hers, bobs.browser.websocket("/echo") as his:
        hers.send("typed")
        assert hers.recv(timeout=PATIENCE) == "typed"
        put_out(revoked)
        with pytest.raises(ConnectionClosed) as closed:
            hers.recv(timeout=PATIENCE)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert revoked.server.ended.wait(PATIENCE)
        his.send("typed")
        assert his.recv(timeout=PATIENCE) == "typed"
    assert revoked.browser.get("/x").status_code == 401
    with pytest.raises(InvalidStatus):
        revoked.browser.websocket("/echo")
    # By a new link the same person is in again, and the old cookie is not.
    old = dict(revoked.browser.cookies)
    again = revoked.front.enter(revoked.label)
    assert again.get("/x").status_code == 200
    again.cookies = old
    assert again.get("/x").status_code == 401


def test_a_websocket_ends_when_its_token_does(place: Place) -> None:
    tokens, number = place.front.sessions.tokens, place.front.sessions.token_of("ada")
    tokens[number] = replace(tokens[number], until=time.time() + 1.0)
    place.front.conversations.look()  # so that the proxy hears of it
    with place.browser.websocket("/echo") as hers:
        del tokens[number]  # it is asked about again when it ends, and not before
        with pytest.raises(ConnectionClosed):
            hers.recv(timeout=PATIENCE)
    assert place.browser.get("/x").status_code == 401


def test_a_download_ends_with_the_token(revoked: Place) -> None:
    url = f"http://127.0.0.1:{revoked.front.port}/endless"
    with httpx.stream("GET", url, headers=revoked.browser.headers, timeout=PATIENCE) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        put_out(revoked)
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
    assert revoked.server.ended.wait(PATIENCE)


def test_a_link_is_good_only_while_its_token_is(revoked: Place) -> None:
    link = revoked.front.ticket(revoked.label)
    put_out(revoked)
    assert Browser(revoked.front, revoked.label).get(link).status_code == 403


def test_a_browser_is_in_again_as_soon_as_the_lab_knows_who_it_is(place: Place) -> None:
    place.front.sessions.silent = True
    place.front.conversations.look()
    assert place.browser.get("/x").status_code == 401
    place.front.sessions.silent = False
    assert place.browser.get("/x").status_code == 200

"""A session puts something else in the place of its socket: the lab speaks to nothing of its own user's for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from session_rig import Place, a_front, a_session, a_unix_server
from small_server import SmallServer
from websockets.exceptions import InvalidStatus

from carrel.core.domain.errors import Unavailable
from carrel.notebooks.address import UnixAddress
from carrel.notebooks.proxy import ask, takes_connections
from carrel.testing.waiting import PATIENCE


class Daemon(SmallServer):
    """A program of the lab's user, which notes what reaches it at all."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            self.reached += 1
            await super().__call__(scope, receive, send)


@dataclass
class Two:
    place: Place
    daemon: Daemon
    #: Of the session, and of the daemon.
    socket: Path
    elsewhere: Path


@pytest.fixture
def two() -> Iterator[Two]:
    with ExitStack() as stack:
        front, server, daemon = stack.enter_context(a_front()), SmallServer(), Daemon()
        own, other = stack.enter_context(a_unix_server(server)), stack.enter_context(a_unix_server(daemon))
        label = front.sessions.add(a_session(own))
        yield Two(Place(front, server, label, front.enter(label)), daemon, Path(own), Path(other))


def asked(address: UnixAddress) -> int:
    return ask(address, "GET", "/x", headers={}, seconds=PATIENCE)[0]


@pytest.mark.gate
def test_a_link_in_its_place_leads_to_no_other_server(two: Two) -> None:
    browser, address = two.place.browser, UnixAddress(str(two.socket))
    assert asked(address) == 200
    assert takes_connections(address) == ""
    two.socket.rename(two.socket.with_name("away"))
    two.socket.symlink_to(two.elsewhere)
    for path in ("/version", "/v1.41/containers/create"):
        assert browser.request("POST", path, content=b"{}").status_code == 503
    with pytest.raises(InvalidStatus), browser.websocket("/ws"):
        pass
    with pytest.raises(Unavailable, match="ConnectError"):
        asked(address)
    assert takes_connections(address)
    assert two.daemon.reached == 0


def test_another_socket_in_its_place_is_found(two: Two) -> None:
    """As when its notebook server starts again."""
    with a_unix_server(SmallServer()) as path:
        two.socket.unlink()
        Path(path).rename(two.socket)
        assert two.place.browser.get("/x").status_code == 200
        with two.place.browser.websocket("/ws?send=1") as socket:
            socket.close()
        assert takes_connections(UnixAddress(str(two.socket))) == ""


def test_a_directory_in_its_place_leads_to_no_other_server(two: Two) -> None:
    place = two.socket.parent
    place.rename(place.with_name(f"{place.name}-away"))
    try:
        place.symlink_to(two.elsewhere.parent)
        assert two.place.browser.get("/x").status_code == 503
        assert takes_connections(UnixAddress(str(two.socket)))
        assert two.daemon.reached == 0
    finally:
        place.unlink()
        place.with_name(f"{place.name}-away").rename(place)

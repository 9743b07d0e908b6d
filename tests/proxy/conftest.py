from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from session_rig import Front, Place, Switch, a_front, a_session, a_unix_server
from small_server import SmallServer

_numbers = itertools.count(7)


@dataclass
class Grounds:
    """One proxy and the sockets of two sessions, for all tests; each test has sessions of its own on them."""

    front: Front
    sockets: tuple[str, str]
    switches: tuple[Switch, Switch]


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    switches = Switch(), Switch()
    with a_unix_server(switches[0]) as one, a_unix_server(switches[1]) as other, a_front() as front:
        yield Grounds(front, (one, other), switches)


def _place(grounds: Grounds, which: int, owner: str) -> Place:
    server = grounds.switches[which].target = SmallServer()
    number = next(_numbers)
    session = a_session(grounds.sockets[which], job_id=number, owner=owner, token=f"carrel-job.{number}.1.{owner}")
    label = grounds.front.sessions.add(session)
    return Place(grounds.front, server, label, grounds.front.enter(label))


@pytest.fixture
def place(grounds: Grounds) -> Place:
    """Ada's session."""
    grounds.front.clock.ahead = 0.0
    grounds.front.sessions.finds = 0
    return _place(grounds, 0, "ada")


@pytest.fixture
def bobs(grounds: Grounds, place: Place) -> Place:
    """Bob's session, beside Ada's."""
    return _place(grounds, 1, "bob")

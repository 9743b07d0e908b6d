from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from session_rig import Front, Place, Switch, a_front, a_relay, a_session, a_unix_server, wait_until
from small_server import SmallServer

from carrel.notebooks.address import Address, UnixAddress, read_address

_numbers = itertools.count(7)


@dataclass
class Grounds:
    """One proxy and the ways to two sessions, for all tests; each test has sessions of its own on them."""

    front: Front
    addresses: Sequence[Address]
    switches: tuple[Switch, Switch]


@pytest.fixture(scope="module", params=["socket", "relay"])
def grounds(request: pytest.FixtureRequest) -> Iterator[Grounds]:
    """Sessions on this machine, and on another one."""
    switches = Switch(), Switch()
    with ExitStack() as stack:
        front = stack.enter_context(a_front())
        paths = [stack.enter_context(a_unix_server(switch)) for switch in switches]
        if request.param == "socket":
            yield Grounds(front, [UnixAddress(path) for path in paths], switches)
            return
        relays = [stack.enter_context(a_relay(path)) for path in paths]
        for file, _process in relays:
            wait_until(file.exists, "the address")
        yield Grounds(front, [read_address(file.read_bytes()) for file, _process in relays], switches)


def _place(grounds: Grounds, which: int, owner: str) -> Place:
    server = grounds.switches[which].target = SmallServer()
    number = next(_numbers)
    session = a_session("", address=grounds.addresses[which], job_id=number, owner=owner, token=f"carrel-job.{number}.1.{owner}")
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

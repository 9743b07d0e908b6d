"""Two states that do not fit a device together change places piece by piece, both at once: real processes on a fake driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bus_node import MEMORY, Node, State
from kernels import check_journal, eventually, leases_of

from carrel.core.domain.lease import LendingRules
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")

MIB = 1024**2
OUT, BACK = "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync"
#: Pieces that leave before the rest hangs. One of them is off the device then, and as one more than fit beside all of the other
#: state have begun to come in, that has made room.
SOME = 3


class Exchange:
    """A program asks for a device that the state of another fills, and both states are half way."""

    def __init__(self, node: Node, *, fails: bool = False) -> None:
        """`fails`: what leaves cannot go on once it is let go."""
        self.node = node
        self.coming = State(node.program(), seed=1)
        self.going = State(node.program(), seed=2)
        node.driver.record()
        node.driver.inject(OUT, "hang", -1, pid=self.going.program.process.pid, after=SOME)
        if fails:
            node.driver.inject(OUT, "error", 999, pid=self.going.program.process.pid, after=SOME)
        node.driver.inject(BACK, "hang", 0, pid=self.coming.program.process.pid, after=SOME)
        self.begun = self.coming.program.begin("check", at=self.coming.at, size=self.coming.size, seed=self.coming.seed)
        eventually(lambda: not any("hang" in line for line in node.driver.pending()))

    def comes(self) -> None:
        """The state that was asked for is there, and what it was."""
        assert self.coming.program.finish(self.begun) == {"result": 0, "same": True}

    def ends(self) -> None:
        """Nobody has a lease any more, and nothing was ever where it should not be."""
        eventually(lambda: not leases_of(self.node.broker))
        check_journal(self.node.broker)
        assert max(used for _pid, _call, (used,) in self.node.driver.calls()) <= MEMORY
        assert self.node.driver.broken() == []


def test_two_states_change_places_both_at_once(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    exchange = Exchange(node)
    assert leases_of(node.broker) == [], "nobody computes before one is out as a whole and the other in"
    node.driver.let_go()
    exchange.comes()
    exchange.going.same()
    calls = [(pid, call) for pid, call, _used in node.driver.calls()]
    comes, goes = (exchange.coming.program.process.pid, BACK), (exchange.going.program.process.pid, OUT)
    assert calls.index(comes) < len(calls) - 1 - calls[::-1].index(goes)
    exchange.ends()


def test_two_that_compute_take_turns_by_exchanges(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=LendingRules(margin=2 * MIB, time_slice=0.5))
    first, second = State(node.program(), seed=1), State(node.program(), seed=2)
    node.driver.record()
    for one in (first, second):
        one.computes()
    for one in (first, second, first):
        begun = one.program.begin("check", at=one.at, size=one.size, seed=one.seed)
        assert one.program.finish(begun) == {"result": 0, "same": True}
    check_journal(node.broker)
    assert max(used for _pid, _call, (used,) in node.driver.calls()) <= MEMORY


@pytest.mark.parametrize("killed", ["the broker", "who leaves", "who comes"])
def test_one_of_them_is_killed_in_the_middle(bus_nodes: Callable[..., Node], killed: str) -> None:
    node = bus_nodes()
    exchange = Exchange(node)
    if killed == "the broker":
        node.broker.restart()
    else:
        (exchange.going if killed == "who leaves" else exchange.coming).program.kill()
    if killed != "who leaves":
        node.driver.let_go()
        exchange.going.same()
    if killed != "who comes":
        exchange.comes()
    exchange.ends()


def test_one_that_cannot_leave_comes_back_and_the_other_yields(bus_nodes: Callable[..., Node]) -> None:
    """What is half in has taken the room of what is half out: it goes again, and all of it is tried later."""
    node = bus_nodes()
    exchange = Exchange(node, fails=True)
    node.driver.let_go()
    exchange.comes()
    exchange.going.same()
    log = node.broker.log.read_text()
    coming, going = (node.tenant(one.program.process.pid)["id"] for one in (exchange.coming, exchange.going))
    assert f"bus in {coming}: retry" in log
    assert f"bus out {going}: retry" in log
    exchange.ends()

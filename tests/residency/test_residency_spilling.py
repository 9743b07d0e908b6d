"""A state that is out lets go of its host memory once its contents are on the disk, and comes back through other pieces."""

from __future__ import annotations

import os

import pytest
from residency_rig import MIB, Rig
from test_moving import State

#: Pieces that a process is given first, and those in which its state comes back.
FIRST, AGAIN = (3 * MIB, 16 * MIB), (9 * MIB, 9 * MIB, 2 * MIB)
#: Bytes of the state.
REACH = 12 * MIB


@pytest.fixture
def state(machine: Rig) -> State:
    """A state that is out, at the addresses of a program with holes between them."""
    made = State(*machine.started())
    assert made.peer.give(*FIRST)["ok"]
    for size in (6, 2, 4):
        made.allocate(size * MIB)
    made.away()
    return made


def on_disk(machine: Rig, state: State) -> bytes:
    """What a broker would have on the disk: the pieces as the process hands them in again to another broker."""
    machine.server.close()
    machine.server.open()
    state.peer = machine.server.accept()
    return b"".join(os.pread(file, size, 0) for file, size in zip(state.peer.files, FIRST, strict=True))


@pytest.mark.gate
def test_a_state_lets_go_of_its_pieces_and_comes_back_in_others(machine: Rig, state: State) -> None:
    contents = on_disk(machine, state)
    reach = state.peer.pause()["reach"]
    assert reach == REACH
    gone = state.peer.take(1, 2, spilled=reach)
    assert (gone["ok"], gone["place"], gone["bytes"]) == (True, "spilled", 0)
    assert state.peer.take(1, 2, spilled=reach)["ok"], "told again, it is so already"
    assert not state.peer.back()["ok"]
    assert state.peer.give(*AGAIN, first=7, contents=contents[:reach])["ok"]
    assert state.peer.filled(reach, 7, 8, 9)["place"] == "out"
    assert state.peer.filled(reach, 7, 8, 9)["ok"], "told again, it is so already"
    assert not state.peer.take(7, 8, 9)["ok"], "the state lies in them again"
    state.here()
    assert state.away()["place"] == "out", "as if nothing had been"
    state.here()


def test_what_is_freed_while_it_is_on_the_disk_is_gone(machine: Rig, state: State) -> None:
    contents, first = on_disk(machine, state), next(iter(state.parts))
    state.program.good("free", at=first)
    del state.parts[first]
    state.peer.pause()
    assert state.peer.take(1, 2, spilled=REACH)["ok"]
    state.peer.give(*AGAIN, first=7, contents=contents)
    assert state.peer.filled(REACH, 7, 8, 9)["ok"]
    state.here()


def test_a_state_that_was_freed_as_a_whole_on_the_disk_is_none(machine: Rig, state: State) -> None:
    assert state.peer.take(1, 2, spilled=REACH)["ok"]
    for at in state.parts:
        state.program.good("free", at=at)
    state.parts.clear()
    assert state.peer.pause()["place"] == "none"
    assert state.peer.back()["ok"]
    assert state.peer.go()["ok"]
    assert state.peer.give(*FIRST, first=3)["ok"]
    state.allocate(3 * MIB)
    assert state.away()["place"] == "out", "another state, which lies in the pool"
    state.here()


def test_it_never_happens_by_accident(machine: Rig, state: State) -> None:
    """Not without the word, for a part of the bytes, with other pieces, in another order, while it computes or is here."""
    reach = state.peer.pause()["reach"]
    for answer, why in (
        (state.peer.take(1, 2), "the state lies in them"),
        (state.peer.take(1, 2, spilled=reach - 1), "are on the disk"),
        (state.peer.take(2, 1, spilled=reach), "other pieces"),
        (state.peer.take(1, spilled=reach), "other pieces"),
        (state.peer.take(1, 2, 3, spilled=reach), "other pieces"),
    ):
        assert (answer["ok"], answer["place"], answer["bytes"]) == (False, "out", sum(FIRST))
        assert why in answer["why"]
    state.here()
    assert "not paused" in state.peer.take(1, 2, spilled=reach)["why"]
    assert state.peer.pause()["ok"]
    assert "not out" in state.peer.take(1, 2, spilled=reach)["why"]
    state.peer.go()
    state.same()


def test_it_does_not_come_back_from_pieces_that_are_too_few_or_not_those(machine: Rig, state: State) -> None:
    contents = on_disk(machine, state)
    assert state.peer.take(1, 2, spilled=REACH)["ok"]
    assert state.peer.give(9 * MIB, first=7, contents=contents)["ok"]
    assert "of 9437184" in state.peer.filled(REACH, 7)["why"]
    assert state.peer.take(7)["ok"], "they hold no state yet"
    state.peer.give(*AGAIN, first=8, contents=contents)
    assert "other pieces" in state.peer.filled(REACH, 9, 8, 10)["why"]
    assert not state.peer.filled(10 * MIB, 8, 9, 10)["ok"]
    assert state.peer.back()["place"] == "spilled"
    assert state.peer.filled(REACH, 8, 9, 10)["ok"]
    state.here()


def test_host_memory_that_cannot_be_unregistered_stays(machine: Rig, state: State) -> None:
    machine.driver.inject("cuMemHostUnregister", "error", 304, after=1)
    gone = state.peer.take(1, 2, spilled=REACH)
    assert (gone["ok"], gone["place"], gone["bytes"]) == (False, "out", sum(FIRST))
    machine.driver.clear()
    state.here()


def test_a_broker_that_is_killed_finds_a_state_that_is_on_the_disk(machine: Rig, state: State) -> None:
    contents = on_disk(machine, state)
    machine.driver.inject("cuMemHostUnregister", "hang", 0.2)
    state.peer.begin("pieces_back", pieces=[1, 2], spilled=REACH)
    while machine.driver.pending():
        pass
    for pieces, sizes in (([], []), ([8, 9], list(AGAIN[:2]))):
        machine.server.close()
        machine.server.open()
        state.peer = machine.server.accept()
        hello = state.peer.hello
        assert (hello["place"], hello["paused"], hello["gate"]) == ("spilled", True, "closed")
        assert (hello["pieces"], hello["sizes"]) == (pieces, sizes)
        state.peer.give(*AGAIN[:2], first=8)  # of another broker, which is killed before it says what is in them
    assert state.peer.take(8, 9)["ok"]
    assert state.peer.give(*AGAIN, first=11, contents=contents)["ok"]
    assert state.peer.filled(REACH, 11, 12, 13)["ok"]
    state.here()


def test_a_child_knows_nothing_of_it(machine: Rig, state: State) -> None:
    assert state.peer.take(1, 2, spilled=REACH)["ok"]
    child = state.program.order("fork", cuda=False)["child"]
    assert state.program.order("wait", child=child)["code"] == 0

"""Orders to the residency libraries: what is given again, given up, taken back; with processes that the test plays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from carrel.core.domain.lease import MoveMethod
from carrel.core.domain.units import MIB
from carrel.core.transport.reactor import Reactor, Timer
from carrel.node.broker.bus import Bus
from carrel.node.broker.core.effects import MoveBack, MoveOut, Pause
from carrel.node.broker.pool import HostPool
from carrel.node.broker.pool_allocations import PoolAllocations
from carrel.node.leases.protocol import decode
from carrel.node.suspension.ports import Ending, Moved

PIECE = 4 * MIB


class Hand:
    """A loop whose timers ring when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def later(self, _seconds: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def post(self, callback: Callable[[], None]) -> None:
        callback()

    def work(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(function())

    def silence(self) -> None:
        """Nobody has answered for so long that whatever waits is given up."""
        for timer in [timer for timer in self.timers if timer.callback is not None]:
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()


class Machine:
    """A bus, its pool, and processes."""

    def __init__(self, pieces: int = 4, given: PoolAllocations | None = None) -> None:
        self.loop = Hand()
        self.given = given or PoolAllocations()
        self.pool = HostPool(pieces * PIECE, piece=PIECE, available=lambda: 2**40, given=self.given)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.away: list[str] = []
        self.outcomes: list[Moved] = []
        #: Processes that have let go of their host memory when nobody waited for that any more.
        self.spilled: list[str] = []
        self.bus = Bus(
            cast(Reactor, self.loop),
            self.pool,
            send=self._send,
            found_away=self.away.append,
            found_spilled=self.spilled.append,
        )

    def _send(self, member: str, line: bytes, _files: Sequence[int]) -> None:
        self.told.append((member, decode(line)))

    def join(self, *members: str) -> None:
        for member in members:
            self.bus.connected(member, f"user of {member}", {"op": "hello", "place": "in"}, ())

    def order(self, member: str, op: str) -> int:
        """The id of the order that was given last, which is this one."""
        last, message = self.told[-1]
        assert (last, message["op"]) == (member, op), self.told
        return int(message["id"])

    def answer(self, member: str, op: str, answer: str, **fields: Any) -> None:
        self.bus.heard(member, {"op": answer, "id": self.order(member, op), "ok": True, **fields})

    def out(self, member: str) -> None:
        self.bus.out(MoveOut(member, None, (), ("gpu",), 0, MoveMethod.BUS, (member,), 0), self.outcomes.append)

    def back(self, member: str) -> None:
        self.bus.back(MoveBack(member, "lease", (), ("gpu",), {}, {}, MoveMethod.BUS, (member,)), self.outcomes.append)

    def has_been_away(self, member: str, size: int) -> None:
        """The process' state was in the pool, of which it keeps its pieces, and is on its device again."""
        self.leave(member, size)
        self.back(member)
        self.answer(member, "pause", "quiet", place="out", movable=[size])
        self.answer(member, "in", "moved", place="in", bytes=size, seconds=0.1)

    def leave(self, member: str, size: int) -> None:
        """The process' state goes to the pool."""
        self.out(member)
        for _ in range(2):
            self.answer(member, "pause", "quiet", place="in", movable=[size])
            if self.told[-1][1]["op"] == "pieces":
                self.answer(member, "pieces", "pieces")
        self.answer(member, "out", "moved", place="out", bytes=size, seconds=0.5)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.pool.end()


@pytest.mark.gate
def test_a_state_goes_out_and_comes_back(machine: Machine) -> None:
    machine.join("a")
    machine.leave("a", 6 * MIB)
    assert machine.outcomes.pop() == Moved(ending=Ending.DONE, bytes=6 * MIB, seconds=0.5)
    assert machine.pool.use().given == 2 * PIECE
    machine.back("a")
    machine.answer("a", "pause", "quiet", place="out", movable=[6 * MIB])
    machine.answer("a", "in", "moved", place="in", bytes=6 * MIB, seconds=0.25)
    assert machine.outcomes.pop() == Moved(ending=Ending.DONE, bytes=6 * MIB, seconds=0.25)


def test_what_was_not_answered_is_given_again_with_the_next_connection(machine: Machine) -> None:
    machine.join("a")
    machine.out("a")
    first = machine.order("a", "pause")
    machine.join("a")
    assert machine.order("a", "pause") == first
    assert len(machine.told) == 2


def test_it_is_told_when_the_memory_of_all_processes_begins_to_leave(machine: Machine) -> None:
    left: list[str] = []
    machine.join("a", "b")
    out = MoveOut("task", None, (), ("gpu",), 0, MoveMethod.BUS, ("a", "b"), 0)
    machine.bus.out(out, machine.outcomes.append, lambda: left.append(machine.told[-1][0]))

    def answer(member: str, op: str, answer: str, **fields: Any) -> None:
        number = [message["id"] for name, message in machine.told if (name, message["op"]) == (member, op)][-1]
        machine.bus.heard(member, {"op": answer, "id": number, "ok": True, "place": "in", **fields})

    for member in ("a", "b"):
        answer(member, "pause", "quiet", movable=[MIB])
    for member in ("a", "b"):
        answer(member, "pieces", "pieces")
    for member in ("a", "b"):
        assert left == []
        answer(member, "pause", "quiet", movable=[MIB])
    assert len(left) == 1


def test_what_comes_in_while_others_leave_waits_shorter_for_room_than_those_who_must_come_back(machine: Machine) -> None:
    machine.join("a")
    machine.leave("a", MIB)
    patience = {}
    for lease in ("lease", None):
        machine.bus.back(MoveBack("a", lease, (), ("gpu",), {}, {}, MoveMethod.BUS, ("a",)), machine.outcomes.append)
        machine.answer("a", "pause", "quiet", place="out", movable=[MIB])
        machine.order("a", "in")
        patience[lease] = machine.told[-1][1]["patience"]
        machine.answer("a", "in", "moved", ok=False, place="out", why="out of memory")
        assert machine.outcomes[-1].ending is Ending.RETRY
    assert 0 < 2 * patience[None] <= patience["lease"]


def test_a_process_that_does_not_answer_is_given_up_and_believed_later(machine: Machine) -> None:
    machine.join("a")
    machine.out("a")
    for _ in range(2):
        machine.answer("a", "pause", "quiet", place="in", movable=[0])
    number = machine.order("a", "out")
    machine.loop.silence()
    assert machine.told[-1][1]["op"] == "go"
    assert machine.outcomes.pop().ending is Ending.RETRY
    machine.bus.heard("a", {"op": "moved", "id": number, "ok": True, "place": "out"})
    assert machine.away == ["a"]


def test_one_of_several_processes_that_does_not_stop_lets_all_go_on(machine: Machine) -> None:
    machine.join("a", "b")
    machine.bus.pause(Pause("task", "lease", ("a", "b")), machine.outcomes.append)
    machine.bus.heard("a", {"op": "quiet", "id": machine.told[0][1]["id"], "ok": True, "place": "in"})
    machine.answer("b", "pause", "quiet", ok=False, why="a stream capture goes on", place="in")
    assert machine.outcomes.pop() == Moved(ending=Ending.RETRY, message="it did not stop: a stream capture goes on")
    assert [(member, message["op"]) for member, message in machine.told[-2:]] == [("a", "go"), ("b", "go")]


def test_pieces_of_a_process_whose_state_is_on_its_device_are_taken_back(machine: Machine) -> None:
    machine.join("a", "b")
    machine.has_been_away("a", 12 * MIB)
    machine.out("b")
    machine.answer("b", "pause", "quiet", place="in", movable=[8 * MIB])
    machine.answer("a", "pieces_back", "pieces_back")
    machine.answer("b", "pieces", "pieces")
    machine.answer("b", "pause", "quiet", place="in", movable=[8 * MIB])
    machine.answer("b", "out", "moved", place="out", bytes=8 * MIB, seconds=0.1)
    assert machine.outcomes.pop().ending is Ending.DONE
    assert (len(machine.pool.held("a")), len(machine.pool.held("b"))) == (1, 2), "no more than is needed"


def test_a_pool_that_is_full_moves_nothing(machine: Machine) -> None:
    machine.join("a", "b")
    machine.leave("a", 12 * MIB)
    machine.out("b")
    machine.answer("b", "pause", "quiet", place="in", movable=[8 * MIB])
    assert machine.told[-1] == ("b", {"op": "go", "id": 0})
    moved = machine.outcomes.pop()
    assert (moved.ending, "pool of host memory" in moved.message) == (Ending.RETRY, True)


def test_who_says_that_it_has_more_than_there_is_takes_nothing_from_others(machine: Machine) -> None:
    machine.join("a", "b")
    machine.has_been_away("a", 2 * PIECE)
    machine.out("b")
    machine.answer("b", "pause", "quiet", place="in", movable=[2**62])
    assert "larger than host memory" in machine.outcomes.pop().message
    assert len(machine.pool.held("a")) == 2


def test_several_processes_leave_only_if_the_pool_has_room_for_all(machine: Machine) -> None:
    """None of them is emptied whose room somebody might have taken when another could not follow."""
    machine.join("a", "b")
    machine.bus.out(MoveOut("task", None, (), ("gpu",), 0, MoveMethod.BUS, ("a", "b"), 0), machine.outcomes.append)
    first, second = (message["id"] for _member, message in machine.told)
    machine.bus.heard("a", {"op": "quiet", "id": first, "ok": True, "place": "in", "movable": [12 * MIB]})
    machine.bus.heard("b", {"op": "quiet", "id": second, "ok": True, "place": "in", "movable": [8 * MIB]})
    machine.answer("a", "pieces", "pieces")
    assert len(machine.pool.held("a")) == 3, "and nobody takes them back from it meanwhile"
    assert [(member, message["op"]) for member, message in machine.told[-3:]] == [("a", "pieces"), ("a", "go"), ("b", "go")]
    moved = machine.outcomes.pop()
    assert (moved.ending, "pool of host memory" in moved.message) == (Ending.RETRY, True)


def test_who_ends_leaves_nothing_behind(machine: Machine) -> None:
    machine.join("a", "b")
    machine.leave("a", 12 * MIB)
    machine.out("b")
    machine.bus.ended("b")
    machine.bus.ended("a")
    assert machine.pool.use().given == 0


def test_an_idle_process_has_its_part_of_the_pool_before_it_must_move(machine: Machine) -> None:
    machine.join("a", "b")
    machine.bus.heard("a", {"op": "release", "movable": [6 * MIB], "place": "in"})
    for _ in range(2):
        machine.answer("a", "pieces", "pieces")
    assert len(machine.pool.held("a")) == 2
    machine.out("a")
    for _ in range(2):
        machine.answer("a", "pause", "quiet", place="in", movable=[6 * MIB])
    machine.order("a", "out")  # without any more pieces


def shows(machine: Machine, member: str, place: str) -> tuple[dict[str, Any], list[int]]:
    """What a process says to the next broker, and the descriptors that it sends along."""
    pieces = machine.pool.held(member)
    hello = {"op": "hello", "place": place, "pieces": [one.number for one in pieces], "sizes": [one.size for one in pieces]}
    return hello, [os.dup(piece.fd) for piece in pieces]


def test_who_must_move_does_not_wait_until_others_have_been_given_memory_ahead(machine: Machine) -> None:
    machine.join("a", "b", "c")
    for member in ("a", "b"):  # each is given a piece after the other, of four in all
        machine.bus.heard(member, {"op": "release", "movable": [4 * PIECE]})
    ahead = {member: message["id"] for member, message in machine.told if message["op"] == "pieces"}
    machine.bus.heard("a", {"op": "pieces", "id": ahead["a"], "ok": True})
    machine.bus.heard("b", {"op": "pieces", "id": ahead["b"], "ok": True})
    assert machine.pool.use().given == 4 * PIECE
    machine.out("c")
    machine.answer("c", "pause", "quiet", place="in", movable=[2 * PIECE])
    taken = []
    while machine.told[-1][1]["op"] == "pieces_back":  # only what is not on its way to them
        taken.append(machine.told[-1][0])
        machine.answer(taken[-1], "pieces_back", "pieces_back")
    assert taken == ["a", "b"]
    machine.answer("c", "pieces", "pieces")
    machine.answer("c", "pause", "quiet", place="in", movable=[2 * PIECE])
    machine.answer("c", "out", "moved", place="out", bytes=2 * PIECE, seconds=0.5)
    assert machine.outcomes.pop().ending is Ending.DONE


def test_a_broker_that_was_restarted_knows_where_states_lie(machine: Machine) -> None:
    machine.join("a")
    machine.leave("a", 6 * MIB)
    again = Machine(given=machine.given)
    again.bus.connected("a", "user of a", *shows(machine, "a", "out"))
    assert [piece.number for piece in again.pool.held("a")] == [piece.number for piece in machine.pool.held("a")]
    assert again.bus.spare() == 0
    again.pool.end()


def test_a_state_in_memory_that_no_broker_gave_comes_back_and_the_memory_is_let_go(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It was written down in a line that is damaged, say."""
    machine.join("a")
    machine.leave("a", 6 * MIB)
    hello, files = shows(machine, "a", "out")
    again = Machine()
    again.bus.connected("a", "user of a", hello, files)
    assert again.pool.held("a") == []
    assert again.pool.left() == 4 * PIECE, "nobody has less room because of it"
    assert f"No broker gave piece {hello['pieces'][0]} of 4M to this process" in caplog.text
    assert again.told == [], "it is left alone while its state lies there"
    again.back("a")
    again.answer("a", "pause", "quiet", place="out", movable=[6 * MIB])
    again.answer("a", "in", "moved", place="in")
    assert again.told[-1][1]["pieces"] == hello["pieces"]
    again.answer("a", "pieces_back", "pieces_back", place="in")
    assert again.outcomes[-1].ending is Ending.DONE
    again.leave("a", 6 * MIB)
    assert len(again.pool.held("a")) == 2
    again.pool.end()


def test_who_names_memory_of_its_own_making_is_asked_to_let_go_of_it_and_goes_on(machine: Machine) -> None:
    own = HostPool(PIECE, piece=PIECE, available=lambda: 2**40)
    [made] = own.take("mallory", PIECE)
    hello = {"op": "hello", "place": "in", "pieces": [made.number], "sizes": [PIECE]}
    machine.bus.connected("m", "mallory", hello, [os.dup(made.fd)])
    machine.order("m", "pieces_back")
    machine.loop.silence()
    assert machine.pool.left() == 4 * PIECE
    machine.leave("m", 6 * MIB)
    assert machine.outcomes[-1].ending is Ending.DONE
    own.end()

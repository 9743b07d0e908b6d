"""Orders on a state's way to the disk and back, with a process that the test plays: what happens when it says no, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from test_bus import PIECE, Machine

from carrel.core.domain.lease import MoveMethod
from carrel.core.domain.units import GIB, MIB
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.boot_key import BootKey
from carrel.node.broker.core.effects import Spill, Unspill
from carrel.node.broker.disk import StateDisk
from carrel.node.broker.spilling import Spilling, StateFiles
from carrel.node.suspension.ports import Ending, Target

SIZE = 6 * MIB
MINE = Target(pid=1, start=1)


class Node:
    """A machine with a disk, and a process whose state lies in host memory."""

    def __init__(self, path: Path) -> None:
        self.machine = Machine(pieces=6)
        self.disk = StateDisk(path, limit=GIB, floor=0, key=BootKey(bytes(range(32))))
        self.path = path
        self.told: list[tuple[str, int, int]] = []
        self.spilling = Spilling(
            cast(Reactor, self.machine.loop), self.machine.bus, self.machine.pool, self.disk, lambda *told: self.told.append(told)
        )
        self.machine.join("a")
        self.machine.leave("a", SIZE)
        self.machine.outcomes.clear()
        self.contents = os.urandom(SIZE)
        self.fill(self.contents)

    def fill(self, data: bytes) -> None:
        for piece in self.machine.pool.held("a"):
            os.pwrite(piece.fd, data[: piece.size], 0)
            data = data[piece.size :]

    def found(self) -> bytes:
        return b"".join(os.pread(piece.fd, piece.size, 0) for piece in self.machine.pool.held("a"))[:SIZE]

    def spill(self, name: str = "a.1") -> None:
        self.spilling.spill(Spill("a", MINE, SIZE, MoveMethod.BUS, {"a": name}), self.machine.outcomes.append)

    def unspill(self, name: str = "a.1") -> None:
        self.spilling.unspill(Unspill("a", "lease", MINE, SIZE, MoveMethod.BUS, {"a": name}), self.machine.outcomes.append)

    def rests(self, place: str) -> None:
        self.machine.answer("a", "pause", "quiet", place=place, reach=SIZE, movable=[SIZE])

    def on_disk(self) -> None:
        self.spill()
        self.rests("out")
        self.machine.answer("a", "pieces_back", "pieces_back", place="spilled", bytes=0)
        assert self.machine.outcomes.pop().ending is Ending.DONE


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "disk")
    yield made
    made.machine.pool.end()


def files(node: Node) -> int:
    return len(list(node.path.iterdir()))


def test_it_goes_and_comes_back_in_other_pieces(node: Node) -> None:
    before = {piece.number for piece in node.machine.pool.held("a")}
    node.on_disk()
    assert node.machine.pool.use().given == 0
    node.unspill()
    node.rests("spilled")
    node.machine.answer("a", "pieces", "pieces")
    last = node.machine.told[-1][1]
    assert (last["op"], last["bytes"]) == ("filled", SIZE)
    assert not before & set(last["pieces"])
    node.machine.answer("a", "filled", "filled", place="out")
    assert node.machine.outcomes.pop().ending is Ending.DONE
    assert node.found() == node.contents


@pytest.mark.parametrize("reach", [None, "6", -1, 0, True, 2**70])
def test_what_a_process_says_of_its_state_harms_no_broker(node: Node, reach: object) -> None:
    node.on_disk()
    node.unspill()
    node.machine.answer("a", "pause", "quiet", place="spilled", reach=reach, movable=[SIZE])
    assert node.machine.outcomes.pop().ending is Ending.RETRY
    assert files(node) == 1


def test_it_says_how_far_it_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.node.broker.spilling._REPORT", MIB)
    node.on_disk()
    assert node.told[-1] == ("a", SIZE, SIZE)
    assert len(node.told) > 1


def test_a_process_that_does_not_let_go_has_its_state_where_it_was(node: Node) -> None:
    node.spill()
    node.rests("out")
    node.machine.answer("a", "pieces_back", "pieces_back", ok=False, place="out", why="it has other pieces")
    moved = node.machine.outcomes.pop()
    assert moved.ending is Ending.RETRY
    assert "other pieces" in moved.message
    assert node.found() == node.contents


def test_a_process_that_does_not_say_whether_it_has_let_go_is_believed_later(node: Node) -> None:
    node.spill()
    node.rests("out")
    number = node.machine.order("a", "pieces_back")
    node.machine.loop.silence()
    assert node.machine.outcomes.pop().ending is Ending.UNVERIFIED
    assert files(node) == 1, "it may be all that there is of the state"
    node.machine.bus.heard("a", {"op": "pieces_back", "id": number, "ok": True, "place": "spilled", "bytes": 0})
    assert node.machine.spilled == ["a"]
    assert node.machine.pool.use().given == 0


def test_a_process_that_has_let_go_before_the_broker_was_killed_is_done(node: Node) -> None:
    node.on_disk()
    node.spill()
    node.rests("spilled")
    assert node.machine.outcomes.pop().ending is Ending.DONE
    assert files(node) == 1


def test_pieces_of_a_broker_that_was_killed_before_it_said_what_is_in_them_are_not_the_state(node: Node) -> None:
    node.on_disk()
    left = node.machine.pool.take("user of a", 2 * PIECE, holder="a")
    node.unspill()
    node.rests("spilled")
    node.machine.answer("a", "pieces_back", "pieces_back", place="spilled", bytes=0)
    node.machine.answer("a", "pieces", "pieces")
    node.machine.answer("a", "filled", "filled", place="out")
    assert not {piece.number for piece in left} & {piece.number for piece in node.machine.pool.held("a")}
    assert node.found() == node.contents


def test_a_process_that_ends_while_its_file_is_read_leaves_its_pieces_to_nobody_else(node: Node) -> None:
    node.on_disk()
    later: list[Callable[[], None]] = []
    hand = cast(Any, node.machine.loop)
    hand.work = lambda do, done: later.append(lambda: done(do()))
    node.unspill()
    node.rests("spilled")
    node.machine.bus.ended("a")
    other = node.machine.pool.take("user of a", PIECE, holder="b")
    os.pwrite(other[0].fd, b"theirs", 0)
    later.pop()()
    assert os.pread(other[0].fd, 6, 0) == b"theirs"
    assert node.machine.pool.use().given == PIECE
    assert node.machine.outcomes.pop().ending is Ending.RETRY


def test_a_file_that_cannot_be_read_is_tried_again_and_lost_in_the_end(node: Node) -> None:
    node.on_disk()
    (file,) = node.path.iterdir()
    file.rename(node.path / "kept")
    file.mkdir()  # what opens it gets an error of the system
    endings = []
    for _ in range(3):
        node.unspill()
        node.rests("spilled")
        endings.append(node.machine.outcomes.pop().ending)
    assert endings == [Ending.RETRY, Ending.RETRY, Ending.LOST]
    assert node.machine.pool.use().given == 0


def test_files_are_kept_for_as_long_as_a_row_that_was_written_down_names_them(node: Node) -> None:
    node.on_disk()
    row = {"id": "a", "residency": "spilled", "files": {"a": "a.1"}}
    kept = StateFiles(cast(Reactor, node.machine.loop), node.disk, [("tenant", row)])
    assert files(node) == 1
    kept.wrote([("tenant", {**row, "residency": "resuming"})], ())
    assert files(node) == 1
    kept.wrote([("tenant", {"id": "b", "residency": "resident"})], (("lease", "a"),))
    assert files(node) == 1
    kept.wrote([("tenant", {**row, "residency": "resident"})], ())
    assert files(node) == 0
    node.fill(node.contents)
    node.disk.write("a.2", node.machine.pool.take("user of a", SIZE, holder="a"), SIZE)
    kept = StateFiles(cast(Reactor, node.machine.loop), node.disk, [("tenant", {**row, "files": {"a": "a.2"}})])
    kept.wrote((), [("tenant", "a")])
    assert files(node) == 0

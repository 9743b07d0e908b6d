"""States of real processes go on from host memory to the disk and come back, whoever is killed in between."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bus_node import MIB, SIZE, Node, State
from kernels import eventually, leases_of

from carrel.core.domain.lease import LendingRules
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")

#: One state fits in host memory, and one on the device.
HOST = 70 * MIB


@pytest.fixture
def disks(bus_nodes: Callable[..., Node], tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes with a disk for states; their keys, which are in no directory of the test's, go at the end."""
    made: list[Node] = []

    def start(**options: Any) -> Node:
        rules = LendingRules(margin=2 * MIB, host_memory=HOST, state_disk=1024 * MIB, **options.pop("rules", {}))
        made.append(bus_nodes(rules=rules, state_directory=str(tmp_path / "disk"), **{"disk_floor": 0, **options}))
        return made[-1]

    yield start
    for node in made:
        key = hashlib.sha256(os.fsencode(Path(node.broker.config.state).absolute())).hexdigest()[:16]
        for place in ("/run", "/dev/shm"):
            (Path(place) / f"carrel-{os.getuid()}" / key).unlink(missing_ok=True)


@pytest.fixture
def node(disks: Callable[..., Node]) -> Node:
    return disks()


def files(node: Node) -> list[Path]:
    return sorted(Path(node.broker.config.state_directory).glob("*/*"))


def states(node: Node) -> list[str]:
    return [row["state"] for row in sorted(node.broker.status()["tenants"], key=lambda row: row["job"])]


def have(node: Node, *wanted: str) -> None:
    eventually(lambda: states(node) == list(wanted))


def three(node: Node) -> list[State]:
    """Of three programs the first has its state on the disk, the second in host memory, the third on the device."""
    made = [State(node.program(), seed=seed) for seed in (1, 2, 3)]
    have(node, "spilled", "suspended", "resident")
    return made


@pytest.mark.gate
def test_states_go_to_the_disk_and_come_back_with_every_value(node: Node) -> None:
    made = three(node)
    (file,) = files(node)
    assert file.stat().st_mode & 0o077 == 0
    assert SIZE <= file.stat().st_size < SIZE + 8 * MIB
    assert random.Random(1).randbytes(64) not in file.read_bytes()
    assert node.broker.status()["host"]["disk"]["left"] <= 1024 * MIB - SIZE
    for state in made:
        state.same()
    have(node, "spilled", "spilled", "resident")  # who comes from the disk needs the host memory on its way
    eventually(lambda: len(files(node)) == 2)
    eventually(lambda: not leases_of(node.broker))


#: Where a state is caught: while its file is written or read, it lets go of pieces or gets some, memory is made, or copied.
_TO_DISK = ("write", "cuMemHostUnregister")
_BACK = ("read", "cuMemHostRegister", "cuMemCreate", "cuMemcpyHtoDAsync")


def catch(node: Node, made: list[State], at: str) -> tuple[State, State, int]:
    """One of these states is caught on its way to the disk, or from there. Returns it, and who waits for that, with its order."""
    by_place = {node.state(one.program): one for one in made}
    asking = by_place["spilled"]
    # What makes way for it goes to the disk first, since it comes through host memory, too.
    mover = asking if at in _BACK else by_place.get("suspended") or by_place["resident"]
    before = set(files(node))
    if at.startswith("cu"):
        node.driver.inject(at, "hang", 1.0, pid=mover.program.process.pid)
    number = asking.program.begin("check", at=asking.at, size=asking.size, seed=asking.seed)
    if at == "write":
        eventually(lambda: set(files(node)) - before)
    elif at == "read":
        eventually(lambda: node.state(asking.program) == "resuming")
    else:
        eventually(lambda: not node.driver.pending())
    return mover, asking, number


def settled(node: Node) -> None:
    """Nothing is left that nobody needs."""
    eventually(lambda: not leases_of(node.broker))
    eventually(lambda: len(files(node)) == states(node).count("spilled"))


#: In the suite one place of each kind: on the way there, on the way back, and when its memory is copied.
@pytest.mark.parametrize(
    "places", [("write", "read", "cuMemcpyHtoDAsync"), pytest.param((*_TO_DISK, *_BACK), marks=pytest.mark.soak)]
)
def test_a_broker_that_is_killed_on_the_way(node: Node, places: tuple[str, ...]) -> None:
    made = three(node)
    for at in places:
        _mover, asking, number = catch(node, made, at)
        node.broker.restart()
        assert asking.program.finish(number) == {"result": 0, "same": True}, at
    for state in made:
        state.same()
    settled(node)


@pytest.mark.parametrize("at", [pytest.param(at, marks=() if at == "write" else pytest.mark.soak) for at in (*_TO_DISK, *_BACK)])
def test_a_process_that_is_killed_on_the_way(node: Node, at: str) -> None:
    made = three(node)
    mover, asking, number = catch(node, made, at)
    mover.program.kill()
    if asking is not mover:
        assert asking.program.finish(number) == {"result": 0, "same": True}
    for state in made:
        if state is not mover:
            state.same()
    settled(node)


def test_a_broker_and_a_process_that_are_killed_together(node: Node) -> None:
    made = three(node)
    mover, asking, number = catch(node, made, "cuMemHostUnregister")
    node.broker.kill()
    mover.program.kill()
    node.broker.restart()
    assert asking.program.finish(number) == {"result": 0, "same": True}
    settled(node)


def test_a_state_that_was_damaged_on_the_disk_is_lost_and_says_so(node: Node) -> None:
    first, second, third = three(node)
    (file,) = files(node)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    answer = first.program.order("check", at=first.at, size=first.size, seed=first.seed)
    assert answer["result"] == 709
    assert "A GPU state on the disk was changed or cut off" in first.program.errors()
    row = node.tenant(first.program.process.pid)
    assert (row["state"], "changed or cut off" in row["why_not"]) == ("lost", True)
    eventually(lambda: file not in files(node))
    for state in (second, third):
        state.same()


@pytest.mark.soak
def test_an_old_file_of_another_state_of_the_process_is_no_state(node: Node) -> None:
    first, second, third = three(node)
    (file,) = files(node)
    old = file.read_bytes()
    first.same()
    first.program.good("fill", at=first.at, size=first.size, seed=9)
    for other in (second, third):
        other.same()
    eventually(lambda: states(node) == ["spilled", "spilled", "resident"] and len(files(node)) == 2)
    for one in files(node):
        one.write_bytes(old)
    assert first.program.order("check", at=first.at, size=first.size, seed=9)["result"] == 709
    assert node.state(first.program) == "lost"
    third.same()


def test_a_disk_that_is_full_moves_nothing_and_the_wait_has_an_end(disks: Callable[..., Node]) -> None:
    node = disks(rules={"least_room": 0.5, "unknown_room": 0.5}, disk_floor=1 << 60, hold_time=1.0)
    first, second = (State(node.program(), seed=seed) for seed in (1, 2))
    third = node.program()
    assert third.order("init")["result"] == 46
    assert "neither host memory nor the disk has room" in third.errors()
    assert files(node) == []
    second.same()
    assert node.state(first.program) == "suspended"


def test_a_journal_that_is_gone_makes_a_state_on_the_disk_a_lost_one(node: Node) -> None:
    first, second, _third = three(node)
    node.broker.kill()
    for path in Path(node.broker.config.state).glob("journal.jsonl*"):
        path.rename(path.with_name(f"old-{path.name}"))
    node.broker.restart()
    eventually(lambda: sorted(states(node)) == ["lost", "resident", "suspended"])
    assert first.program.order("check", at=first.at, size=first.size, seed=first.seed)["result"] == 709
    assert files(node) == []
    second.same()


def test_a_disk_that_cannot_be_used_is_said_to_whoever_asks(bus_nodes: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("no directory")
    rules = LendingRules(margin=2 * MIB, host_memory=HOST, state_disk=1024 * MIB)
    node = bus_nodes(rules=rules, state_directory=str(tmp_path / "disk"), disk_floor=0)
    host = node.broker.status()["host"]
    assert host["disk"] is None
    assert str(tmp_path / "disk") in host["disk_problem"]

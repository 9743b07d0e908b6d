"""Programs on two devices that do not hold them all, under a real broker that decides, while anything may fail or be killed."""

from __future__ import annotations

import array
import fcntl
import os
import random
import re
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from bus_node import MEMORY, MIB, Node, Program, State, start_node
from kernels import eventually, leases_of

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.units import GIB
from carrel.node.leases.protocol import decode, encode
from support.broker_process import BrokerProcess
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")

#: Calls of the driver in which a move may fail.
CALLS = (
    "cuCtxSynchronize",
    "cuMemHostRegister",
    "cuStreamCreate",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuStreamSynchronize",
)
CALLS = (*CALLS, "cuMemUnmap", "cuMemRelease", "cuMemCreate", "cuMemMap", "cuMemSetAccess")
CONTEXT, GRANULE = 8 * MIB, 2 * MIB
_DONE = re.compile(r"bus (?:out|in) \S+ done, [1-9]|bus (?:out|in) \S+: done, [1-9]")


class Session(State):
    """One that may meet a full device: nobody knows beforehand how much a process will take."""

    def __init__(self, program: Program, *, size: int, seed: int) -> None:
        self.program, self.size, self.seed = program, size, seed
        program.good("init")
        program.good("context")
        made = program.order("alloc", size=size, seed=seed)
        assert made["result"] in (0, 2), made
        self.at, self.full = made["at"], made["result"] == 2


class Moves:
    """Sessions that compute at random."""

    def __init__(self, node: Node, dice: random.Random, many: int) -> None:
        self.node, self.dice = node, dice
        self.states: list[Session] = []
        self.count: Counter[str] = Counter()
        self.seed = 0
        #: Descriptors of a broker beside the pool's, by how many programs there are.
        self.files: dict[int, Counter[str]] = {}
        for _ in range(many):
            self.start()

    def start(self) -> None:
        self.seed += 1
        session = Session(self.node.program(), size=self.dice.randint(10, 60) * MIB, seed=self.seed)
        if session.full:
            session.program.kill()
            self.count["full"] += 1
        else:
            self.states.append(session)

    def run(self, moves: int) -> None:
        while self.done() < moves:
            self.round()
            self.check()

    def done(self) -> int:
        return len(_DONE.findall(self.node.broker.log.read_text()))

    def round(self) -> None:
        """Some compute at once; each finds what it left."""
        driver = self.node.driver
        some = self.dice.sample(self.states, self.dice.randint(1, len(self.states)))
        for _ in range(self.dice.choice((0, 0, 0, 1, 2))):
            pid, call = self.dice.choice(self.states).program.process.pid, self.dice.choice(CALLS)
            if self.dice.random() < 0.3:
                driver.inject(call, "hang", self.dice.uniform(0, 0.3), pid=pid, after=self.dice.randint(0, 8))
            else:
                driver.inject(call, "error", self.dice.choice((2, 304)), pid=pid, after=self.dice.randint(0, 20))
        begun = [(one, one.program.begin("check", at=one.at, size=one.size, seed=one.seed)) for one in some]
        if self.dice.random() < 0.08:
            self.node.broker.restart()
            self.count["restarts"] += 1
        if self.dice.random() < 0.05:
            victim = self.dice.choice(self.states)
            victim.program.kill()
            self.states.remove(victim)
            self.count["killed"] += 1
        for one, number in begun:
            if one in self.states:
                assert one.program.finish(number) == {"result": 0, "same": True}
                self.count["checked"] += 1
        driver.clear()
        if len(self.states) < 5:
            self.start()

    def check(self) -> None:
        """At rest all is accounted for: on the devices, in the pool, and in descriptors."""
        node = self.node
        eventually(lambda: not leases_of(node.broker), lambda: node.broker.status())
        eventually(lambda: len(node.broker.status()["tenants"]) == len(self.states))
        status = node.broker.status()
        tenants = {row["pid"]: row for row in status["tenants"]}
        assert tenants.keys() == {state.program.process.pid for state in self.states}
        on_devices: Counter[str] = Counter()
        for file in (node.driver.state / "device").iterdir():
            pid = int(file.name.split("-")[0])
            if pid in tenants:  # what the dead had is cleared away by the next who looks
                on_devices[tenants[pid]["home"][0]] += file.stat().st_size
        wanted: Counter[str] = Counter()
        for state in self.states:
            row = tenants[state.program.process.pid]
            away = state.program.order("status")["place"] == "out"
            assert row["state"] == ("suspended" if away else "resident"), row
            wanted[row["home"][0]] += 0 if away else -(-state.size // GRANULE) * GRANULE
        assert on_devices == wanted
        assert all(
            used + CONTEXT * sum(row["home"] == [uuid] for row in tenants.values()) <= MEMORY for uuid, used in wanted.items()
        )
        assert node.driver.broken() == []
        pool = status["host"]["pool"]
        pieces = [inode for state in self.states for inode in pieces_of(state.program.process.pid)]
        assert len(set(pieces)) == len(pieces), "a piece is in two hands"
        assert pool["given"] == sum(size for state in self.states for size in pieces_of(state.program.process.pid).values())
        assert node.broker.process is not None
        broker = node.broker.process.pid
        assert set(pieces) <= pieces_of(broker).keys()
        # Connections of ours are closed there a moment later.
        before = self.files.setdefault(len(self.states), others(broker))
        eventually(lambda: not others(broker) - before, lambda: f"{others(broker)}, not {before}")


def others(pid: int) -> Counter[str]:
    """Descriptors that a broker has beside pieces of the pool, by kind; two pipes to each of its helpers do not count."""
    found: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[str(path.readlink()).split(":[")[0]] += "memfd:" not in str(path.readlink())
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found["pipe"] -= 2 * len((thread / "children").read_text().split())
    return found


def pieces_of(pid: int) -> dict[int, int]:
    """Sizes of the pieces of the pool that a process has open, by inode."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if "memfd:carrel-state" in str(path.readlink()):
                about = path.stat()
                found[about.st_ino] = about.st_size
    return found


def moves_at_random(place: Path, brokers: Callable[..., BrokerProcess], seed: int, moves: int) -> None:
    rules = LendingRules(margin=2 * MIB, time_slice=0.5, host_memory=GIB)
    node = start_node(place, brokers, gpus=2, rules=rules)
    try:
        made = Moves(node, random.Random(seed), 5)
        made.run(moves)
        print(f"seed {seed}: {made.done()} moves, {dict(made.count)}")
        for state in made.states:
            state.program.kill()
        eventually(lambda: not node.broker.status()["tenants"])
        assert node.broker.status()["host"]["pool"]["given"] == 0
    finally:
        node.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_moves(tmp_path: Path, brokers: Callable[..., BrokerProcess], seed: int) -> None:
    moves_at_random(tmp_path, brokers, int(os.environ.get("SEED", "1")) + seed, 150)


def test_a_process_cannot_name_memory_of_its_own_making(tmp_path: Path, brokers: Callable[..., BrokerProcess]) -> None:
    """Sealed like a broker's, after a restart as at any other time."""
    node = start_node(tmp_path, brokers, rules=LendingRules(margin=2 * MIB, host_memory=GIB))
    session = node.session()
    made = os.memfd_create("carrel-state", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, GIB)
    fcntl.fcntl(made, 1033, 0x0001 | 0x0002 | 0x0004)
    hello = encode(
        "hello", v=1, role="residency", token=session.token, gate="closed", place="none", pieces=[10**15], sizes=[GIB], devices=[]
    )
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(str(node.broker.socket))
            link.sendmsg([hello], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made]))])
            with link.makefile("rb") as lines:
                assert decode(lines.readline())["op"] == "welcome"
                asked = decode(lines.readline())
            assert (asked["op"], asked["pieces"]) == ("pieces_back", [10**15])
            assert node.broker.status()["host"]["pool"]["given"] == 0
        node.broker.restart()
    assert "No broker gave piece 1000000000000000 of 1G to this process" in node.broker.log.read_text()
    os.close(made)
    node.close()

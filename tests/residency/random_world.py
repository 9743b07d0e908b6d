"""Programs with the library on two devices that do not hold them all, and the broker's own bus and pool, moved as dice want it.

What decides in a broker is left out, and so are its leases: any state may leave or come back at any moment, and anything may go
wrong meanwhile. `World.check` compares all that there is with all that there should be.
"""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from random_worker import CONTEXT, GRANULE, Part, Worker, descriptors
from residency_rig import LIMIT, MIB, Program, fake_driver, library

from carrel.core.domain.lease import MoveMethod
from carrel.core.transport.channel import MOST_FILES, Channel
from carrel.core.transport.framing import Closed, Lines
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.bus import Bus
from carrel.node.broker.core.effects import MoveBack, MoveOut, Pause
from carrel.node.broker.pool import HostPool
from carrel.node.broker.pool_allocations import PoolAllocations
from carrel.node.broker.processes import peer, start_time
from carrel.node.leases.protocol import LONGEST, Message, decode, encode
from carrel.node.suspension.ports import Moved

GPUS = 2
#: Bytes of a device, of the pool, and of its pieces.
MEMORY, POOL, PIECE = 24 * MIB, 48 * MIB, 3 * MIB
#: Numbers of orders of ours, beside those of the bus.
_OWN = 10**9
#: Bytes on one device that a process has at most.
MOST = 10 * MIB


class World:
    """The broker's side, and everybody on the other."""

    def __init__(self, place: Path, dice: random.Random, tenants: Sequence[int]) -> None:
        """`tenants`: how many processes each of them has."""
        self.dice = dice
        self.driver = fake_driver(place / "machine", gpus=GPUS, memory=MEMORY, context=CONTEXT)
        self.path = place / "broker.sock"
        self.count: Counter[str] = Counter()
        self._seed = self._lease = 0
        self._journal = place / "host_memory.jsonl"
        self._workers: dict[str, Worker] = {}
        self._going: set[int] = set()
        self._order = _OWN
        self.before = descriptors(os.getpid())
        self.open()
        # Without the library, and so in nobody's way: it reads what the driver counts.
        self.onlooker = Program(self.driver.environment())
        self.onlooker.good("init")
        for device in range(GPUS):
            self.onlooker.good("context", device=device)
        self.tenants: list[list[Worker]] = [[] for _ in tenants]
        #: How many processes each of them has, where there is room for a context.
        self._wanted = tenants
        self.fill_up()

    # --- the broker's side --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A broker begins."""
        self.loop = Reactor()
        given = PoolAllocations()
        given.keep(self._journal, lambda: 1.0)
        lives = self._workers.__contains__
        self.pool = HostPool(POOL, piece=PIECE, available=lambda: 1 << 40, given=given, lives=lives)
        self.bus = Bus(self.loop, self.pool, send=self._send, found_away=lambda _member: None, lives=lives)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self.loop.watch(self._listener.fileno(), self._accept)
        self._open: set[Channel[bytes]] = set()

    def close(self) -> None:
        """It is killed."""
        self._listener.close()
        self.path.unlink()
        for connection in list(self._open):
            connection.close()
        self.pool.end()
        self.loop.close()

    def shut(self) -> None:
        """Everybody ends."""
        for worker in self._workers.values():
            worker.program.close()
        self.onlooker.close()
        self.close()

    def restart(self, *, forget: bool = False) -> None:
        """Another one begins, and hears from everybody what there is; `forget`: but not from the journal who was given what."""
        for worker in self._workers.values():
            worker.connection = None
        self.close()
        if forget:
            self._journal.unlink()
            for worker in self._workers.values():
                worker.forgotten |= worker.pieces().keys()
        self.open()
        self.until(lambda: all(worker.connection is not None for worker in self._workers.values()))
        self.count["restarts"] += 1

    def until(self, happened: Callable[[], object]) -> None:
        """Let the broker's side work until this is so."""
        late = self.loop.later(LIMIT, self._late)
        while not happened():
            again = self.loop.later(0.02, self.loop.stop)  # to look again, also where nothing is heard
            self.loop.post(lambda: None)  # what was left behind when it stopped
            self.loop.run()
            again.cancel()
        late.cancel()

    def _late(self) -> None:
        raise AssertionError(f"nothing happens any more; {[worker.program.errors()[-500:] for worker in self._workers.values()]}")

    def _accept(self) -> None:
        stream, _address = self._listener.accept()
        process = peer(stream)
        process.close()

        def line(connection: Channel[bytes], text: bytes) -> None:
            self._line(connection, self._workers[process.name], decode(text))

        connection = Channel(Lines(LONGEST), stream, most_files=MOST_FILES)
        connection.attach(self.loop, on_message=line, on_end=lambda one, _why: self._open.discard(one))
        self._open.add(connection)

    def _line(self, connection: Channel[bytes], worker: Worker, message: Message) -> None:
        op = message["op"]
        worker.leaked = int(message.get("leaked", worker.leaked))
        if op == "hello":
            worker.connection, worker.hello = connection, message
            connection.send(encode("welcome", v=1, linger=3600.0))
            self.bus.connected(worker.name, worker.owner, message, connection.files(), ahead=False)
        elif op == "acquire":
            self._lease += 1
            worker.lease = f"lease-{self._lease}"
            connection.send(encode("granted", request=message["request"], lease=worker.lease, fence=self._lease))
        elif op == "going" and message["id"] >= _OWN:
            self._going.add(message["id"])
        else:
            self.bus.heard(worker.name, message)
        self.loop.stop()

    def _send(self, member: str, line: bytes, files: Sequence[int]) -> None:
        worker = self._workers.get(member)
        if worker is not None and worker.connection is not None:
            worker.connection.send(line, files)

    # --- processes ----------------------------------------------------------------------------------------------------------

    def fill_up(self) -> None:
        """Start processes in the place of those that ended, where a device has room for one; not beside others that are away."""
        for number, (tenant, many) in enumerate(zip(self.tenants, self._wanted, strict=True)):
            while len(tenant) < many and not any(worker.away for worker in tenant):
                room = [device for device in range(GPUS) if self.room(device) >= CONTEXT]
                if not room:
                    return
                tenant.append(self._start(f"user{number % 3}", self.dice.choice(room)))

    def _start(self, owner: str, first: int) -> Worker:
        """A process with a context on one device or on both."""
        environment = {**self.driver.environment(), "LD_PRELOAD": str(library()), "CARREL_BROKER": str(self.path)}
        program = Program({**environment, "CARREL_TOKEN": "a token", "CARREL_RESIDENCY_PIECE": str(GRANULE)})
        pid = program.process.pid
        worker = Worker(program, f"{pid}-{start_time(pid)}", owner)
        self._workers[worker.name] = worker
        program.good("init")
        begun = program.begin("context", thread=False, device=first)
        self.until(lambda: worker.lease)
        assert program.finish(begun)["result"] == 0
        worker.contexts.add(first)
        if self.dice.random() < 0.4 and self.room(1 - first) >= CONTEXT:
            program.good("context", device=1 - first)
            worker.contexts.add(1 - first)
        self.change(worker)
        self._at_rest([worker])
        worker.files = descriptors(pid).total()
        return worker

    def end(self, worker: Worker) -> None:
        """It is killed."""
        worker.program.close()
        del self._workers[worker.name]
        if worker.connection is not None:
            worker.connection.end(Closed("its process has ended"))
        self.bus.ended(worker.name)
        self.count["killed"] += 1

    def change(self, worker: Worker) -> None:
        """A process that may compute allocates, frees, and writes other values."""
        for _ in range(self.dice.randint(1, 4)):
            act = self.dice.random()
            some = self.dice.choice(list(worker.parts)) if worker.parts else None
            if some is not None and act < 0.3:
                self._free(worker, some, worker.parts.pop(some))
            elif some is not None and act < 0.5:
                self._write(worker, some, worker.parts[some])
            else:
                self._allocate(worker)

    def _allocate(self, worker: Worker) -> None:
        device = self.dice.choice(sorted(worker.contexts))
        size = self.dice.choice((4096, GRANULE, 3 * MIB, self.dice.randint(GRANULE, 6 * MIB)))
        part = Part(size, 0, device)
        if worker.used(device, out=False) + part.room > MOST:
            return
        if part.moves and self.dice.random() < 0.3:
            part.size = part.room
            made = worker.program.order("create", size=part.size, device=device)
        else:
            made = worker.program.order("alloc", size=size, device=device)
        if part.room <= self.room(device):
            assert made["result"] == 0, (made, size, worker.program.errors())
        if made["result"] == 0:
            at = made["at"] if "at" in made else self._map(worker, part, made["handle"])
            worker.parts[at] = part
            self._write(worker, at, part)

    def _map(self, worker: Worker, part: Part, handle: int) -> int:
        part.handle, part.times = handle, self.dice.randint(1, 2)
        at = int(worker.program.good("reserve", size=part.size * part.times)["at"])
        self._show(worker, at, part)
        return at

    def _show(self, worker: Worker, at: int, part: Part) -> None:
        for number in range(part.times):
            where = at + number * part.size
            worker.program.good("map", at=where, size=part.size, handle=part.handle, device=part.device)
        part.seen = True

    def _hide(self, worker: Worker, at: int, part: Part) -> None:
        for number in range(part.times):
            worker.program.good("unmap", at=at + number * part.size, size=part.size)
        part.seen = False

    def _free(self, worker: Worker, at: int, part: Part) -> None:
        if part.handle == 0:
            worker.program.good("free", at=at, device=part.device)
            return
        if part.seen:
            self._hide(worker, at, part)
        worker.program.good("release", handle=part.handle)

    def _write(self, worker: Worker, at: int, part: Part) -> None:
        self._seed += 1
        part.seed = self._seed
        if not part.seen:
            self._show(worker, at, part)
        worker.program.good("fill", at=at, size=part.size, seed=part.seed, device=part.device)
        if part.handle and self.dice.random() < 0.3:
            self._hide(worker, at, part)

    # --- moves --------------------------------------------------------------------------------------------------------------

    def begin(self, what: str, tenant: Sequence[Worker]) -> list[Moved]:
        """Move a tenant out or back, or stop it where it is; what comes of it will be in the list."""
        ended: list[Moved] = []

        def done(moved: Moved) -> None:
            print(f"{what} of {members}: {moved.ending.value} {moved.message}; places {self.places(tenant)}")
            ended.append(moved)
            self.loop.stop()

        self.count[what] += 1
        members = tuple(worker.name for worker in tenant)
        print(f"{what} of {members} with {self.driver.pending()}")  # what pytest shows of a test that fails
        about: dict[str, Any] = {"tenant": members[0], "targets": (), "devices": self.driver.uuids, "members": members}
        if what == "out":
            self.bus.out(MoveOut(pauses=None, size=0, way=MoveMethod.BUS, memory=0, **about), done)
        elif what == "back":
            self.bus.back(MoveBack(lease=None, state={}, memory={}, way=MoveMethod.BUS, **about), done)
        else:
            self.bus.pause(Pause(members[0], "", members), done)
        return ended

    def move(self, what: str, tenant: Sequence[Worker]) -> Moved:
        """The same, to its end."""
        ended = self.begin(what, tenant)
        self.until(lambda: ended)
        return ended[0]

    def go(self, tenant: Sequence[Worker]) -> None:
        """It may compute: its gates are open, and all its values are there."""
        begun = []
        for worker in tenant:
            self._order += 1
            begun.append(self._order)
            self._lease += 1
            self._send(worker.name, encode("go", id=self._order, lease=worker.lease, fence=self._lease), ())
        self.until(lambda: self._going.issuperset(begun))
        self.same(tenant)

    def same(self, tenant: Sequence[Worker]) -> None:
        """Each value is at its address."""
        for worker in tenant:
            for at, part in worker.parts.items():
                hidden = not part.seen
                if hidden:
                    self._show(worker, at, part)
                for number in range(part.times):
                    where = at + number * part.size
                    found = worker.program.order("check", at=where, size=part.size, seed=part.seed, device=part.device)
                    assert found == {"result": 0, "same": True}, (worker.name, hex(at), part, found)
                    assert worker.program.order("range", at=where) == {"result": 0, "base": where, "size": part.size}
                if hidden:
                    self._hide(worker, at, part)

    # --- looking ------------------------------------------------------------------------------------------------------------

    def places(self, tenant: Sequence[Worker]) -> list[str]:
        """Where the memory of those is that live."""
        return [worker.place for worker in tenant if worker.name in self._workers]

    def used(self, device: int) -> int:
        """Bytes of the device that should be in use, by where the libraries say that their memory is."""
        return sum(worker.used(device, out=worker.away) for worker in self._workers.values()) + CONTEXT

    def room(self, device: int) -> int:
        """Bytes of the device that are free, at least."""
        return MEMORY - self.used(device) - self.leaked()

    def leaked(self) -> int:
        """Bytes that the driver did not take back, as the libraries say."""
        return sum(worker.leaked for worker in self._workers.values())

    def _at_rest(self, tenant: Sequence[Worker]) -> None:
        """Nothing is on its way to them or from them."""
        self.until(lambda: all(not worker.about()["moving"] for worker in tenant))

    def check(self) -> None:
        """Everything is where it should be, and nothing is left over anywhere."""
        wanted = [self.used(device) for device in range(GPUS)]
        about = [self.onlooker.good("memory", device=device) for device in range(GPUS)]
        counted = [one["total"] - one["free"] for one in about]
        assert all(have <= MEMORY for have in counted)
        assert sum(counted) == sum(wanted) + self.leaked(), (counted, wanted, self.leaked())
        assert self.leaked() > 0 or counted == wanted
        assert self.driver.broken() == []
        use = self.pool.use()
        assert use.given + use.ready + use.used_before <= self.pool.limit
        inodes: list[int] = []
        for worker in self._workers.values():
            pieces, others = worker.opened()
            worker.forgotten &= pieces.keys()
            known = Counter(os.fstat(piece.fd).st_ino for piece in self.pool.held(worker.name))
            assert pieces == known + Counter(worker.forgotten), worker.name
            inodes += known
            assert others == worker.files, worker.name
        assert len(inodes) == len(set(inodes)), "a piece is in two hands"
        assert use.given == len(inodes) * PIECE
        while self.pool.prepare():
            continue
        mine = descriptors(os.getpid()) - self.before
        use = self.pool.use()
        slots = (use.given + use.ready + use.used_before) // PIECE
        assert sum(many for (what, _inode), many in mine.items() if what == "piece") == slots, (mine, use)

"""Moves and pauses by the residency libraries in processes: orders over their connections, and what comes of them.

The library carries out one order after the other, each can be given again at any point, and each answer says where the memory is
(`carrel.node.leases.protocol`, "A process with the residency library"). So an order whose connection was lost is given again
with the next one, and one that nobody waits for any more does no harm: its result goes to the core later. Nothing here blocks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.units import format_size
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.core.effects import MoveBack, MoveOut, Pause
from carrel.node.broker.order_delivery import Orders
from carrel.node.broker.orders import Order, Outcome, Script, moved_of, total_of, why_of
from carrel.node.broker.pool import HostPool, Piece
from carrel.node.leases.protocol import Message, encode
from carrel.node.runner.tree import measure
from carrel.node.suspension.ports import Ending, Moved

_log = logging.getLogger(__name__)

#: Seconds in which a process comes to rest, and in which a full device is tried again for each piece of a state that comes back.
PAUSE_SECONDS, PATIENCE_SECONDS = 10.0, 10.0
#: The same for one that comes in while others leave: if one of those must come back, it waits for longer, and this one yields.
YIELD_SECONDS = 2.0
#: Most pieces of the pool in one message: memory that nobody has touched before takes a while to register.
_MOST_PIECES = 16
_AWAY = ("out", "spilled", "lost")


class Bus:
    """Moves states over the bus. All methods are called in the loop's thread and call back in it."""

    def __init__(
        self,
        loop: Reactor,
        pool: HostPool,
        *,
        send: Callable[[str, bytes, Sequence[int]], None],
        found_away: Callable[[str], None],
        found_spilled: Callable[[str], None] = lambda _member: None,
        lives: Callable[[str], bool] = lambda _member: True,
    ) -> None:
        """`send`: a line, and descriptors with it, to a process that is connected. `found_away`: its state left its devices
        although that was given up before. `found_spilled`: so its host memory. `lives`: the process has not ended.
        """
        self._loop = loop
        self._pool = pool
        self._send = send
        self._found_away = found_away
        self._found_spilled = found_spilled
        self._lives = lives
        self.orders = Orders(loop, send=send, lives=lives)
        #: Whose each process is, and those whose state lies in the pool.
        self._owners: dict[str, str] = {}
        self._away: set[str] = set()
        #: Processes that are about to leave: their part of the pool is for that.
        self._leaving: set[str] = set()
        #: Processes that are given pieces before they have to move.
        self._preparing: set[str] = set()
        #: Processes for which the pool has too little now: meanwhile nobody is given anything ahead.
        self._short: set[str] = set()
        self._ahead: set[str] = set()
        #: Numbers of pieces that processes have, and no broker gave.
        self._strange: dict[str, list[int]] = {}

    # --- processes come and go ----------------------------------------------------------------------------------------------

    def connected(self, member: str, owner: str, hello: Message, files: Sequence[int], *, ahead: bool = True) -> None:
        """A process of the lab's user `owner` is connected, or again: what it has is known, and its open orders are sent again.
        The descriptors that came with its hello are the bus' from now on. `ahead`: it may have pieces before it moves.
        """
        self._ahead = self._ahead | {member} if ahead else self._ahead - {member}
        self._owners[member] = owner
        self._adopt(member, owner, hello, files)
        self._note(member, hello)
        self.orders.repeat(member)

    def ended(self, member: str) -> None:
        """The process has ended: what it had of the pool is free, and nobody waits for it."""
        self._away.discard(member)
        self._owners.pop(member, None)
        self._ahead.discard(member)
        self._strange.pop(member, None)
        self._pool.close(member)
        self.orders.ended(member)

    def heard(self, member: str, message: Message) -> None:
        """An answer of the process."""
        self._note(member, message)
        if leaked := total_of([message.get("leaked")]) if message["op"] == "moved" else 0:
            _log.warning("process %s still has %s on its devices that the driver did not take back", member, format_size(leaked))
        if self.orders.heard(member, message):
            return
        if message["op"] == "pieces_back" and message.get("place") == "spilled":
            self._pool.give_back(self._pool.held(member))
            self._found_spilled(member)
        elif message["op"] == "moved" and member in self._away:
            self._found_away(member)
        elif message["op"] == "release" and len(self._owners) > 1 and member in self._ahead:
            self._prepare(member, total_of(message.get("movable")))

    def knows(self, member: str) -> bool:
        """True from the first connection of the process until its end."""
        return member in self._owners

    def _note(self, member: str, message: Message) -> None:
        place = message.get("place")
        if place in _AWAY:
            self._away.add(member)
        elif isinstance(place, str):
            self._away.discard(member)

    def _adopt(self, member: str, owner: str, hello: Message, files: Sequence[int]) -> None:
        """An earlier broker gave these pieces of the pool, and the state may lie there.

        What was not written down as given is left to the process, which may need it to come back; it is asked to let go of it.
        """
        numbers, sizes = hello.get("pieces"), hello.get("sizes")
        said = list(zip(numbers, sizes, strict=False)) if isinstance(numbers, list) and isinstance(sizes, list) else []
        strange = []
        for file in files[len(said) :]:
            os.close(file)
        for (number, size), file in zip(said, files, strict=False):
            if type(number) is not int or type(size) is not int:
                os.close(file)
                continue
            try:
                self._pool.adopt(owner, number, size, file, holder=member)
            except (CarrelError, OSError) as error:
                strange.append(number)
                _log.warning("memory of process %s is not taken into the pool: %s", member, error)
        if len(files) >= len(said):
            self._pool.all_shown(member)
        self._strange[member] = strange
        if strange and hello.get("place") not in _AWAY:
            self.orders.begin(self.let_go(member))

    def let_go(self, member: str) -> Script:
        """The process is asked to let go of host memory that no broker gave. Refused or not, it goes on."""
        strange = self._strange.get(member)
        if strange:
            told = yield Order(member, "pieces_back", "pieces_back", {"pieces": strange})
            if told is not None and told.get("ok") is True:
                self._strange.pop(member, None)
        return Outcome(ok=True)

    # --- moves --------------------------------------------------------------------------------------------------------------

    def out(self, what: MoveOut, done: Callable[[Moved], None], leaves: Callable[[], None] = lambda: None) -> None:
        """Move a tenant's state to host memory: stop all of its processes, see that the pool has room for all, empty them all.

        `leaves` is called when nothing of it computes and the memory of each process begins to leave, piece by piece.
        """
        staying = set(what.members)

        def empty(member: str) -> Script:
            return self._empty(member, lambda: begins(member))

        def begins(member: str) -> None:
            staying.discard(member)
            if not any(self._lives(one) for one in staying):
                self._loop.post(leaves)  # once the order is given

        def over(outcomes: Mapping[str, Outcome]) -> None:
            self._leaving.difference_update(what.members)
            # Where one is away that could not be brought back, all stay stopped: who asks next brings all of them back.
            good = all(one.ok for one in outcomes.values()) or any(one in self._away for one in what.members)
            if not good:
                self._go(what.members)
            done(_ended("out", what.tenant, outcomes, Ending.DONE if good else Ending.RETRY))

        def stopped(outcomes: Mapping[str, Outcome]) -> None:
            full = _beyond_job(what, sum(one.bytes for one in outcomes.values()))
            if full or not all(one.ok for one in outcomes.values()):
                over({**outcomes, "": Outcome(ok=not full, why=full)})
                return
            self.orders.each(outcomes, lambda one: self._find_room(one, outcomes[one].bytes), roomy)

        def roomy(outcomes: Mapping[str, Outcome]) -> None:
            if all(one.ok for one in outcomes.values()):
                self.orders.each(what.members, empty, emptied)
            else:
                over(outcomes)

        def emptied(outcomes: Mapping[str, Outcome]) -> None:
            if all(one.ok for one in outcomes.values()):
                over(outcomes)
            else:
                self.orders.each([one for one in what.members if one in self._away], self._fill, lambda _back: over(outcomes))

        self._leaving.update(what.members)
        self.orders.each(what.members, self._stop, stopped)

    def back(self, what: MoveBack, done: Callable[[Moved], None]) -> None:
        """Bring a tenant's state back. Its processes stay stopped until the order to go on."""
        patience = YIELD_SECONDS if what.lease is None else PATIENCE_SECONDS

        def filled(outcomes: Mapping[str, Outcome]) -> None:
            if all(one.ok for one in outcomes.values()):
                done(_ended("in", what.tenant, outcomes, Ending.DONE))
                return
            here = [one for one in outcomes if one not in self._away and outcomes[one].bytes]
            self.orders.each(here, self._empty, lambda _again: done(_ended("in", what.tenant, outcomes, Ending.RETRY)))

        self.orders.each(what.members, lambda member: self._fill(member, patience), filled)

    def pause(self, what: Pause, done: Callable[[Moved], None]) -> None:
        """Stop a tenant's processes where their state is: all of them, or none."""

        def stopped(outcomes: Mapping[str, Outcome]) -> None:
            good = all(one.ok for one in outcomes.values())
            if not good:
                self._go(what.members)
            done(_ended("pause", what.tenant, outcomes, Ending.DONE if good else Ending.RETRY))

        self.orders.each(what.members, self._stop, stopped)

    # --- what one process does ----------------------------------------------------------------------------------------------

    def _stop(self, member: str) -> Script:
        """No call comes through the gate, and the device is idle."""
        quiet = yield Order(member, "pause", "quiet", {"timeout": PAUSE_SECONDS})
        if quiet is None or quiet.get("ok") is not True:
            return Outcome(ok=False, why=why_of(quiet, "it did not stop"))
        return Outcome(ok=True, bytes=total_of(quiet.get("movable")))

    def _empty(self, member: str, begins: Callable[[], None] = lambda: None) -> Script:
        """Its memory goes to the pool. `begins` is called when that is ordered."""
        quiet = yield Order(member, "pause", "quiet", {"timeout": PAUSE_SECONDS})
        if quiet is None or quiet.get("ok") is not True:
            return Outcome(ok=False, why=why_of(quiet, "it did not stop"))
        size = total_of(quiet.get("movable"))
        if member not in self._away:
            why = yield from self._provide(member, size)
            if why:
                return Outcome(ok=False, why=why)
        begins()
        moved = yield Order(member, "out", "moved", {})
        if moved is None or moved.get("place") == "in":
            return Outcome(ok=False, why=why_of(moved, "its memory did not leave"))
        return Outcome(ok=True, bytes=size, seconds=_seconds(moved))

    def _find_room(self, member: str, size: int) -> Script:
        """It has so much of the pool."""
        why = "" if member in self._away else (yield from self._provide(member, size))
        return Outcome(ok=not why, why=why)

    def _fill(self, member: str, patience: float = PATIENCE_SECONDS) -> Script:
        """Its memory comes back."""
        quiet = yield Order(member, "pause", "quiet", {"timeout": PAUSE_SECONDS})
        if quiet is None or quiet.get("ok") is not True:
            return Outcome(ok=False, why=why_of(quiet, "it did not stop"))
        moved = yield Order(member, "in", "moved", {"patience": patience})
        if moved is None or moved.get("place") in _AWAY:
            return Outcome(ok=False, why=why_of(moved, "its memory did not come back"))
        yield from self.let_go(member)
        return Outcome(ok=True, bytes=total_of(quiet.get("movable")), seconds=_seconds(moved))

    def _provide(self, member: str, size: int) -> Generator[Order, Message | None, str]:
        """Give the process pieces of the pool until it has `size` bytes of it. Returns why it has not, or ""."""
        missing = size - sum(piece.size for piece in self._pool.held(member))
        if missing <= 0:
            return ""
        fresh = yield from self.take(member, missing, holder=member)
        return fresh if isinstance(fresh, str) else (yield from self.give(member, fresh))

    def take(self, member: str, size: int, *, holder: str) -> Generator[Order, Message | None, list[Piece] | str]:
        """Take pieces of at least `size` bytes from the pool for the user of a process, from others if need be; or why not."""
        if size > self._pool.limit:  # no room that others give back can be enough
            return f"its state ({format_size(size)}) is larger than host memory for states ({format_size(self._pool.limit)})"
        owner = self._owners.get(member, "")
        try:
            return self._pool.take(owner, size, holder=holder)
        except Unavailable:
            self._short.add(member)
            yield from self._reclaim(member, size)
        try:
            return self._pool.take(owner, size, holder=holder)
        except Unavailable as error:
            return error.message
        finally:
            self._short.discard(member)

    def give(self, member: str, fresh: Sequence[Piece]) -> Generator[Order, Message | None, str]:
        """Give pieces, which are taken for it, to the process. Returns why it has none of them, or ""."""
        for start in range(0, len(fresh), _MOST_PIECES):
            some = fresh[start : start + _MOST_PIECES]
            fields = {"pieces": [piece.number for piece in some], "sizes": [piece.size for piece in some]}
            told = yield Order(member, "pieces", "pieces", fields, some)
            if told is None or told.get("ok") is not True:
                yield from self.take_back(member, fresh)
                return why_of(told, "host memory could not be registered")
        return ""

    def _prepare(self, member: str, size: int) -> None:
        """The process is idle, and others are there: it registers its part of the pool now, and not when somebody waits."""

        def prepared(_outcome: Outcome) -> None:
            self._preparing.discard(member)

        if member not in self._preparing and not self._is_busy(member):
            self._preparing.add(member)
            self.orders.begin(self._give_ahead(member, size), prepared)

    def _give_ahead(self, member: str, size: int) -> Script:
        """One piece after the other, so that a cell that begins waits for no more than one; as long as there is nothing else."""
        while sum(piece.size for piece in self._pool.held(member)) < size and not self._is_busy(member) and not self._short:
            try:
                some = self._pool.take(self._owners[member], 1, holder=member)
            except Unavailable:
                break
            fields = {"pieces": [piece.number for piece in some], "sizes": [piece.size for piece in some]}
            told = yield Order(member, "pieces", "pieces", fields, some)
            if told is None or told.get("ok") is not True:
                yield from self.take_back(member, some)
                break
        return Outcome(ok=True)

    def _is_busy(self, member: str) -> bool:
        """It has an order already, or has its state in the pool, or is gone."""
        told = any(order.member == member for order in self.orders.open())
        return told or member in self._away or member not in self._owners

    def _reclaim(self, asking: str, size: int) -> Generator[Order, Message | None, None]:
        """Take back pieces from processes whose state is on its devices, those too that are just given some ahead."""
        orders = self.orders.open()
        on_their_way = {piece.number for order in orders for piece in order.pieces}
        busy = {order.member for order in orders} - self._preparing | self._leaving
        for member in [one for one in self._owners if one != asking and one not in self._away and one not in busy]:
            some: list[Piece] = []
            for piece in self._pool.held(member):
                if size > 0 and piece.number not in on_their_way:
                    size -= piece.size
                    some.append(piece)
            if some:
                yield from self.take_back(member, some)

    def spare(self) -> int:
        """Bytes of host memory that the pool has for others: of nobody, or of processes whose state is on its devices."""
        use = self._pool.use()
        here = (member for member in self._owners if member not in self._away)
        return use.ready + use.used_before + sum(piece.size for member in here for piece in self._pool.held(member))

    def take_back(self, member: str, pieces: Sequence[Piece]) -> Generator[Order, Message | None, None]:
        """Have the process let go of pieces in which no state lies; where it does not, they stay its own."""
        told = yield Order(member, "pieces_back", "pieces_back", {"pieces": [piece.number for piece in pieces]})
        if told is not None and told.get("ok") is True:
            self._pool.give_back(pieces)

    def _go(self, members: Iterable[str]) -> None:
        """As before the pause."""
        for member in members:
            self._send(member, encode("go", id=0), ())


def _beyond_job(what: MoveOut, size: int) -> str:
    """Why the processes' job would not survive it, or "": what they register of the pool may count as theirs."""
    used = measure([int(member.split("-")[0]) for member in what.members]).memory if what.memory else 0
    if not what.memory or used + size <= what.memory:
        return ""
    about = f"its state ({format_size(size)}) and what it has in memory ({format_size(used)})"
    return f"{about} are more than its job asked for ({format_size(what.memory)})"


def _ended(what: str, tenant: str, outcomes: Mapping[str, Outcome], ending: Ending) -> Moved:
    moved = moved_of(outcomes, ending)
    _log.info("bus %s %s: %s, %d bytes in %.3f s %s", what, tenant, moved.ending, moved.bytes, moved.seconds, moved.message)
    return moved


def _seconds(message: Message) -> float:
    """How long the move took; 0 where there was nothing to move any more."""
    seconds = message.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) and message.get("bytes") else 0.0

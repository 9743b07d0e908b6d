"""States of real devices go from host memory to the disk and back: what the broker and the residency libraries each do for it.

A process whose state is out has it in pieces of the pool. The broker reads those through its own descriptors into a file, and
only when that is whole the process gets the order to let go of them. On the way back it fills other pieces from the file before
the process is given them, and says last that the state is in them. So at each moment the state is in the pieces that the process
has, or in a file that a row of the journal names (`StateFiles`); the process says in which of both (`place`), and each step can
be taken again by a broker that was restarted. What takes long is done in threads, on copies of the descriptors: pieces whose
process has ended may belong to somebody else before such a thread notices.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from carrel.core.domain.errors import CarrelError, Unavailable, in_words
from carrel.core.domain.units import MIB
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.bus import PAUSE_SECONDS, Bus
from carrel.node.broker.core.effects import Spill, Unspill
from carrel.node.broker.disk import StateDisk, StateLost
from carrel.node.broker.orders import Order, Outcome, Script, Work, moved_of, why_of
from carrel.node.broker.pool import HostPool, Piece
from carrel.node.broker.processes import start_time
from carrel.node.suspension.ports import Ending, Moved

_log = logging.getLogger(__name__)

#: So often a file may be unreadable before its state is lost: nobody waits for ever for a disk that has failed.
_TRIES = 3
#: Bytes between two signs of progress.
_REPORT = 32 * MIB
#: A report of progress: the tenant, bytes that are done, and of how many.
Told = Callable[[str, int, int], None]


class Spilling:
    """Puts states onto the disk and brings them back. All methods are called in the loop's thread and call back in it."""

    def __init__(self, loop: Reactor, bus: Bus, pool: HostPool, disk: StateDisk | None, progress: Told) -> None:
        """`disk`: None where there is none (any more)."""
        self._loop = loop
        self._bus = bus
        self._pool = pool
        self._disk = disk
        self._progress = progress
        self._unreadable: dict[str, int] = {}
        #: Who has pieces that are being filled: this process.
        self._own = f"{os.getpid()}-{start_time(os.getpid())}"

    def spill(self, what: Spill, done: Callable[[Moved], None]) -> None:
        """Put a tenant's state onto the disk: first the files of all of its processes, then they let go of host memory.

        DONE if only some could let go of it; what the others have stays where it is, and comes back from there. UNVERIFIED when
        none has said that it did, and one may have: its file is needed until it says something.
        """
        meter = _Meter(self._loop, what.tenant, what.size, self._progress)
        sizes: dict[str, int] = {}
        gone: set[str] = set()

        def written(outcomes: Mapping[str, Outcome]) -> None:
            if not all(one.ok for one in outcomes.values()):
                done(_ended("spill", what.tenant, outcomes, Ending.RETRY))
                return
            self._bus.orders.each(
                sizes, lambda member: self._let_go(member, sizes[member], gone), lambda last: let_go(outcomes, last)
            )

        def let_go(outcomes: Mapping[str, Outcome], last: Mapping[str, Outcome]) -> None:
            ending = Ending.DONE
            if not gone and any(one.silent for one in last.values()):
                ending = Ending.UNVERIFIED
            elif not gone and not all(one.ok for one in last.values()):
                ending = Ending.RETRY
            done(_ended("spill", what.tenant, {**outcomes, **{name: one for name, one in last.items() if not one.ok}}, ending))

        self._bus.orders.each(what.files, lambda member: self._put(member, what.files[member], meter, sizes, gone), written)

    def unspill(self, what: Unspill, done: Callable[[Moved], None]) -> None:
        """Bring a tenant's state back to host memory. LOST if that of one of its processes is not what was put there."""
        meter = _Meter(self._loop, what.tenant, what.size, self._progress)

        def fetched(outcomes: Mapping[str, Outcome]) -> None:
            lost = any(one.lost for one in outcomes.values())
            good = all(one.ok for one in outcomes.values())
            ending = Ending.LOST if lost else Ending.DONE if good else Ending.RETRY
            done(_ended("unspill", what.tenant, outcomes, ending))

        self._bus.orders.each(what.files, lambda member: self._fetch(member, what.files[member], meter), fetched)

    # --- what is done with one process --------------------------------------------------------------------------------------

    def _put(self, member: str, name: str, meter: _Meter, sizes: dict[str, int], gone: set[str]) -> Script:
        """Write its file; `sizes` says what is in it then. One that has let go before, or has nothing, is `gone` already."""
        quiet = yield _rest(member)
        if quiet is None or quiet.get("ok") is not True:
            return Outcome(ok=False, why=why_of(quiet, "it did not stop"))
        place, size, pieces = quiet.get("place"), quiet.get("reach"), self._pool.held(member)
        if place in ("spilled", "none"):
            gone.add(member)
            return Outcome(ok=True)
        disk = self._disk
        if place != "out" or type(size) is not int or not 0 < size <= sum(piece.size for piece in pieces):
            return Outcome(ok=False, why="its library does not have the state in host memory")
        if disk is None:
            return Outcome(ok=False, why="no state can go to a disk here")
        outcome: Outcome = yield _with_copies(pieces, lambda copies: _written(disk, name, copies, size, meter))
        if outcome.ok and not self._bus.knows(member):
            yield Work(lambda: disk.remove(name))
            return Outcome(ok=False, why="the process has ended")
        sizes[member] = size
        return outcome

    def _let_go(self, member: str, size: int, gone: set[str]) -> Script:
        """Its file is whole: it lets go of host memory. The library does so only for the very pieces that were read."""
        pieces = self._pool.held(member)
        fields = {"pieces": [piece.number for piece in pieces], "spilled": size}
        told = yield Order(member, "pieces_back", "pieces_back", fields)
        if told is None or told.get("ok") is not True:
            return Outcome(ok=False, why=why_of(told, "it did not let go of its host memory"), silent=told is None)
        gone.add(member)
        self._pool.give_back(pieces)
        return Outcome(ok=True)

    def _fetch(self, member: str, name: str, meter: _Meter) -> Script:
        """Fill pieces from its file, give it those, and say that its state is in them."""
        quiet = yield _rest(member)
        if quiet is None or quiet.get("ok") is not True:
            return Outcome(ok=False, why=why_of(quiet, "it did not stop"))
        if quiet.get("place") != "spilled":
            return Outcome(ok=True)
        disk, size = self._disk, quiet.get("reach")
        if type(size) is not int or size <= 0:
            return Outcome(ok=False, why="its library does not say how far its state reaches")
        if disk is None:
            return Outcome(ok=False, lost=True, why="it was on a disk that this broker does not have")
        # What a broker gave that was killed before it said what is in it: the state begins in the first piece that there is.
        yield from self._bus.let_go(member)
        if left := self._pool.held(member):
            yield from self._bus.take_back(member, left)
        if self._pool.held(member):
            return Outcome(ok=False, why="its library keeps host memory")
        fresh = yield from self._bus.take(member, size, holder=self._own)
        if isinstance(fresh, str):
            return Outcome(ok=False, why=fresh)
        outcome: Outcome = yield _with_copies(fresh, lambda copies: _read(disk, name, copies, size, meter))
        if not outcome.ok or not self._bus.knows(member):
            self._pool.give_back(fresh)
            return self._missed(name, outcome)
        try:
            self._pool.pass_on(fresh, member)
        except Unavailable as error:
            self._pool.give_back(fresh)
            return Outcome(ok=False, why=_words(error))
        why = yield from self._bus.give(member, fresh)
        if why:
            return Outcome(ok=False, why=why)
        told = yield Order(member, "filled", "filled", {"pieces": [piece.number for piece in fresh], "bytes": size})
        if told is None or told.get("ok") is not True:
            return Outcome(ok=False, why=why_of(told, "its library did not take it"))
        self._unreadable.pop(name, None)
        return outcome

    def _missed(self, name: str, outcome: Outcome) -> Outcome:
        """The file was not read: it is tried again, but not for ever."""
        if outcome.ok or outcome.lost:
            return Outcome(ok=False, lost=outcome.lost, why=outcome.why or "the process has ended")
        tries = self._unreadable[name] = self._unreadable.get(name, 0) + 1
        return Outcome(ok=False, lost=tries >= _TRIES, why=outcome.why)


class StateFiles:
    """The files of states on the disk: those that rows name which were written down, while these states are away. Others go."""

    def __init__(self, loop: Reactor, disk: StateDisk | None, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """`rows`: what is true at the start, as it is in the journal. What lies there and nobody names is removed."""
        self._loop = loop
        self._disk = disk
        self._named = {str(row["id"]): files_of(row) for kind, row in rows if kind == "tenant"}
        if disk is not None:
            missing = disk.clean([name for names in self._named.values() for name in names])
            if missing:
                _log.warning("%d states are not on the disk, or were not yet", len(missing))

    def wrote(self, rows: Iterable[tuple[str, Mapping[str, Any]]], drops: Iterable[tuple[str, str]]) -> None:
        """These rows are in the journal from now on, and those are not."""
        gone: set[str] = set()
        for name, files in [
            *((str(row["id"]), files_of(row)) for kind, row in rows if kind == "tenant"),
            *((name, frozenset()) for kind, name in drops if kind == "tenant"),
        ]:
            gone |= self._named.pop(name, frozenset()) - files
            if files:
                self._named[name] = files
        if gone and self._disk is not None:
            disk = self._disk
            self._loop.work(lambda: _remove(disk, gone), lambda _none: None)


#: Where a state is while a file of it may be needed.
_AWAY = ("suspended", "spilling", "spilled", "resuming")


def files_of(row: Mapping[str, Any]) -> frozenset[str]:
    """The files that a tenant's row names, as it is in the journal."""
    files = row.get("files")
    return frozenset(files.values()) if row.get("residency") in _AWAY and isinstance(files, dict) else frozenset()


class _Meter:
    """Tells how far a state is, every now and then; the lanes of its files count."""

    def __init__(self, loop: Reactor, tenant: str, of: int, tell: Told) -> None:
        self._loop, self._tenant, self._of, self._tell = loop, tenant, of, tell
        self._lock = threading.Lock()
        self._done = self._told = 0

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            done = self._done
            if done < self._told + _REPORT:
                return
            self._told = done
        self._loop.post(lambda: self._tell(self._tenant, done, self._of))


def _rest(member: str) -> Order:
    return Order(member, "pause", "quiet", {"timeout": PAUSE_SECONDS})


def _with_copies(pieces: Sequence[Piece], do: Callable[[list[Piece]], Outcome]) -> Work:
    """Work on copies of the pieces' descriptors, which are made now and closed after it."""
    copies: list[Piece] = []
    problem = ""
    try:
        copies.extend(replace(piece, fd=os.dup(piece.fd)) for piece in pieces)
    except OSError as error:
        problem = f"host memory cannot be reached: {in_words(error)}"

    def work() -> Outcome:
        try:
            return Outcome(ok=False, why=problem) if problem else do(copies)
        finally:
            for copy in copies:
                os.close(copy.fd)

    return Work(work)


def _written(disk: StateDisk, name: str, pieces: Sequence[Piece], size: int, meter: _Meter) -> Outcome:
    began = time.monotonic()
    try:
        disk.remove(name)  # of a broker that was killed before the process let go of anything
        disk.write(name, pieces, size, meter)
    except (CarrelError, OSError) as error:
        return Outcome(ok=False, why=_words(error))
    return Outcome(ok=True, bytes=size, seconds=time.monotonic() - began)


def _read(disk: StateDisk, name: str, pieces: Sequence[Piece], size: int, meter: _Meter) -> Outcome:
    began = time.monotonic()
    try:
        # What was freed since at its end need not come back.
        there = disk.read(name, pieces, most=size, progress=meter)
    except StateLost as error:
        return Outcome(ok=False, lost=True, why=_words(error))
    except (CarrelError, OSError) as error:
        return Outcome(ok=False, why=_words(error))
    if there < size:
        return Outcome(ok=False, lost=True, why="a GPU state on the disk is shorter than the state")
    return Outcome(ok=True, bytes=size, seconds=time.monotonic() - began)


def _words(error: CarrelError | OSError) -> str:
    text = in_words(error) if isinstance(error, OSError) else error.message
    return text.rstrip(".")


def _remove(disk: StateDisk, names: Collection[str]) -> None:
    for name in names:
        with suppress(OSError):  # it is tried again when the broker starts
            disk.remove(name)


def _ended(what: str, tenant: str, outcomes: Mapping[str, Outcome], ending: Ending) -> Moved:
    moved = moved_of(outcomes, ending)
    _log.info("%s %s: %s, %d bytes in %.3f s %s", what, tenant, moved.ending, moved.bytes, moved.seconds, moved.message)
    return moved

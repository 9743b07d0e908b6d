"""The node's pool of host memory for GPU states: pieces in files in memory, given out by descriptor.

The residency library maps and registers the pieces that its process gets, before anything has to move; both are slow, and so is
the first touch of memory. So pieces are touched here in the background and kept for the next process.

A piece has no name in any file system, and its size is sealed: who has the descriptor can neither shrink it (the others would
die of SIGBUS) nor grow it. What a user had in a piece is never seen by another: such a piece is replaced by a new file in memory.
Writing zeros over it would be four times as fast, but who kept a descriptor of it would read what the next user puts there.
Processes of one Unix user can open each other's descriptors in /proc; that wall is the isolation of jobs, not the pool.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from carrel.core.domain.errors import Conflict, Unavailable, in_words
from carrel.core.domain.units import MIB, format_size
from carrel.node.broker.memory_file import is_sealed, make_file, touch, touch_huge
from carrel.node.broker.pool_allocations import PoolAllocation, PoolAllocations
from carrel.node.devices.machine import available_memory, shares_huge_pages

_log = logging.getLogger(__name__)

#: Size of a piece, unless the whole pool would then be more pieces than one process can have.
PIECE = 256 * MIB
#: The most pieces that a process of the residency library takes (`residency/src/pool.c`), with room for some of another size.
_MOST = 160
#: The fewest pieces of a pool that is large enough for that, and the least that a piece has.
_FEW, _LEAST = 16, 2 * MIB
#: Seconds between two looks whether the machine has become short of memory.
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Host memory that somebody was given. The descriptor stays the pool's: others get copies of it (SCM_RIGHTS)."""

    #: A name that is never used again, also not when the same memory is given out once more.
    number: int
    size: int
    fd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What the pool is used for, in bytes."""

    limit: int
    #: What processes have, what is ready for anybody, and what lies there as its last user left it.
    given: int
    ready: int
    used_before: int


class PoolFull(Unavailable):
    """The pool has not so much."""

    def __init__(self, asked: int, free: int) -> None:
        super().__init__(
            f"The pool of host memory has {format_size(free)} free, and {format_size(asked)} are asked for.",
            remedy="States in it must end, come back or go on to the disk; or set host_memory higher.",
        )
        #: Bytes.
        self.asked = asked
        self.free = free


@dataclass(slots=True)
class _Slot:
    piece: Piece
    #: The last user who had it; "": nobody had it.
    user: str = ""
    #: Who has it now; "": nobody.
    holder: str = ""


def piece_size(limit: int) -> int:
    """The size of the pieces of a pool of `limit` bytes: one process can have all of them, and a small pool has some, too."""
    size = PIECE
    while size > _LEAST and size * _FEW > limit:
        size //= 2
    while size * _MOST < limit:
        size *= 2
    return size


class HostPool:
    """Pieces of host memory. Every method may be called from any thread, and none waits for memory to be touched or freed."""

    def __init__(
        self,
        limit: int,
        *,
        piece: int | None = None,
        ready: int = 0,
        first: int = 1,
        floor: int = 0,
        available: Callable[[], int] = available_memory,
        huge: bool | None = None,
        given: PoolAllocations | None = None,
        lives: Callable[[str], bool] = lambda _holder: True,
    ) -> None:
        """At most `limit` bytes in pieces of `piece` bytes, of which `ready` are kept touched and clean for the next process.

        `first`: number of the first piece, larger than any that an earlier broker gave out. `available`: bytes of memory that the
        machine can still give; nothing more is taken where less than `floor` would be left, and what is free is let go of.
        `huge`: ask for huge pages, which are registered several times as fast (None: if the machine shares memory in such).
        `given`: where it is written down who has what; what stands there already is given, and is adopted when its process shows
        it. `lives`: the process of this name has not ended.
        """
        self.limit = limit
        self.piece = piece or piece_size(limit)
        self._target = min(ready, limit)
        self._floor = floor
        self._available = available
        self._touch = touch_huge if (shares_huge_pages() if huge is None else huge) else touch
        self._records = PoolAllocations() if given is None else given
        self._lives = lives
        self._next = max(first, self._records.last + 1)
        self._change = threading.Condition()
        #: Given pieces by number.
        self._given: dict[int, _Slot] = {}
        #: Free pieces: never used by anybody and touched; and as their last user left them, the longest free first.
        self._clean: list[_Slot] = []
        self._used: list[_Slot] = []
        #: Bytes that are just being made, and descriptors that have still to be closed.
        self._making = 0
        self._discarded: list[int] = []
        self._worker: threading.Thread | None = None
        self._ended = False

    # --- pieces ---------------------------------------------------------------------------------------------------------------

    def take(self, owner: str, size: int, *, holder: str | None = None) -> list[Piece]:
        """Pieces of at least `size` bytes in all for the process `holder` of the lab's user `owner`; without it, both are one.

        First what the same user had, then what is ready, then new ones: those are touched when they are registered. Raises
        `PoolFull` with what is free, and `Unavailable` where the system makes no files in memory; then nothing was taken.
        """
        holder = owner if holder is None else holder
        with self._change:
            free = self._left()
            if size > free:
                self._forget_dead()
                free = self._left()
            if size > free:
                raise PoolFull(size, free)
            slots: list[_Slot] = []
            try:
                fresh = self._new()
                while size > 0:
                    slot, fresh = self._pick(owner, fresh)
                    slots.append(slot)
                    size -= slot.piece.size
                pieces = [self._named(slot) for slot in slots]
                self._records.add([_record(piece, owner, holder) for piece in pieces])
            except OSError as error:
                for slot in slots:
                    (self._used if slot.user else self._clean).append(slot)
                raise Unavailable(f"No host memory can be given: {in_words(error)}.") from error
            self._given |= {piece.number: _Slot(piece, owner, holder) for piece in pieces}
            self._change.notify_all()
            return pieces

    def give_back(self, pieces: Collection[Piece]) -> None:
        """Nobody has these any more. Those that were given back before are passed over."""
        with self._change:
            for piece in pieces:
                slot = self._given.pop(piece.number, None)
                if slot is not None:
                    slot.holder = ""
                    self._used.append(slot)
            self._records.drop([piece.number for piece in pieces])
            self._change.notify_all()

    def pass_on(self, pieces: Iterable[Piece], holder: str) -> None:
        """Another holder of the same user has these from now on, after those that it has. Raises `Unavailable`; then none."""
        with self._change:
            slots = [self._given[piece.number] for piece in pieces]
            try:
                self._records.add([_record(slot.piece, slot.user, holder) for slot in slots])
            except OSError as error:
                raise Unavailable(f"No host memory can be given: {in_words(error)}.") from error
            for slot in slots:
                slot.holder = holder
                self._given[slot.piece.number] = self._given.pop(slot.piece.number)

    def close(self, holder: str) -> None:
        """The process is gone: what it had comes back."""
        with self._change:
            self.give_back([slot.piece for slot in self._given.values() if slot.holder == holder])
            self._records.drop([record.number for record in self._awaited() if record.holder == holder])

    def held(self, holder: str) -> list[Piece]:
        """What a process has, in the order in which it got it."""
        with self._change:
            return [slot.piece for slot in self._given.values() if slot.holder == holder]

    def adopt(self, owner: str, number: int, size: int, fd: int, *, holder: str | None = None) -> Piece:
        """A process shows a piece that an earlier broker gave it; the descriptor is the pool's from now on.

        One that is known already (the process only connected again) stays as it is. Raises `Conflict` for what was not given to
        this process: the descriptor is closed.
        """
        holder = owner if holder is None else holder
        try:
            with self._change:
                known, record = self._given.get(number), self._records.find(number)
                if record is None or (record.owner, record.holder, record.size) != (owner, holder, size):
                    raise Conflict(f"No broker gave piece {number} of {format_size(size)} to this process.")
                if not record.is_in(fd) or not is_sealed(fd):
                    raise Conflict(f"What was handed in as piece {number} is other memory than a broker gave.")
                if known is not None:
                    os.close(fd)
                    return known.piece
                os.set_inheritable(fd, False)
                piece = Piece(number=number, size=size, fd=fd)
                self._given[number] = _Slot(piece, owner, holder)
                return piece
        except BaseException:
            with suppress(OSError):
                os.close(fd)
            raise

    def all_shown(self, holder: str) -> None:
        """The process has shown all that it has of an earlier broker's pool: what it has not shown, it never got."""
        with self._change:
            self._records.drop([record.number for record in self._awaited() if record.holder == holder])
            self._change.notify_all()

    def left(self) -> int:
        """Bytes that `take` would give now."""
        with self._change:
            return self._left()

    def use(self) -> PoolUse:
        """What the pool is used for now."""
        with self._change:
            ready, used = _bytes(self._clean), _bytes(self._used)
            return PoolUse(limit=self.limit, given=sum(record.size for record in self._records), ready=ready, used_before=used)

    # --- in the background ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Prepare memory in the background from now on, at the lowest priority."""
        self._worker = threading.Thread(target=self._work, name="host memory", daemon=True)
        self._worker.start()

    def end(self) -> None:
        """Let go of everything; processes keep what they have."""
        with self._change:
            self._ended = True
            self._change.notify_all()
        if self._worker is not None:
            self._worker.join()
        with self._change:
            slots, discarded = list(self._slots()), self._discarded
            self._records.close()
            self._given, self._clean, self._used, self._discarded = {}, [], [], []
        for fd in [*discarded, *(slot.piece.fd for slot in slots)]:
            os.close(fd)

    def prepare(self) -> bool:
        """One step of what is done in the background: true unless there was nothing to do.

        Free what changed hands; let go of what is too much, or what the machine needs; touch what is to be ready, and put clean
        pieces in the place of used ones where there are too few.
        """
        make = False
        with self._change:
            if self._ended:
                return False
            discarded, self._discarded = self._discarded, []
            if discarded:
                pass
            elif self._excess():
                discarded = [(self._used or self._clean).pop(0).piece.fd]
            elif self._wants_clean():
                make = True
                discarded = [] if self._grows() else [self._used.pop(0).piece.fd]
                self._making += self.piece
            else:
                return False
        for fd in discarded:
            os.close(fd)
        if make:
            self._make()
        return True

    def _work(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self._ended:
            if not self.prepare():
                with self._change:
                    if not (self._ended or self._discarded or self._excess() or self._wants_clean()):
                        self._change.wait(_LOOK_SECONDS)

    def _make(self) -> None:
        """A clean piece that is touched. Without the lock: it takes a while."""
        fd = -1
        try:
            fd = make_file(self.piece)
            self._touch(fd, self.piece, lambda: self._ended)
        except OSError as error:
            _log.warning("no host memory could be prepared: %s", in_words(error))
            if fd >= 0:
                os.close(fd)
            with self._change:
                self._making -= self.piece
                self._target = 0  # not tried again and again: what is asked for is still made when it is asked for
            return
        with self._change:
            self._making -= self.piece
            self._clean.append(_Slot(Piece(number=0, size=self.piece, fd=fd)))
            self._change.notify_all()

    # --- rows -----------------------------------------------------------------------------------------------------------------

    def _slots(self) -> Iterator[_Slot]:
        yield from self._given.values()
        yield from self._clean
        yield from self._used

    def _awaited(self) -> list[PoolAllocation]:
        """What processes have of an earlier broker's pool, and have not shown yet."""
        return [record for record in self._records if record.number not in self._given]

    def _forget_dead(self) -> None:
        """Of what has not been shown, that whose processes have ended: nobody watches who has never connected."""
        self._records.drop([record.number for record in self._awaited() if not self._lives(record.holder)])

    def _total(self) -> int:
        return _bytes(self._slots()) + sum(record.size for record in self._awaited()) + self._making

    def _machine(self) -> int:
        """Bytes that may still be taken from the machine. What was given and is not touched yet has not gone from its memory."""
        owed = sum(max(0, slot.piece.size - os.fstat(slot.piece.fd).st_blocks * 512) for slot in self._given.values())
        return self._available() - self._floor - owed

    def _excess(self) -> bool:
        """There is a free piece that has to go."""
        return bool(self._used or self._clean) and (self._total() > self.limit or self._available() < self._floor)

    def _wants_clean(self) -> bool:
        return _bytes(self._clean) < self._target and (self._grows() or bool(self._used))

    def _grows(self) -> bool:
        """One more piece that is touched at once is within the limit, and the machine has the memory, with one to spare."""
        return self._total() + self.piece <= self.limit and self._machine() >= 2 * self.piece

    def _new(self) -> int:
        """How many pieces that are only touched later may be made."""
        return max(0, min(self.limit - self._total(), self._machine()) // self.piece)

    def _left(self) -> int:
        return _bytes(self._clean) + _bytes(self._used) + self._new() * self.piece

    def _pick(self, owner: str, fresh: int) -> tuple[_Slot, int]:
        """A free piece for this user, where `fresh` more may be made; and how many of those are left."""
        for slot in reversed(self._used):
            if slot.user == owner:
                self._used.remove(slot)
                return slot, fresh
        if self._clean:
            return self._clean.pop(), fresh
        if fresh > 0:
            return _Slot(Piece(number=0, size=self.piece, fd=make_file(self.piece))), fresh - 1
        size = self._used[0].piece.size
        slot = _Slot(Piece(number=0, size=size, fd=make_file(size)))
        self._discarded.append(self._used.pop(0).piece.fd)
        return slot, fresh

    def _named(self, slot: _Slot) -> Piece:
        piece = Piece(number=self._next, size=slot.piece.size, fd=slot.piece.fd)
        self._next += 1
        return piece


def _record(piece: Piece, owner: str, holder: str) -> PoolAllocation:
    about = os.fstat(piece.fd)
    return PoolAllocation(
        number=piece.number, size=piece.size, device=about.st_dev, inode=about.st_ino, owner=owner, holder=holder
    )


def _bytes(slots: Iterable[_Slot]) -> int:
    return sum(slot.piece.size for slot in slots)

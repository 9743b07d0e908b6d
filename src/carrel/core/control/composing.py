"""Machines are composed: what was planned is written down, then done to the fabric one change at a time, and found again.

`Composer.turn` does what can be done now. It may be killed at any point: the next turn looks at the fabric for what is done
already. A driver that does not know whether it did something says so (`Unavailable`), and the fabric is looked at.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

from carrel.core.control.keeper import RecordStore
from carrel.core.domain.composition import LIVING, Composition, CompositionState
from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.fabric import Block, Change, Step, by_name
from carrel.core.domain.ports import Clock
from carrel.core.domain.units import format_duration
from carrel.core.policy.compose import Shortage, ever, find
from carrel.core.policy.free_blocks import Asked, Names, projected
from carrel.core.policy.machine_line import CHANGE_SECONDS, Promise, Use, line

_log = logging.getLogger(__name__)

#: Seconds after which a change that failed is tried again, and so many times before the composition is made of other blocks.
RETRY_SECONDS, TRIES = 5.0, 3
#: Seconds in which a machine sees the blocks that were attached to it.
SEEN_SECONDS = 120.0
#: So many blocks fail one composition before it fails.
MOST_AVOIDED = 8


class Fabric(Protocol):
    """What attaches blocks to machines. `tests/composing/fabric_contract.py` is what a driver has to pass."""

    def blocks(self) -> Sequence[Block]:
        """All blocks as they are now, slices among them. Raises `Unavailable`."""

    def do(self, change: Change, *, fence: int) -> None:
        """Make the change; it is done when this returns, and doing it twice is doing it once.

        Raises `Unavailable` when it is not known whether it is done, and another `CarrelError` when it is not done and will not
        be. A change with a lower `fence` than one before comes from a lab that was replaced: it is refused (`Conflict`).
        """


_MACHINE = re.compile(r"c(\d+)(?:-\d+)?")


def machine_name(one: Composition) -> str:
    """Return the name of the machine that is made for a composition.

    Each try has a name of its own: what an earlier one left under way cannot be done to a later one.
    """
    return f"c{one.id}-{len(one.avoided) + 1}" if one.avoided else f"c{one.id}"


@dataclass(slots=True)
class _Trouble:
    """What went wrong with the change that a composition is at."""

    times: int = 0
    words: str = ""
    again: float = 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    """What those that wait are promised, by number; it holds while all is like that, and until a moment."""

    promises: Mapping[int, Promise] = field(default_factory=dict)
    living: Sequence[Composition] = ()
    blocks: Sequence[Block] = ()
    until: float = -inf


class Composer:
    """Makes plans of what is asked for, in the order in which it came, and carries them out. Thread-safe."""

    def __init__(
        self,
        *,
        fabric: Fabric,
        records: RecordStore[Composition],
        clock: Clock,
        fence: int,
        used: Callable[[str], bool] = lambda _machine: False,
        changed: Callable[[], None] = lambda: None,
        each: Callable[[Callable[[Sequence[Composition]], bool], Iterable[Sequence[Composition]]], Iterable[bool]] = map,
    ) -> None:
        """`fence` is larger than that of every lab before. `used` says whether a job has its place on a machine.

        `changed` is called when a machine came or went. `each` calls a function with the compositions of each zone; one that has
        threads changes several zones at a time.
        """
        self._fabric, self._fence = fabric, fence
        self.records, self.clock = records, clock
        self._used, self._changed, self._each = used, changed, each
        self._lock = threading.RLock()
        self._trouble: dict[int, _Trouble] = {}
        #: Since when all changes of a composition are done, and since when nothing runs on a machine.
        self._settling: dict[int, float] = {}
        self._idle: dict[int, float] = {}
        self._line = _Line()

    @property
    def lock(self) -> threading.RLock:
        """Held while a composition is changed."""
        return self._lock

    def living(self) -> Sequence[Composition]:
        """Those that are not over, in the order in which they came; the same sequence while none of all is written."""
        return self.records.all(state=LIVING)

    def blocks(self) -> Sequence[Block]:
        """What the fabric has now. Raises `Unavailable`."""
        return self._fabric.blocks()

    def promise(self, asked: Composition) -> Promise:
        """Return what is promised to one that waits, or would be to one that is not asked for yet. Raises `Unavailable`."""
        living = self.living()
        if self._line.living is not living:
            self._look(self._fabric.blocks(), living)
        return self._line.promises.get(asked.id) or self._promises(self._fabric.blocks(), living, asked)[asked.id]

    def awaited(self, names: Names, until: float) -> bool:
        """True when one of these blocks is promised to one that waits, before this moment."""
        return any(one.at < until + CHANGE_SECONDS and names & one.names for one in self._line.promises.values())

    def never(self, asked: Composition) -> str:
        """Return why the fabric never has what is asked for, not even if all is free and well; "" where it has."""
        found = ever(self._fabric.blocks(), _asked(asked))
        return found.message if isinstance(found, Shortage) else ""

    def turn(self) -> bool:
        """Do what can be done now; return whether anything was done. Raises `Unavailable` when the fabric does not answer."""
        blocks = self._fabric.blocks()
        with self._lock:
            moved = self._plan(blocks)
        there, zones = by_name(blocks), defaultdict[str, list[Composition]](list)
        for one in self.living():
            zones[one.zone].append(one)
        # Two changes at the same time in one zone are what fabrics refuse as busy.
        moved |= any([*self._each(lambda ones: sum(self._go_on(one, there) for one in ones) > 0, zones.values())])
        return self._sweep() or moved

    def release(self, composition: Composition, reason: str, then: CompositionState = CompositionState.COMPLETED) -> Composition:
        """Give the blocks of one back; the changes are written down, and done in a turn."""
        with self._lock:
            found = self.records.get(composition.id)
            if found is None or found.state.over:
                return found or composition
            if found.state is CompositionState.PENDING:
                return self._put(found, state=then, reason=reason, end=self.clock())
            if found.state is CompositionState.RUNNING and self._used(machine_name(found)):
                # Nothing new starts there from now on; what runs keeps its blocks.
                return self._put(found, end=min(found.end, self.clock()), ending=reason, then=then)
            return self._give_back(found, reason, then)

    # ---- plans

    def _plan(self, blocks: Sequence[Block]) -> bool:
        living, now = self.living(), self.clock()
        known, moved = self._look(blocks, living), False
        ahead = frozenset[str]()
        for one in living:
            if one.state is not CompositionState.PENDING:
                continue
            found = known.promises[one.id]
            if one.within and now >= one.submitted + one.within:
                reason = f"it was not there within {format_duration(one.within)}: {found.why or one.reason}"
                self._put(one, state=CompositionState.CANCELLED, reason=reason, end=now)
                continue
            if found.plan is not None and found.now:
                self._put(
                    one,
                    state=CompositionState.CONFIGURING,
                    reason="",
                    zone=found.plan.zone,
                    machine=found.plan.machine,
                    blocks=found.plan.blocks,
                    changes=found.plan.changes,
                )
                moved = True
            elif not found.possible and one.avoided:
                self._put(one, state=CompositionState.FAILED, reason=f"{found.why}; {one.reason}", end=now)
            else:
                self._call_back(one, blocks, living, ahead)
                if found.why != one.reason:
                    self._put(one, reason=found.why)
            ahead |= found.names
        self._line = replace(known, living=self.living())
        return moved

    def _look(self, blocks: Sequence[Block], living: Sequence[Composition]) -> _Line:
        """What those that wait get. With many blocks it takes a while to find, and is the same until something changes."""
        now, known = self.clock(), self._line
        if known.living is not living or known.blocks != blocks or known.until <= now:
            found = self._promises(blocks, living)
            until = min((one.at for one in found.values() if not one.now), default=inf)
            known = self._line = _Line(found, living, blocks, until)
        return known

    def _promises(self, blocks: Sequence[Block], living: Sequence[Composition], *more: Composition) -> Mapping[int, Promise]:
        """What those that wait get, in the order in which they came."""
        waiting = [*(one for one in living if one.state is CompositionState.PENDING), *more]
        if not waiting:
            return {}
        now = self.clock()
        uses = [Use(names=one.holds, until=self._back(one, now)) for one in living if one.holds]
        view = replaced(projected(blocks, _changes(living)), frozenset[str]().union(*(use.names for use in uses)))
        found = line(view, [_asked(one) for one in waiting], uses, now)
        return {one.id: promise for one, promise in zip(waiting, found, strict=True)}

    def _back(self, one: Composition, now: float) -> float:
        """When what one has comes back, as far as that is known."""
        if one.state is CompositionState.CONFIGURING:
            return now + one.time
        if one.state is CompositionState.COMPLETING:
            return inf if one.id in self._trouble else now
        # What is kept in case that another job like the last one comes is given back at once.
        return now if one.ending and not self._used(machine_name(one)) else one.end

    def _call_back(self, one: Composition, blocks: Sequence[Block], living: Iterable[Composition], ahead: Names) -> None:
        """Blocks of one's account that are lent to others come back, if that is what it waits for: what is in use, afterwards."""
        lent = {block.name for block in blocks if block.owner and block.owner == one.account}
        guests = [
            (other, names)
            for other in living
            if other.account != one.account and other.state is CompositionState.RUNNING and (names := lent & other.holds)
        ]
        if not guests:
            return
        back = frozenset[str]().union(*(names for _, names in guests))
        taken = frozenset[str]().union(*(other.holds for other in living)) | ahead
        found = find(replaced(projected(blocks, _changes(living)), back), _asked(one), taken=taken - back)
        for other, names in guests:
            if found is not None and not other.ending and names & found.names:
                self.release(other, f'account "{one.account}", which has lent blocks to it, asks for them')

    # ---- one composition

    def _go_on(self, one: Composition, blocks: Mapping[str, Block]) -> bool:
        """Do the next change of one; return whether something was done."""
        with self._lock:
            found = self.records.get(one.id)
            if found is None or found.state.over or found.state is CompositionState.PENDING:
                return False
            trouble = self._trouble.get(one.id)
            if trouble is not None and trouble.again > self.clock():
                return False
            if found.state is CompositionState.RUNNING:
                return self._keep(found, blocks)
            if not found.changes:
                return self._settle(found, blocks)
            if found.state is CompositionState.COMPLETING and self._used(machine_name(found)):
                return False  # a job came in the very moment in which it was to go
            change = found.changes[0]
        # The driver may take long: the lab is asked other things meanwhile. There is one turn at a time.
        words, unknown = "", False
        if not change.is_done(blocks):
            try:
                self._fabric.do(change, fence=self._fence)
            except Unavailable as error:
                words, unknown = str(error), not change.is_done(by_name(self._fabric.blocks()))
            except CarrelError as error:
                words = str(error)
                if not _is_gone(change, blocks):
                    return self._failed(found.id, change, words, sure=True)
        if unknown:
            return self._failed(found.id, change, words, sure=False)
        with self._lock:
            current = self.records.get(one.id)
            if current is not None and current.changes[:1] == (change,):
                self._trouble.pop(one.id, None)
                self._put(current, changes=current.changes[1:])
        return True

    def _failed(self, number: int, change: Change, words: str, *, sure: bool) -> bool:
        """A change was refused, or it is not known whether it was made: try again, take other blocks, or say so."""
        with self._lock:
            one = self.records.get(number)
            if one is None or one.changes[:1] != (change,):
                return False
            trouble = self._trouble.setdefault(number, _Trouble())
            trouble.times, trouble.words = trouble.times + 1, words
            trouble.again = self.clock() + RETRY_SECONDS
            reason = f"{change.title}: {words} (tried {trouble.times} times)"
            if one.state is CompositionState.CONFIGURING and (sure or trouble.times >= TRIES):
                return bool(self._again(one, change.of or change.block, f"{change.title}: {words}"))
            if reason != one.reason:
                self._put(one, reason=reason)
            return False

    def _again(self, one: Composition, block: str, words: str) -> Composition:
        """Give back what one has so far; it is then planned again without this block."""
        avoided = tuple(dict.fromkeys((*one.avoided, block)))
        then = CompositionState.PENDING if len(avoided) <= MOST_AVOIDED else CompositionState.FAILED
        return self._give_back(replace(one, avoided=avoided), words, then)

    def _give_back(self, one: Composition, reason: str, then: CompositionState) -> Composition:
        """Write down what has to be undone. A change that may have been made late is undone, too."""
        self._trouble.pop(one.id, None)
        self._settling.pop(one.id, None)
        self._idle.pop(one.id, None)
        if _MACHINE.fullmatch(one.machine):
            back = [Change(step=Step.DETACH, block=name, machine=one.machine) for name in reversed(one.blocks)]
        else:  # slices lie where they were cut, and are used again; one that may still be made is taken away
            back = [change.back for change in reversed(one.changes) if change.step is Step.CREATE_SLICE]
            unmade = {change.block for change in back}
            one = replace(one, blocks=tuple(name for name in one.blocks if name not in unmade))
        return self._put(one, state=CompositionState.COMPLETING, reason=reason, then=then, changes=tuple(back))

    def _settle(self, one: Composition, blocks: Mapping[str, Block]) -> bool:
        """All changes of one are made."""
        now = self.clock()
        if one.state is CompositionState.COMPLETING:
            self._trouble.pop(one.id, None)
            again = one.then is CompositionState.PENDING
            self._put(
                one,
                state=one.then,
                zone="" if again else one.zone,
                machine="" if again else one.machine,
                blocks=() if again else one.blocks,
                end=0.0 if again else now,
                then=CompositionState.COMPLETED,
            )
            self._changed()
            return True
        unseen = [name for name in one.blocks if name not in blocks or not blocks[name].seen]
        if unseen:
            since = self._settling.setdefault(one.id, now)
            reason = f"{one.machine} does not see {', '.join(unseen)} yet"
            if now - since > SEEN_SECONDS:
                self._again(one, unseen[0], f"{one.machine} has not seen {unseen[0]} for {SEEN_SECONDS:.0f} s")
                return True
            if reason != one.reason:
                self._put(one, reason=reason)
            return False
        self._settling.pop(one.id, None)
        self._put(one, state=CompositionState.RUNNING, reason="", begin=now, end=now + one.time)
        self._changed()
        return True

    def _keep(self, one: Composition, blocks: Mapping[str, Block]) -> bool:
        """The machine of one is there: its time may be over, it may not be used, or a block may have failed."""
        now = self.clock()
        used = self._used(machine_name(one))
        faults = [fault for name in one.blocks if (fault := _fault(name, one, blocks))]
        if used and now >= one.end:
            faults.append(f"{one.ending or 'its time is over'}; it goes when the jobs on it have ended")
        if (reason := "; ".join(faults)) != one.reason:
            one = self._put(one, reason=reason)
        if used:
            self._idle.pop(one.id, None)
            return False
        if now >= one.end:
            self._give_back(one, one.ending or "its time was over", one.then)
            return True
        since = self._idle.setdefault(one.id, now)
        if one.linger and now - since >= one.linger:
            self._give_back(one, f"no job used it for {one.linger} s", CompositionState.COMPLETED)
            return True
        return False

    def _sweep(self) -> bool:
        """Detach blocks that came to a machine after it was given back: a change whose answer was lost may be made late."""
        holders = {name: one.machine for one in self.living() for name in one.holds}
        moved = False
        for block in self._fabric.blocks():
            match = None if block.fixed or block.of else _MACHINE.fullmatch(block.machine)
            if match is None or holders.get(block.name) == block.machine or self.records.get(int(match[1])) is None:
                continue
            try:
                self._fabric.do(Change(step=Step.DETACH, block=block.name, machine=block.machine), fence=self._fence)
                moved = True
            except CarrelError as error:
                _log.warning(
                    "%s lies in %s, which no composition has, and cannot be detached: %s", block.name, block.machine, error
                )
        return moved

    def _put(self, one: Composition, **fields: object) -> Composition:
        return self.records.put(replace(one, **fields))  # type: ignore[arg-type]


def replaced(blocks: Sequence[Block], names: Names) -> Sequence[Block]:
    """Return the blocks as they are when these have been given back."""
    return [
        replace(block, machine="", seen=True) if block.name in names and not block.fixed and not block.of else block
        for block in blocks
    ]


def _asked(one: Composition) -> Asked:
    return Asked(
        wishes=one.wishes,
        number=one.id,
        machine=machine_name(one),
        account=one.account,
        time=one.time,
        avoid=frozenset(one.avoided),
    )


def _changes(living: Iterable[Composition]) -> Iterable[Change]:
    return (change for one in living for change in one.changes)


def _fault(name: str, one: Composition, blocks: Mapping[str, Block]) -> str:
    block = blocks.get(name)
    if block is None:
        return f"{name} is missing"
    if not block.fixed and not block.of and block.machine != one.machine:
        return f"{name} is in {block.machine or 'no machine'}"
    return f"{name}: {block.fault}" if block.fault else ""


def _is_gone(change: Change, blocks: Mapping[str, Block]) -> bool:
    """True where there is nothing to undo: the block is not in the fabric any more."""
    return change.step in (Step.DETACH, Step.DESTROY_SLICE) and change.block not in blocks

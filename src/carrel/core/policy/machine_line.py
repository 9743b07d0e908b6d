"""Which of the machines that were asked for are made now, and when the others should be there.

They are looked at in the order in which they were asked for. One for which there are no blocks now is promised some: those of
the first moment at which there is a plan, if what is in use comes back when its time is over. A later one is made now, or is
promised something, only where it takes nothing of what is promised before it, or will have given it back by then. So the first
that waits waits no longer because of those behind it. (Slurm's sched/backfill does this with nodes.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from carrel.core.domain.fabric import SLICE, Block
from carrel.core.domain.units import format_duration
from carrel.core.policy.compose import Plan, ever, find, shortage
from carrel.core.policy.free_blocks import Asked, projected

#: Seconds that making and taking apart may take together: a machine is over so long before what it has is promised to another.
CHANGE_SECONDS = 300.0
#: Seconds after which something should be back whose time is over already.
SOON = 1.0
#: So many of those that wait are promised something. Those behind them are made when there is room beside that.
MOST_PROMISED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Blocks that somebody has, and until when; infinite: that is not known."""

    names: frozenset[str]
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What one that was asked for gets, and when: now, later, or at an infinite moment and without a plan: that is not known."""

    at: float
    plan: Plan | None = None
    #: When all of it is back.
    until: float = inf
    #: Why it is not made now.
    why: str = ""
    #: False where the fabric never has it, not even if all is free and well.
    possible: bool = True

    @property
    def now(self) -> bool:
        """True when it is made now."""
        return self.plan is not None and not self.why

    @property
    def names(self) -> frozenset[str]:
        """The blocks that it is promised."""
        return frozenset() if self.plan is None else self.plan.names


def line(blocks: Sequence[Block], asked: Sequence[Asked], uses: Sequence[Use], now: float) -> Sequence[Promise]:
    """Return what each gets, in the order in which they were asked for.

    Blocks that somebody has are among `blocks` as if they were free: `uses` says that they are not.
    """
    found = _Line(blocks, uses, now)
    for one in asked:
        found.line.append((one.number, found.promise(one)))
    return [promise for _, promise in found.line]


class _Line:
    """Those that were looked at so far, and what is in use."""

    def __init__(self, blocks: Sequence[Block], uses: Sequence[Use], now: float) -> None:
        self._blocks, self._now = blocks, now
        self._uses = [replace(use, until=max(use.until, now + SOON)) for use in uses]
        #: Now, and when something comes back.
        self._moments = sorted({now, *(use.until for use in self._uses if use.until < inf)})
        #: The number of each, and what it gets.
        self.line: list[tuple[int, Promise]] = []

    def promise(self, asked: Asked) -> Promise:
        """What the next one gets."""
        if plan := self._at(self._now, asked):
            return self._promised(asked, self._now, plan)
        begun = [one for _, one in self.line if one.now]
        waiting = [(number, one) for number, one in self.line if one.plan and not one.now]
        if free := self._find(asked, self._now, begun):
            wide = {_whole(name) for name in free.names}
            first = next((number for number, one in waiting if wide & {_whole(name) for name in one.names}), waiting[0][0])
            why = f"needs {asked.titles} for {format_duration(asked.time)}; what is free is kept for machine {first}"
        else:
            short = shortage(self._blocks, asked, taken=self._used(self._now).union(*(one.names for one in begun)))
            if not short.possible:
                return Promise(at=inf, why=short.message, possible=False)
            why = short.message
        if len(waiting) < MOST_PROMISED:
            # What is in use only comes back: before this moment there is no plan even if nothing is promised.
            least = bisect_left(self._moments, True, key=lambda at: self._find(asked, at, ()) is not None)
            moments = {*self._moments[least:], *(one.until for _, one in self.line if one.plan)} if self._moments[least:] else ()
            for at in sorted(at for at in moments if at >= self._moments[least]):
                if plan := self._at(at, asked):
                    return self._promised(asked, at, plan, why)
            why = "; ".join([why, *self._unfit(asked)])
        return Promise(at=inf, why=why)

    def _promised(self, asked: Asked, at: float, plan: Plan, why: str = "") -> Promise:
        return Promise(at=at, plan=plan, until=at + asked.time, why=why)

    def _at(self, at: float, asked: Asked) -> Plan | None:
        """The plan for one that is there from this moment on until its time is over."""
        until = at + asked.time + CHANGE_SECONDS
        return self._find(asked, at, [one for _, one in self.line if one.at < until and at < one.until])

    def _find(self, asked: Asked, at: float, beside: Sequence[Promise]) -> Plan | None:
        """The plan at a moment beside what is in use then and these promises."""
        changes = [change for one in beside if one.plan for change in one.plan.changes]
        return find(projected(self._blocks, changes), asked, taken=self._used(at).union(*(one.names for one in beside)))

    def _used(self, at: float) -> frozenset[str]:
        return frozenset[str]().union(*(use.names for use in self._uses if use.until > at))

    def _unfit(self, asked: Asked) -> Sequence[str]:
        """What keeps it from ever being made, beside what is in use."""
        whole = ever(self._blocks, asked)
        names = whole.names if isinstance(whole, Plan) else frozenset()
        there = [block for block in self._blocks if block.name in names]
        return [
            f"{block.name}: {block.fault or 'its machine does not see it'}" for block in there if block.fault or not block.seen
        ]


def _whole(name: str) -> str:
    """The block that a slice is cut from."""
    return name.partition(SLICE)[0]

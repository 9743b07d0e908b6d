"""Machines made from parts for one user, for a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.fabric import BlockKind, Change, Wish
from carrel.core.domain.noun import Moment, UnknownMoment, derived, given, private, shown, stamped
from carrel.core.domain.units import format_count


class CompositionState(StrEnum):
    """Where a composition is; the words are Slurm's."""

    #: It waits for blocks.
    PENDING = "PENDING"
    #: Its changes are being made.
    CONFIGURING = "CONFIGURING"
    #: The machine is there.
    RUNNING = "RUNNING"
    #: Its blocks are given back.
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def over(self) -> bool:
        """True when it has no blocks and gets none."""
        return self in (CompositionState.COMPLETED, CompositionState.CANCELLED, CompositionState.FAILED)


#: The states of those that have blocks or wait for some, and those of the others.
LIVING, OVER = (tuple(state.value for state in CompositionState if state.over is over) for over in (False, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRules:
    """What an administrator says of machines from parts."""

    #: Seconds for which one is kept at most, and how many one user has at the same time.
    longest: int = 0
    machines: int = 0
    #: GPUs and slices of GPUs in those of one user together; 0: as many as there are.
    max_gpus_per_user: int = 0
    #: Of one that was made for a job: seconds for which it stays when the job is over, for another one that asks for the same;
    #: and that it is there in any case.
    linger: int = 0
    shortest: int = 0

    def refuses(self, mine: Collection[Composition], wishes: Iterable[Wish]) -> str:
        """Return why a user with these machines cannot have another one, as the end of a sentence about them; "" if they can."""
        if len(mine) >= self.machines:
            return f"has {format_count(len(mine), 'machine')} from parts, and may have {self.machines}"
        have, more = sum(gpus_of(one.wishes) for one in mine), gpus_of(wishes)
        if self.max_gpus_per_user and more and have + more > self.max_gpus_per_user:
            asks = f"has {have} GPUs and slices in machines from parts and asks for {more} more" if have else f"asks for {more}"
            return f"{asks}, and may have {self.max_gpus_per_user}{'' if have else ' GPUs and slices in machines from parts'}"
        return ""


def gpus_of(wishes: Iterable[Wish]) -> int:
    """Return how many GPUs and slices of GPUs are asked for."""
    return sum(wish.count for wish in wishes if wish.kind is BlockKind.GPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Blocks that one user has as a machine, from when they are attached until they are given back."""

    id: int = 0
    wishes: tuple[Wish, ...]
    #: Seconds for which the machine is kept, from when it is there.
    time: int
    #: What it is for.
    name: str = ""
    #: Seconds without a job after which the blocks go back before their time; 0: they stay.
    linger: int = 0
    #: Seconds after which it is not wanted any more if it still waits; 0: it waits for as long as it takes.
    within: int = 0
    #: True to be told what would be taken, and when; nothing is kept.
    preview: bool = given(default=False)

    owner: str = stamped(default="")
    account: str = stamped(default="")
    #: The job for which it is made, that alone runs on it; 0: its owner's jobs do.
    job: int = stamped(default=0)
    state: CompositionState = stamped(default=CompositionState.PENDING)
    #: Why it waits, what is being done, or why it ended.
    reason: str = stamped(default="")
    zone: str = stamped(default="")
    machine: str = stamped(default="")
    blocks: tuple[str, ...] = stamped(default=())
    submitted: Moment = stamped(default=0.0)
    #: When the machine was there, and when it is (or was) given back; 0: not yet known.
    begin: UnknownMoment = stamped(default=0.0)
    end: UnknownMoment = stamped(default=0.0)
    #: What is left to do to the fabric, in order; written down before the first is done.
    changes: tuple[Change, ...] = private(default=())
    #: Where it goes when its blocks are given back.
    then: CompositionState = private(default=CompositionState.COMPLETED)
    #: Why it is given back before its time, once the jobs on it are over.
    ending: str = private(default="")
    #: Blocks with which it was tried and failed.
    avoided: tuple[str, ...] = private(default=())
    #: When it should be there, as things stand; 0: that is not known.
    expected: UnknownMoment = derived(default=0.0)
    #: What is left to do to the fabric, in words.
    steps: tuple[str, ...] = derived(default=())

    @shown
    def asked(self) -> str:
        """The wishes in words."""
        return ", ".join(wish.title for wish in self.wishes)

    @property
    def holds(self) -> frozenset[str]:
        """Blocks that no other composition may get: those that it has, and those of changes that are under way."""
        return frozenset(self.blocks) | {change.block for change in self.changes}

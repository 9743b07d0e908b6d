"""When a notebook gives its GPUs back: the modes that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TypeAlias

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import LendingRules


class IdleState(StrEnum):
    """What becomes of a session's GPU state when its GPUs are given back."""

    #: It is gone; the user runs earlier cells again, which takes a time that nobody recorded and that is not counted.
    LOST = "lost"
    #: It is moved to host memory at once.
    MOVED = "moved"
    #: It stays until the GPUs are needed; then the least recently used states are moved to host memory.
    STAYS = "stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMode:
    """GPUs are lent from one pool, first come, first served."""

    name: str
    #: Seconds for which a session that computes nothing keeps its GPUs; infinite: until it is shut down.
    keep: float
    fate: IdleState

    def __post_init__(self) -> None:
        if not self.keep >= 0:
            raise Invalid(f"Idle GPUs are kept for {self.keep:g} s.", remedy="Give 0 s or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMode:
    """The broker's own policy (`carrel.core.policy.lend`) lends the GPUs of one node; each session has an owner of its own.

    Unlike a pool, it brings a state back to the GPUs that it came from and, unless homes move, no others; it lets those pass who
    want other GPUs, and suspends cells in mid-flight when their time slice is over and others wait.
    """

    name: str = "carrel"
    rules: LendingRules = field(default_factory=LendingRules)
    #: Share of a GPU's memory that one state takes, and that a session without state asks for.
    state_share: float = 1.0
    #: True: a state in host memory comes back on any GPU that is free.
    homes_move: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.state_share <= 1:
            raise Invalid(f"A state takes {self.state_share:g} of a GPU.", remedy="Give more than 0, and 1 at most.")


Mode: TypeAlias = PoolMode | PolicyMode

#: A session takes its GPUs when it opens and has them until it is shut down.
RESERVATION = PoolMode(name="reservation", keep=inf, fate=IdleState.LOST)
#: GPUs only while a cell runs; the state is moved off after each.
EAGER = PoolMode(name="lease per cell, eager", keep=0.0, fate=IdleState.MOVED)
#: GPUs only while a cell runs; the state stays until somebody needs the room.
LAZY = PoolMode(name="lease per cell, lazy", keep=0.0, fate=IdleState.STAYS)
#: As LAZY, but by the code of the broker itself.
CARREL = PolicyMode()


def cull(minutes: float) -> PoolMode:
    """As RESERVATION, but a session that has computed nothing for `minutes` loses its GPUs and what is on them."""
    return PoolMode(name=f"cull after {minutes:g} min", keep=minutes * 60, fate=IdleState.LOST)

"""What the lab itself knows of the period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hours of GPUs, added up from attempts, cells and calls."""

    #: By what came of them, as `carrel.core.gpu_use.End` has it.
    held: Mapping[str, Fraction] = field(default_factory=dict)
    #: What cells and calls borrowed, beside that.
    lent: Fraction = Fraction(0)
    #: Hours held in which GPUs were measured, and for how much of them a kernel ran.
    observed: Fraction = Fraction(0)
    busy: Fraction = Fraction(0)
    #: Held and lent, by user and by account.
    users: Mapping[str, Fraction] = field(default_factory=dict)
    accounts: Mapping[str, Fraction] = field(default_factory=dict)
    #: Accounts of which a report without names does not tell: fewer than five people used them, or told with such.
    small: frozenset[str] = frozenset()
    #: How many jobs waited or had a place.
    jobs: int = 0
    #: Of the jobs that publications cite: the state in which they are; None where the lab does not know them.
    cited: Mapping[int, str | None] = field(default_factory=dict)
    #: What the figures are taken from.
    source: str

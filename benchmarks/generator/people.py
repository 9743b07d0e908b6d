"""Who submits how much, and how often somebody submits the same again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, log

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import TraceJob

#: Users where a trace does not name them.
USERS = 40
#: Exponent of their activity then: Zipf's own.
ACTIVITY = 1.0
#: Share of jobs with a name that their user never used before, where a trace does not say. About two jobs of three are then of a
#: name that runs five times or more, as Q. Weng et al. found of tasks ("MLaaS in the Wild", NSDI'22).
NOVELTY = 0.25
_STEEPEST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The users of a lab."""

    users: int = USERS
    #: The n-th most active user submits in proportion to ``n ** -activity`` (Zipf).
    activity: float = ACTIVITY
    #: Share of jobs with a new name; the others repeat one of their user's latest.
    novelty: float = NOVELTY

    def __post_init__(self) -> None:
        if self.users < 1:
            raise Invalid(f"There are {self.users} users.", remedy="Give 1 or more.")
        if not 0 <= self.activity <= _STEEPEST:
            raise Invalid(f"The exponent of activity is {self.activity:g}.", remedy=f"Give 0 to {_STEEPEST:g}.")
        if not 0 < self.novelty <= 1:
            raise Invalid(f"The share of jobs with a new name is {self.novelty:g}.", remedy="Give more than 0, at most 1.")

    def weights(self) -> Sequence[float]:
        """Add up the activity of users, most active first, for `Random.choices`."""
        return list(accumulate(rank**-self.activity for rank in range(1, self.users + 1)))


def fit_people(jobs: Sequence[TraceJob]) -> People:
    """Measure who submitted; what the trace does not say is as by default.

    A trace with one user names nobody, and one in which all jobs of all users have one name says nothing about names.
    """
    counts = sorted(Counter(job.user for job in jobs).values(), reverse=True)
    if len(counts) < 2:
        return People()
    named = len({job.name for job in jobs}) > 1
    return People(
        users=len(counts),
        activity=_exponent(counts),
        novelty=round(len({(job.user, job.name) for job in jobs}) / len(jobs), 4) if named else NOVELTY,
    )


def _exponent(counts: Sequence[int]) -> float:
    """Return the exponent under which `counts`, largest first, are most likely, to three digits after the point."""
    logs = [log(rank) for rank in range(1, len(counts) + 1)]
    found = fsum(count * one for count, one in zip(counts, logs, strict=True)) / sum(counts)
    low, high = 0.0, _STEEPEST
    # The mean of log(rank) falls as the exponent grows; the likelihood is largest where it is the one that was found.
    for _ in range(50):
        middle = (low + high) / 2
        weights = [(1.0 + rank) ** -middle for rank in range(len(counts))]
        mean = fsum(weight * one for weight, one in zip(weights, logs, strict=True)) / fsum(weights)
        low, high = (middle, high) if mean > found else (low, middle)
    return round(low, 3)

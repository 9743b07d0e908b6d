"""The rest of a team's limits, and the moment at which there is more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from carrel.core.domain.challenge import ChallengeSubmission, Fault, Phase, SubmissionState
from carrel.core.domain.errors import Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Submissions that a team has more than the phase says, or fewer."""

    today: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The rest of a team's limits in a phase."""

    phase: Phase
    today: int
    total: int
    at_once: int
    failures: int
    #: When the day ends by which the limits go (Unix seconds).
    next_day: float

    def check(self) -> None:
        """Raise `Conflict` where nothing is left, with what was used up and when there is more."""
        limits, name = self.phase.limits, self.phase.name
        tomorrow = f"The next day begins at {_told(self.next_day)}."
        if self.total <= 0:
            raise Conflict(
                f'The {limits.total} submissions of the phase "{name}" are used up.', remedy="There are no more in this phase."
            )
        if self.today <= 0:
            raise Conflict(f"The {limits.per_day} submissions of today are used up.", remedy=tomorrow)
        if self.failures <= 0:
            raise Conflict(
                f"{limits.failures_per_day} submissions failed today.",
                remedy=f"Try the code on the training data first. {tomorrow}",
            )
        if self.at_once <= 0:
            raise Conflict(
                f"{limits.at_once} of the team's submissions {'has' if limits.at_once == 1 else 'have'} not ended yet.",
                remedy="Send the next one when it has.",
            )


def left(
    phase: Phase,
    submissions: Iterable[ChallengeSubmission],
    *,
    now: float,
    zone: str,
    extra: Extra = Extra(),
) -> Left:
    """Return what is left to a team in `phase`; `submissions` are all that it has sent, `extra` is what organisers gave it.

    A submission counts from the moment when it was sent. One that failed counts no more: by the lab it costs nothing, else it is
    a failure, also of the organiser's programs, for a team can make these fail. A day is one of the challenge's zone.
    """
    here = ZoneInfo(zone)
    day = datetime.fromtimestamp(now, here).date()
    begin, end = (datetime.combine(day + timedelta(days=days), datetime.min.time(), here).timestamp() for days in (0, 1))
    mine = [one for one in submissions if one.phase == phase.name]
    counted = [one for one in mine if one.state is not SubmissionState.FAILED]
    failed = [one for one in mine if one.state is SubmissionState.FAILED and one.fault is not Fault.LAB]
    limits = phase.limits
    limits = replace(limits, per_day=max(0, limits.per_day + extra.today), total=max(0, limits.total + extra.total))

    def today(found: Iterable[ChallengeSubmission]) -> int:
        return sum(begin <= one.made_at < end for one in found)

    return Left(
        phase=replace(phase, limits=limits),
        today=limits.per_day - today(counted),
        total=limits.total - len(counted),
        at_once=limits.at_once - sum(not one.state.ended for one in mine),
        failures=limits.failures_per_day - today(failed),
        next_day=end,
    )


def _told(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%H:%M (%Z) on %-d %B")

"""The rest of a team's limits, and the moment at which there is more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from carrel.core.domain.challenge import ChallengeSubmission, Fault, Phase, PhaseView, SubmissionState
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
    #: Of the challenge's days.
    zone: str = "UTC"
    #: GPU-hours; None: they are not limited.
    gpu_hours: float | None = None

    def check(self, most: float = 0.0) -> None:
        """Raise `Conflict` where nothing is left for a submission of at most so many GPU-hours, with when there is more."""
        limits, name = self.phase.limits, self.phase.name
        tomorrow = f"The next day begins at {told(self.next_day, self.zone)}."
        if self.total <= 0:
            raise Conflict(
                f'The {limits.total} submissions of the phase "{name}" are used up.', remedy="There are no more in this phase."
            )
        if self.today <= 0:
            raise Conflict(f"The {limits.per_day} submissions of today are used up.", remedy=tomorrow)
        if self.at_once <= 0:
            raise Conflict(
                f"{limits.at_once} of the team's submissions {'has' if limits.at_once == 1 else 'have'} not ended yet.",
                remedy="Send the next one when it has.",
            )
        going_on = self.at_once < limits.at_once
        if self.failures <= 0:
            raise Conflict(
                f"{limits.failures_per_day} submissions failed today{' or have not ended yet' if going_on else ''}.",
                remedy=f"Try the code on the training data first. {tomorrow}",
            )
        if self.gpu_hours is not None and most > self.gpu_hours:
            raise Conflict(
                f"A submission may take {most:g} GPU-hours, and {self.gpu_hours:g} of the {limits.gpu_hours:g} of the phase "
                f'"{name}" are left.',
                remedy="One that has not ended counts with all that it may take: look again when it has."
                if going_on
                else "There are no more in this phase.",
            )


def left(
    phase: Phase,
    submissions: Iterable[ChallengeSubmission],
    *,
    now: float,
    zone: str,
    extra: Extra = Extra(),
) -> Left:
    """Return what is left to a team in `phase`; `submissions` are all that count for it
    (`carrel.core.challenges.teams`), `extra` is what organisers gave it.

    A submission counts from the moment when it was sent. One that failed counts no more: by the lab it costs nothing, else it is
    a failure, also of the organiser's programs, for a team can make these fail; its GPU-hours count. A day is one of the
    challenge's zone.
    """
    here = ZoneInfo(zone)
    day = datetime.fromtimestamp(now, here).date()
    begin, end = (day_begins(day + timedelta(days=days), here) for days in (0, 1))
    mine = [one for one in submissions if one.phase == phase.name]
    counted = [one for one in mine if one.state is not SubmissionState.FAILED]
    # What goes on may fail yet: so many are kept for it.
    failed = [one for one in mine if not one.state.ended or (one.state is SubmissionState.FAILED and one.fault is not Fault.LAB)]
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
        zone=zone,
        gpu_hours=None if limits.gpu_hours is None else round(limits.gpu_hours - sum(map(_gpu_hours, mine)), 2),
    )


def phase_view(
    phase: Phase,
    submissions: Iterable[ChallengeSubmission] | None,
    *,
    most: float,
    now: float,
    zone: str,
    extra: Extra = Extra(),
) -> PhaseView:
    """Return a phase as a team sees it that sends submissions of at most so many GPU-hours; None: its reader has no team."""
    view = PhaseView(name=phase.name, begin=phase.begin, end=phase.end, limits=phase.limits, final=phase.final)
    if submissions is None or phase.final is not None:
        return view
    rest, refusal = left(phase, submissions, now=now, zone=zone, extra=extra), ""
    if phase.begin <= now < phase.end:
        try:
            rest.check(most)
        except Conflict as error:
            refusal = f"{error.message} {error.remedy}"
    total = max(0, rest.total)
    return replace(
        view,
        today=min(total, max(0, rest.today)),
        total=total,
        at_once=max(0, rest.at_once),
        next_day=rest.next_day,
        failures=max(0, rest.failures),
        gpu_hours=None if rest.gpu_hours is None else max(0.0, rest.gpu_hours),
        refusal=refusal,
    )


def day_begins(day: date, zone: ZoneInfo) -> float:
    """Return the moment at which a day begins: where its midnight is left out, that at which clocks go forward."""
    return datetime.combine(day, datetime.min.time(), zone).timestamp()


def told(moment: float, zone: str) -> str:
    """Return a moment in words, on the clock of a zone."""
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime(f"%H:%M on %-d %B %Y ({zone})")


def _gpu_hours(one: ChallengeSubmission) -> float:
    return 0.0 if one.fault is Fault.LAB else one.gpu_hours

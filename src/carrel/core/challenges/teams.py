"""Teams: what counts against the limits of one, and when two become one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar
from zoneinfo import ZoneInfo

from carrel.core.challenges.limits import day_begins, told
from carrel.core.domain.challenge import ChallengeSpec, ChallengeSubmission, Phase, SubmissionState, Team
from carrel.core.domain.challenge_sample import ChallengeSample
from carrel.core.domain.errors import Conflict

#: What counts for a team, and for those who were in it then.
Sent = TypeVar("Sent", ChallengeSubmission, ChallengeSample)


def present(teams: Iterable[Team]) -> Sequence[Team]:
    """Return the teams that are no part of another one."""
    teams = list(teams)
    gone = {name for team in teams for name in team.merged}
    return [team for team in teams if team.name not in gone]


def renamed(submissions: Iterable[ChallengeSubmission], teams: Iterable[Team]) -> Iterable[ChallengeSubmission]:
    """Return the submissions under the names of the teams whose they are now."""
    now: Mapping[str, str] = {name: team.name for team in present(teams) for name in team.merged}
    return [replace(one, team=now[one.team]) if one.team in now else one for one in submissions]


def others_of(team: Team, teams: Iterable[Team]) -> frozenset[str]:
    """Return the names of other teams that members of this one were in."""
    members = set(team.members)
    return frozenset(name for one in teams if members & set(one.former) for name in one.names) - team.names


def counted(team: Team, sent: Iterable[Sent]) -> Sequence[Sent]:
    """Return what counts against the limits of a team: its own, and what others sent while a member of it was there."""
    members = set(team.members)
    return [one for one in sent if one.team in team.names or members & set(one.members)]


def without(team: Team, subject: str, code: str) -> Team:
    """Return the team as a member leaves it: who is left gets a new code."""
    members = tuple(one for one in team.members if one != subject)
    former = tuple(dict.fromkeys((*team.former, subject)))
    return replace(team, members=members, former=former, code=code, asked=team.asked if members else "")


def together(team: Team, other: Team) -> Team:
    """Return the team with the other one as a part of it: this one value is all that is written down."""
    return replace(
        team,
        members=tuple(dict.fromkeys((*team.members, *other.members))),
        former=tuple(dict.fromkeys((*team.former, *other.former))),
        merged=(*team.merged, other.name, *other.merged),
        asked="" if team.asked == other.name else team.asked,
        chosen=(*team.chosen, *other.chosen),
        accepted={**other.accepted, **team.accepted},
        answers={**other.answers, **team.answers},
    )


def check_size(spec: ChallengeSpec, team: Team, more: int) -> None:
    """Raise `Conflict` where so many more members are too many."""
    there = len(team.members)
    if there + more > spec.largest_team:
        raise Conflict(
            f'The team "{team.name}" has {there} members, and would have {there + more}: a team has {spec.largest_team} at most.'
        )


def check_merging(spec: ChallengeSpec, now: float) -> None:
    """Raise `Conflict` where teams do not merge any more."""
    finals = [phase.begin for phase in spec.phases if phase.final is not None]
    until = min([*finals, *([] if spec.merge_until is None else [spec.merge_until])], default=None)
    if until is not None and now >= until:
        raise Conflict(f"Teams could merge until {told(until, spec.zone)}.", remedy="Go on as two teams.")


def check_ladder(spec: ChallengeSpec, brought: Iterable[ChallengeSubmission], now: float) -> None:
    """Raise `Conflict` where a person with these submissions of another team would climb a ladder from its foot again."""
    phases = {one.name for one in spec.phases if spec.ladder and spec.ladder.holds(one.name) and now < one.end}
    if found := sorted(phases & {one.phase for one in brought}):
        raise Conflict(
            f'You have sent something in the phase "{found[0]}" in another team, and scores move in steps there.',
            remedy="Go back to that team, and have both teams merge.",
        )


def check_sum(spec: ChallengeSpec, submissions: Sequence[ChallengeSubmission], now: float) -> None:
    """Raise `Conflict` where these, of two teams together, are more than one team could have sent until now.

    The rule of Kaggle's competitions: together they have sent at most the number of a day times the days so far.
    """
    for phase in spec.phases:
        if phase.begin > now or phase.final is not None:
            continue
        mine = [one for one in submissions if one.phase == phase.name]
        sent = sum(one.state is not SubmissionState.FAILED for one in mine)
        days, limits = _days(phase, spec.zone, now), phase.limits
        if sent > min(limits.per_day * days, limits.total):
            raise Conflict(
                f'Together you have sent {sent} submissions in the phase "{phase.name}". One team could have sent '
                f"{min(limits.per_day * days, limits.total)}: {limits.per_day} on each of {days} days, {limits.total} in all.",
                remedy=_when(phase, spec.zone, sent),
            )
        if limits.gpu_hours is not None and round(sum(one.gpu_hours for one in mine), 2) > limits.gpu_hours:
            raise Conflict(f'Together you have used more than the {limits.gpu_hours:g} GPU-hours of the phase "{phase.name}".')


def _days(phase: Phase, zone: str, now: float) -> int:
    here = ZoneInfo(zone)
    first, last = (datetime.fromtimestamp(moment, here).date() for moment in (phase.begin, min(now, phase.end - 1)))
    return (last - first).days + 1


def _when(phase: Phase, zone: str, sent: int) -> str:
    """From when on so many are not too many."""
    first, days = datetime.fromtimestamp(phase.begin, ZoneInfo(zone)).date(), math.ceil(sent / phase.limits.per_day)
    moment = day_begins(first + timedelta(days=days - 1), ZoneInfo(zone))
    possible = sent <= phase.limits.total and moment < phase.end
    return f"From {told(moment, zone)} on you can, if neither sends anything." if possible else "Go on as two teams."

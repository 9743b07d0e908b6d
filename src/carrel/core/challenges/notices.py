"""Notices of a challenge: who reads one, what a new version changes, and what a team has more by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from carrel.core.challenges.limits import Extra
from carrel.core.domain.challenge import ChallengeSpec, Limits, Phase
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeKind

_WORDS = {"per_day": "a day", "total": "in all", "at_once": "at once", "failures_per_day": "failures a day"}


def seen(
    notice: ChallengeNotice, subject: str, team: str, *, organises: bool, versions: Collection[str] = ()
) -> ChallengeNotice | None:
    """Return what a reader sees of a notice; None: nothing. `team` is the reader's, "" if there is none.

    The line of a change is written before the change: a lab that is killed between the two has one for a version that is not
    among the published `versions`.
    """
    if notice.version and notice.version not in versions:
        return None
    if organises or notice.kind in (NoticeKind.ANNOUNCEMENT, NoticeKind.CHANGE):
        return notice
    if notice.kind is NoticeKind.QUOTA:
        return notice if team == notice.team else None
    if notice.by == subject:
        return notice
    return replace(notice, by="") if notice.published else None


def extra(notices: Iterable[ChallengeNotice], names: Collection[str], phase: str, *, now: float, zone: str) -> Extra:
    """Return how many submissions the team of these names has more: in the phase, and on the day of now in the zone."""
    here = ZoneInfo(zone)
    mine = [one for one in notices if one.kind is NoticeKind.QUOTA and one.team in names and one.phase == phase]
    day = datetime.fromtimestamp(now, here).date()
    today = (one.today for one in mine if datetime.fromtimestamp(one.made_at, here).date() == day)
    return Extra(today=sum(today), total=sum(one.total for one in mine))


def changes(old: ChallengeSpec, new: ChallengeSpec, *, rules_differ: bool) -> Sequence[str]:
    """Return what differs of dates, limits and rules, old → new, in the zone of the new version."""
    zone, before = ZoneInfo(new.zone), {phase.name: phase for phase in old.phases}
    found = [f'the phase "{name}" is gone' for name in before if new.phase(name) is None]
    for phase in new.phases:
        known = before.get(phase.name)
        if known is None:
            found.append(f'new phase "{phase.name}", {_told(phase.begin, zone)} to {_told(phase.end, zone)}')
        elif parts := _differences(known, phase, zone):
            found.append(f"{phase.name}: {', '.join(parts)}")
    if old.zone != new.zone:
        found.append(f"days are those of {new.zone} (were of {old.zone})")
    if old.largest_team != new.largest_team:
        found.append(f"members of a team {old.largest_team} → {new.largest_team}")
    if rules_differ:
        found.append("the rules are others: they have to be accepted again before the next submission")
    return found


def _differences(old: Phase, new: Phase, zone: ZoneInfo) -> Sequence[str]:
    dates = [("begins", old.begin, new.begin), ("ends", old.end, new.end)]
    found = [f"{word} {_told(then, zone)} → {_told(now, zone)}" for word, then, now in dates if then != now]
    return [*found, *_limits(old.limits, new.limits)]


def _limits(old: Limits, new: Limits) -> Sequence[str]:
    pairs = ((words, getattr(old, key), getattr(new, key)) for key, words in _WORDS.items())
    return [f"{words} {then} → {now}" for words, then, now in pairs if then != now]


def _told(moment: float, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%d %H:%M %Z")

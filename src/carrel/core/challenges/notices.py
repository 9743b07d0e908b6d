"""Notices of a challenge: who reads one, what a new version changes, and what a team has more by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from carrel.core.challenges.limits import Extra
from carrel.core.domain.challenge import ChallengeSpec, Final, Limits, Phase, Team
from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeKind

_WORDS = {
    "per_day": "a day",
    "total": "in all",
    "at_once": "at once",
    "failures_per_day": "failures a day",
    "gpu_hours": "GPU-hours",
}


def seen(
    notice: ChallengeNotice, subject: str, names: Collection[str], *, organises: bool, versions: Sequence[str] = ()
) -> ChallengeNotice | None:
    """Return what a reader sees of a notice; None: nothing. `names` are those of the reader's team, () if there is none.

    The line of a change is written before the change: a lab that is killed between the two has one for a version that is not
    among the published `versions`. Its digest, with which guessed labels could be confirmed, is for organisers alone.
    """
    if notice.version and notice.version not in versions:
        return None
    if organises:
        return notice
    if notice.kind is NoticeKind.CHANGE:
        return replace(notice, version=str(versions.index(notice.version) + 1) if notice.version else "")
    if notice.kind is NoticeKind.QUOTA:
        return notice if notice.team in names else None
    if notice.kind is NoticeKind.ANNOUNCEMENT or notice.by == subject:
        return notice
    return replace(notice, by="") if notice.published else None


def extra(notices: Iterable[ChallengeNotice], team: Team, phase: str, *, now: float, zone: str) -> Extra:
    """Return how many submissions a team has more: in the phase, and on the day of now in the zone.

    What was taken from a team counts for those who were in it then, whatever team they go to. Of what teams were given that are
    one now, the most counts: one team would not have been given all of it.
    """
    here, members = ZoneInfo(zone), set(team.members)
    quotas = [one for one in notices if one.kind is NoticeKind.QUOTA and one.phase == phase]
    mine = [one for one in quotas if one.team in team.names or members & set(one.members)]
    day = datetime.fromtimestamp(now, here).date()
    today, total = Counter[str](), Counter[str]()
    for one in mine:
        total[one.team] += one.total
        if datetime.fromtimestamp(one.made_at, here).date() == day:
            today[one.team] += one.today
    return Extra(today=_together(today, team), total=_together(total, team))


def _together(more: Counter[str], team: Team) -> int:
    given = max(0, *(more[name] for name in team.names))
    return given + sum(min(0, count) for count in more.values())


def changes(old: ChallengeSpec, new: ChallengeSpec, *, rules_differ: bool) -> Sequence[str]:
    """Return what differs of dates, limits, finals, hidden boards and rules, old → new, in the zone of the new version."""
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
    if old.merge_until != new.merge_until:
        then, now = ("a final begins" if one is None else _told(one, zone) for one in (old.merge_until, new.merge_until))
        found.append(f"teams merge until {then} → {now}")
    if old.largest_team != new.largest_team:
        found.append(f"members of a team {old.largest_team} → {new.largest_team}")
    if rules_differ:
        found.append("the rules are others: they have to be accepted again before the next submission")
    return found


def _differences(old: Phase, new: Phase, zone: ZoneInfo) -> Sequence[str]:
    dates = [("begins", old.begin, new.begin), ("ends", old.end, new.end)]
    found = [f"{word} {_told(then, zone)} → {_told(now, zone)}" for word, then, now in dates if then != now]
    if old.final != new.final:
        found.append(f"takes {_goes_on(old.final)} → {_goes_on(new.final)}")
    if old.board != new.board:
        found.append(f"the board is {old.board} → {new.board}")
    return [*found, *_limits(old.limits, new.limits)]


def _goes_on(final: Final | None) -> str:
    return "what teams send" if final is None else f"{final.number} of {final.source} ({final.choose})"


def _limits(old: Limits, new: Limits) -> Sequence[str]:
    pairs = ((words, getattr(old, key), getattr(new, key)) for key, words in _WORDS.items())
    return [f"{words} {_count(then)} → {_count(now)}" for words, then, now in pairs if then != now]


def _count(limit: float | None) -> str:
    return "without limit" if limit is None else f"{limit:.10g}"


def _told(moment: float, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%d %H:%M %Z")

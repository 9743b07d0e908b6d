"""What became of a challenge: participation by day, failures by kind, boards, GPU-hours, answers. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from carrel.core.challenges.limits import Left
from carrel.core.domain.challenge import Board, ChallengeSubmission, Fault, SubmissionState, Team
from carrel.core.domain.challenge_report import ChallengeReport, DayLine, FailureLine, TeamLine
from carrel.core.domain.job import Job, JobState

#: Answers that fewer people gave are not told to everybody.
_FEW = 3
_ENDS = {JobState.TIMEOUT: "time limit", JobState.OUT_OF_MEMORY: "memory"}
_EXCEPTION = re.compile(rb"^([A-Za-z_][\w.]{0,60}(?:Error|Exception|Interrupt|Exit))(?=[:\s]|$)", re.MULTILINE)


def failure_kind(job: Job, fault: Fault, log: bytes) -> str:
    """Return how a job of a challenge's program failed; `log` is the end of it, in which an exception of Python has its name."""
    if fault is Fault.LAB:
        return "lab"
    if fault is Fault.ORGANISER:
        return f"programs: {job.reason.code}"
    if job.state in _ENDS:
        return _ENDS[job.state]
    names = _EXCEPTION.findall(log)
    return f"code: {names[-1].decode()}" if names else "code"


def failures(submissions: Iterable[ChallengeSubmission], zone: str) -> tuple[FailureLine, ...]:
    """Return them by kind, the most frequent one first."""
    found: dict[str, list[ChallengeSubmission]] = {}
    for one in submissions:
        if one.state is SubmissionState.FAILED:
            found.setdefault(one.kind or str(one.fault or "unknown"), []).append(one)
    lines = [
        FailureLine(
            kind=kind,
            count=len(ones),
            days=Counter(_day(one.made_at, zone) for one in ones),
            teams=Counter(one.team for one in ones),
            newest=max(one.id for one in ones),
        )
        for kind, ones in found.items()
    ]
    return tuple(sorted(lines, key=lambda line: (-line.count, line.kind)))


def days(submissions: Iterable[ChallengeSubmission], zone: str) -> tuple[DayLine, ...]:
    """Return the days on which teams sent something, in their order. To finals they send nothing."""
    found: dict[str, list[ChallengeSubmission]] = {}
    for one in submissions:
        if one.origin:
            continue
        found.setdefault(_day(one.made_at, zone), []).append(one)
    return tuple(DayLine(day=day, teams=len({one.team for one in ones}), **_counted(ones)) for day, ones in sorted(found.items()))


def team_line(team: Team, submissions: Sequence[ChallengeSubmission], gpu_hours: float, left: Left | None) -> TeamLine:
    """Return the line of a team; `submissions` are its own, `left` what it may send in the phase of now."""
    return TeamLine(
        name=team.name,
        members=team.members,
        made_at=team.made_at,
        gpu_hours=gpu_hours,
        today=None if left is None else max(0, min(left.today, left.total)),
        total=None if left is None else max(0, left.total),
        **_counted(submissions),
    )


def _counted(submissions: Sequence[ChallengeSubmission]) -> dict[str, int]:
    states = Counter(one.state for one in submissions)
    scored, failed = states[SubmissionState.COMPLETED], states[SubmissionState.FAILED]
    return {"submissions": len(submissions), "scored": scored, "failed": failed}


def answers(asks: Mapping[str, Sequence[str]], teams: Iterable[Team]) -> Mapping[str, Mapping[str, int]]:
    """Return how many people gave which answer: each person one, whatever teams they were in."""
    given: dict[str, Mapping[str, str]] = {}
    for team in teams:
        for who, found in team.answers.items():
            given[who] = {**given.get(who, {}), **found}
    return {
        name: {one: sum(found.get(name) == one for found in given.values()) for one in choices} for name, choices in asks.items()
    }


def _day(moment: float, zone: str) -> str:
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).date().isoformat()


# ---- as Markdown


def markdown(found: ChallengeReport, *, public: bool) -> str:
    """Return the report as Markdown. What is `public` has neither members, failures nor answers that few people gave."""
    counted = f"{len(found.teams)} teams, {sum(len(one.members) for one in found.teams)} people"
    sent = sum(one.submissions for one in found.teams)
    parts = [
        f"{counted}, {sent} submissions, {found.gpu_hours:.1f} GPU-hours.",
        *(f"## Board: {_safe(board.phase)}\n\n{_hidden(board)}{_board(board)}" for board in found.boards),
        _section(
            "Participation",
            ("Day", "Teams", "Submissions", "Scored", "Failed"),
            [(one.day, one.teams, one.submissions, one.scored, one.failed) for one in found.days],
        ),
    ]
    for name, counts in found.answers.items():
        rows = [(choice, f"fewer than {_FEW}" if public and count < _FEW else count) for choice, count in counts.items()]
        parts.append(_section(f"People by {name}", (name, "People"), rows))
    if not public:
        failed = [(one.kind, one.count, ", ".join(one.teams), one.newest) for one in found.failures]
        parts.append(_section("Failures", ("Kind", "Submissions", "Teams", "Newest"), failed))
        heads = ("Team", "Members", "Submissions", "Scored", "Failed", "GPU-hours")
        lines = [
            (one.name, ", ".join(one.members), one.submissions, one.scored, one.failed, f"{one.gpu_hours:.2f}")
            for one in found.teams
        ]
        parts.append(_section("Teams", heads, lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def _hidden(board: Board) -> str:
    return "" if board.opens is None else "Teams do not see this board yet.\n\n"


def _board(board: Board) -> str:
    rows = [
        (one.rank, one.team or f"{one.baseline} (baseline)", *(f"{one.scores[c.column]:.{c.precision}f}" for c in board.columns))
        for one in board.places
    ]
    return _table(("Rank", "Team", *(column.title for column in board.columns)), rows) if rows else "Nothing was scored."


def _section(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"## {_safe(title)}\n\n{_table(heads, rows)}" if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    written = [f"| {' | '.join(_safe(str(cell)) for cell in cells)} |" for cells in (heads, *rows)]
    return "\n".join([written[0], "|---" * len(heads) + "|", *written[1:]])


def _safe(text: str) -> str:
    """The text as Markdown shows it: on one line, and nothing in it has a meaning."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))

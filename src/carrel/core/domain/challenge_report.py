"""What organisers are shown of a challenge: the report, and submissions that are alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.core.domain.challenge import Board
from carrel.core.domain.noun import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLine:
    """Submissions that failed in the same way."""

    kind: str
    count: int
    #: How many, by day of the challenge's zone and by team.
    days: Mapping[str, int]
    teams: Mapping[str, int]
    #: The number of the last one: `carrel challenge log` has its log.
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLine:
    """A day of the challenge's zone on which something was sent."""

    day: str
    #: Teams that sent something.
    teams: int
    submissions: int
    scored: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamLine:
    """A team, what it has sent, and what is left to it in the phase of now (None: there is none)."""

    name: str
    members: tuple[str, ...]
    made_at: Moment
    submissions: int
    scored: int
    failed: int
    gpu_hours: float
    today: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeReport:
    """What became of a challenge, for its organisers."""

    challenge: str
    title: str
    made_at: Moment
    #: What programs computed, without baselines; of what goes on, and with ends in steps, the most that was announced.
    gpu_hours: float
    days: tuple[DayLine, ...]
    teams: tuple[TeamLine, ...]
    failures: tuple[FailureLine, ...]
    #: How many people gave which answer, by what they were asked.
    answers: Mapping[str, Mapping[str, int]]
    boards: tuple[Board, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LikePair:
    """Two teams whose best submissions are alike. That proves nothing: right predictions are equal, and so is what is usual."""

    teams: tuple[str, ...]
    submissions: tuple[int, ...]
    #: The part of the shorter one's code that the other one has too, from 0 to 1.
    code: float
    #: The part of their predictions that is equal, from 0 to 1.
    predictions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Pairs of teams whose best submissions in a phase are alike, those first that are most."""

    phase: str
    #: Submissions that were compared, and the parts from which on a pair is told.
    compared: int
    code: float
    predictions: float
    pairs: tuple[LikePair, ...]

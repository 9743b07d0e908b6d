"""Challenges: shared tasks whose test data no participant sees, teams that take part, and what they submit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from carrel.core.domain.noun import Moment, private, shown, stamped

#: What the subjects of users begin with as whom the programs of challenges run; the name of no person begins so.
PROGRAMS = "challenge:"
#: Where a challenge says what it is.
FILE = "challenge.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A score that a challenge goes by."""

    #: Its key in what the scoring program writes.
    column: str
    title: str
    #: True: of two values the larger is the better one.
    larger: bool = True
    #: Digits after the point that are kept and shown; the others never leave the lab.
    precision: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers of submissions that a team may send."""

    #: Submissions that were scored, on one day in the challenge's zone and in the whole phase.
    per_day: int = 5
    total: int = 100
    #: Submissions that have not ended.
    at_once: int = 1
    #: Submissions that failed by anybody but the lab, on one day; those do not count above.
    failures_per_day: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time in which submissions are scored on one split of the data."""

    name: str
    begin: Moment
    end: Moment
    split: str
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Data that submissions are tested on: directories of the challenge."""

    #: What the ingestion program is shown, and it alone.
    input: str
    #: What the scoring program is shown, and it alone.
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeSpec:
    """The content of `challenge.yaml`. Paths are directories and files of the challenge's own directory."""

    name: str
    title: str
    #: Markdown files by the titles of their pages.
    pages: Mapping[str, str]
    #: A Markdown file that participants accept; "": there are no rules.
    rules: str = ""
    #: What participants are shown, in sessions and tasks of their own; "": nothing.
    train: str = ""
    splits: Mapping[str, Split]
    ingestion: str
    scoring: str
    #: What participants begin with; "": nothing.
    starter: str = ""
    #: Submissions of the organiser's own.
    baselines: Mapping[str, str] = field(default_factory=dict)
    phases: tuple[Phase, ...]
    #: The first one decides, the next ones where it is equal.
    board: tuple[Column, ...]
    largest_team: int = 5
    #: Bytes of what the ingestion program says last that a team is shown where it refuses the team's code.
    feedback: int = 0
    #: Whose days the limits go by: "Europe/Berlin".
    zone: str = "UTC"
    #: Subjects of those who may change it, beside who made it.
    organisers: tuple[str, ...] = ()
    #: The class of service, and the account, of its programs; "": the lab's default.
    qos: str = ""
    account: str = ""
    #: A part of the training data on which teams try their code, with all that it says; None: they cannot.
    dry_run: Split | None = None

    def phase_at(self, now: float) -> Phase | None:
        """The phase that takes submissions at a moment, or None."""
        return next((phase for phase in self.phases if phase.begin <= now < phase.end), None)

    def phase(self, name: str) -> Phase | None:
        """The phase of this name, or None."""
        return next((phase for phase in self.phases if phase.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A shared task. What it is lies in a directory of the lab's (`ChallengeSpec`), one for each version."""

    name: str
    #: Subject of who made it.
    organiser: str = stamped(default="")
    #: Digest of the version that participants have; "": it is not published.
    version: str = stamped(default="")
    #: Digest of the version that was sent last, for organisers to check; "": it is the published one.
    draft: str = stamped(default="")
    #: The directory of the published version that teams are shown, in its own directory; "": none.
    train: str = private(default="")
    made_at: Moment = stamped(default=0.0)
    #: When it was frozen: it takes nothing any more.
    frozen_at: Moment | None = stamped(default=None)

    @property
    def programs(self) -> str:
        """Subject of the user as whom its programs run."""
        return PROGRAMS + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Users who take part in a challenge together; all of them have accepted its rules."""

    challenge: str
    name: str
    #: Subjects.
    members: tuple[str, ...] = stamped(default=())
    #: With it others join.
    code: str = private(default="")
    made_at: Moment = stamped(default=0.0)


class SubmissionState(StrEnum):
    """The state of a submission; the words are those of jobs."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """True when nothing changes any more."""
        return self in (SubmissionState.COMPLETED, SubmissionState.FAILED)


class Fault(StrEnum):
    """The side by which a submission failed."""

    #: Its own code or predictions: it counts as a failure of the team's.
    TEAM = "team"
    #: The organiser's programs, or the lab: it costs the team nothing.
    ORGANISER = "organiser"
    LAB = "lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeSubmission:
    """Code that a team sent to a challenge, what became of it, and its scores."""

    id: int = 0
    challenge: str
    #: Of the challenge, as it was then.
    version: str = stamped(default="")
    phase: str = stamped(default="")
    #: "": a baseline of the organiser's.
    team: str = stamped(default="")
    baseline: str = stamped(default="")
    #: Subject of who sent it.
    by: str = stamped(default="")
    #: Digest of the code.
    snapshot: str
    state: SubmissionState = stamped(default=SubmissionState.PENDING)
    #: The jobs of the challenge's programs; 0: not yet.
    ingestion_job: int = private(default=0)
    scoring_job: int = private(default=0)
    #: By column; empty until it has COMPLETED.
    scores: Mapping[str, float] = stamped(default_factory=dict)
    #: Why it waits or failed, in words that say nothing of the data.
    message: str = stamped(default="")
    fault: Fault | None = stamped(default=None)
    made_at: Moment = stamped(default=0.0)
    ended_at: Moment | None = stamped(default=None)

    @property
    def job(self) -> int:
        """The job that it has come to; 0: none yet."""
        return self.scoring_job or self.ingestion_job

    @shown
    def stage(self) -> str:
        """Which program has it: "ingestion", "scoring", or "" before and after."""
        if self.state is not SubmissionState.RUNNING:
            return ""
        return "scoring" if self.scoring_job else "ingestion"


# ---- what callers are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseView:
    """A phase, and what is left of its limits to the reader's team."""

    name: str
    begin: Moment
    end: Moment
    limits: Limits
    #: What the team may still send today, in all, at once; None: the reader has no team.
    today: int | None = None
    total: int | None = None
    at_once: int | None = None
    #: When the next day begins.
    next_day: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    """A team, as its members see it."""

    name: str
    members: tuple[str, ...]
    #: With it others join.
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeView:
    """A challenge, as its reader sees it."""

    name: str
    title: str
    #: "draft", "published" or "frozen".
    state: str
    #: Markdown, by title.
    pages: Mapping[str, str]
    rules: str
    phases: tuple[PhaseView, ...]
    #: The name of the phase that takes submissions now; "": none does.
    phase: str
    board: tuple[Column, ...]
    largest_team: int
    zone: str
    teams: int
    #: Where the reader's sessions and tasks find the training data; "": there are none, or the reader has no team.
    train: str
    #: Names of baselines, and of what the challenge begins with.
    baselines: tuple[str, ...]
    starter: bool
    #: Bytes of what the ingestion program says last that a team is shown where it refuses the team's code.
    feedback: int
    team: TeamView | None = None
    #: True for organisers.
    organised: bool = False
    #: True: teams can try their code on training data.
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeLine:
    """A challenge in a list."""

    name: str
    title: str
    state: str
    phase: str
    #: When that ends; None: there is none now.
    end: Moment | None = None
    teams: int = 0
    #: The reader's; "": none.
    team: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeLines:
    """The challenges that their reader may see."""

    challenges: tuple[ChallengeLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionView:
    """A submission, as its team and the organisers see it."""

    submission: ChallengeSubmission
    #: Why it waits; "" where it does not.
    waits: str = ""
    #: 1 for the first in line.
    position: int | None = None
    estimated_start: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionList:
    """Submissions, newest first."""

    submissions: tuple[SubmissionView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One line of a board."""

    #: From 1. Those whose scores are equal as they are shown have the same.
    rank: int
    #: "": a baseline of the organiser's.
    team: str
    baseline: str
    #: The number of the submission.
    submission: int
    scores: Mapping[str, float]
    made_at: Moment
    #: How many of the team's submissions were scored.
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The places of a phase."""

    challenge: str
    phase: str
    columns: tuple[Column, ...]
    places: tuple[Place, ...]

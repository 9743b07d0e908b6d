"""Challenges: shared tasks whose test data no participant sees, teams that take part, and what they submit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from carrel.core.domain.challenge_sample import Sampling
from carrel.core.domain.noun import Moment, private, shown, stamped
from carrel.core.domain.units import MIB, format_count, format_duration

#: What the subjects of users begin with as whom the programs of challenges run; the name of no person begins so.
PROGRAMS = "challenge:"
#: Where a challenge says what it is.
FILE = "challenge.yaml"
#: When teams see scores and places: at once, when the phase has ended, or when the last phase has.
BoardRule = Literal["shown", "hidden", "hidden-until-the-end"]
#: Bytes of predictions that a submission may leave, unless its challenge says another number.
PREDICTIONS = 256 * MIB


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
    #: The least and the largest value that it can have; None: any number. A value outside is no score.
    range: tuple[float, float] | None = None


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
    #: GPU-hours of all submissions in the whole phase, failed ones among them; None: as many as there are.
    gpu_hours: float | None = None


class Choice(StrEnum):
    """The way in which submissions are chosen for a final."""

    TEAM = "team"
    BEST = "best"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """Submissions of an earlier phase that are scored again in a phase, which takes no others of teams."""

    #: The name of the earlier phase.
    source: str
    choose: Choice = Choice.BEST
    #: Of each team.
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time in which submissions are scored on one split of the data."""

    name: str
    begin: Moment
    end: Moment
    split: str
    limits: Limits = field(default_factory=Limits)
    #: None: teams send to it.
    final: Final | None = None
    board: BoardRule = "shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Data that submissions are tested on: directories of the challenge."""

    #: What the ingestion program is shown, and it alone.
    input: str
    #: What the scoring program is shown, and it alone.
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A rule by which the scores that a team is shown move only when they are better by a step (`core.challenges.ladder`)."""

    step: float
    #: Where it holds; (): in all phases.
    phases: tuple[str, ...] = ()

    def holds(self, phase: str) -> bool:
        """True when the rule holds in this phase."""
        return not self.phases or phase in self.phases


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLog:
    """The end of what a team's code printed, which the team may read."""

    bytes: int
    #: Where its inputs are of; (): of all splits.
    splits: tuple[str, ...] = ()

    def holds(self, split: str) -> bool:
        """True when the log may be read of submissions to this split."""
        return not self.splits or split in self.splits


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeSpec:
    """The content of `challenge.yaml`. Paths are directories and files of the challenge's own directory."""

    name: str
    title: str
    #: Markdown files by the titles of their pages.
    pages: Mapping[str, str]
    #: A Markdown file that participants accept; "": there are no rules.
    rules: str = ""
    #: The training data, which participants see in sessions and tasks of their own unless there is `sampling`; "": none.
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
    ladder: Ladder | None = None
    log: OwnLog | None = None
    #: Teams see the end of a submission at multiples of so many seconds; 0: at once.
    step: int = 0
    #: True: teams are not told in which way a submission failed.
    one_end: bool = False
    #: Teams merge until then; None: until the first final begins.
    merge_until: Moment | None = None
    #: What those who take part are asked when they join, with the answers to choose from; they may leave it out.
    asks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The level of the intervals that are shown beside scores: 0.95; 0: none are.
    intervals: float = 0.0
    #: Bytes that a submission may leave for the scoring program.
    predictions: int = PREDICTIONS
    #: A part of the training data on which teams try their code, with all that it says; None: they cannot.
    dry_run: Split | None = None
    #: How participants are shown single files of the training data, which they cannot copy then; None: they can.
    sampling: Sampling | None = None

    @property
    def copied(self) -> str:
        """The training data that participants see in sessions and tasks of their own; "": none."""
        return "" if self.sampling else self.train

    def phase_at(self, now: float) -> Phase | None:
        """The phase that takes submissions at a moment, or None."""
        return next((phase for phase in self.phases if phase.begin <= now < phase.end), None)

    def phase(self, name: str) -> Phase | None:
        """The phase of this name, or None."""
        return next((phase for phase in self.phases if phase.name == name), None)

    def opens(self, name: str) -> float:
        """The moment from which teams see the scores of a phase; 0: at once."""
        phase = self.phase(name)
        if phase is None or phase.board == "shown":
            return 0.0
        return phase.end if phase.board == "hidden" else self.phases[-1].end


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardChange:
    """The moment since which a board goes by another scoring program, and the reason."""

    at: Moment
    reason: str


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
    #: All versions that were published, the oldest first. Teams see their numbers: a digest would confirm who guesses the labels.
    versions: tuple[str, ...] = private(default=())
    #: By phase: when its submissions were last scored again.
    rescored: Mapping[str, BoardChange] = stamped(default_factory=dict)

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
    #: Subjects of those who have left it.
    former: tuple[str, ...] = private(default=())
    #: Names of the teams that are a part of it now. What these have sent stays under their names, and is this team's.
    merged: tuple[str, ...] = stamped(default=())
    #: The name of the team that it asks to merge with; "": none.
    asked: str = stamped(default="")
    #: Numbers of the submissions that it has chosen for a final.
    chosen: tuple[int, ...] = stamped(default=())

    @property
    def names(self) -> frozenset[str]:
        """The names under which what is its own was sent."""
        return frozenset({self.name, *self.merged})

    #: By member: the digest of the rules that were accepted, and answers by what the challenge asks.
    accepted: Mapping[str, str] = private(default_factory=dict)
    answers: Mapping[str, Mapping[str, str]] = private(default_factory=dict)


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

    #: Its own code or predictions.
    TEAM = "team"
    #: The organiser's programs. It counts as the team's own failure does, for a team can make them fail.
    ORGANISER = "organiser"
    #: It costs the team nothing.
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
    #: When the team sent it.
    made_at: Moment = stamped(default=0.0)
    ended_at: Moment | None = stamped(default=None)
    #: Subjects of those who were in the team then. It counts against their limits, whichever team they go to.
    members: tuple[str, ...] = private(default=())
    #: GPU-hours that its programs computed; until it has ended, those that they may at most. 0 where the lab was to blame.
    gpu_hours: float = private(default=0.0)
    #: In a final: the number of the submission whose code it is; 0: a team has sent it.
    origin: int = stamped(default=0)
    #: The kind of failure, for organisers: it may hold words of the log ("code: ValueError").
    kind: str = private(default="")
    #: By column, the low and the high end of the score's interval, where the challenge asks for intervals.
    intervals: Mapping[str, tuple[float, float]] = stamped(default_factory=dict)
    #: The submission whose predictions this one scores again, by the scoring program of `version`; 0: it was sent.
    again: int = private(default=0)

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
class Cost:
    """The most that a submission takes: that of both programs, until their time limits."""

    #: At a time.
    gpus: int
    cpus: int
    #: Of both one after the other.
    seconds: int
    gpu_hours: float
    cpu_hours: float

    @property
    def words(self) -> str:
        """One phrase: "2 GPUs, 8 processors, 1 h 5 min (2.17 GPU-hours)"."""
        gpus = f"{format_count(self.gpus, 'GPU')}, " if self.gpus else ""
        hours = f"{self.gpu_hours:g} GPU-hours" if self.gpus else f"{self.cpu_hours:g} processor-hours"
        return f"{gpus}{format_count(self.cpus, 'processor')}, {format_duration(self.seconds)} ({hours})"


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
    #: How many may still fail today; and GPU-hours, None where they are not limited.
    failures: int | None = None
    gpu_hours: float | None = None
    #: Why the team can send nothing now, and when it can again; "": it can, or it is not the phase of now.
    refusal: str = ""
    #: Which submissions are scored in it, if teams send none.
    final: Final | None = None

    @property
    def left(self) -> str:
        """The rest in one phrase; "" where the reader has no team, or teams send nothing."""
        if self.today is None:
            return ""
        hours = "" if self.gpu_hours is None else f", {self.gpu_hours:g} GPU-hours"
        return f"{self.today} today, {self.total} in all, {self.at_once} at once, {self.failures} that may fail today{hours}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    """A team, as its members see it."""

    name: str
    members: tuple[str, ...]
    #: With it others join.
    code: str
    #: Teams that ask to merge with it, and the one that it asks.
    asked_by: tuple[str, ...] = ()
    asked: str = ""
    #: Numbers of the submissions that it has chosen for a final.
    chosen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much a team can learn in a phase from what it is shown of its submissions (`core.challenges.bound`)."""

    phase: str
    #: Submissions that a team can send: those that are scored, and those that fail.
    scored: int
    failed: int
    #: Bits about the references, and about the inputs and the references together.
    reference_bits: int
    bits: int
    #: Bytes of the files of the references.
    reference_bytes: int
    #: The same in sentences, with what could make it less.
    words: tuple[str, ...]


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
    #: What is held back from teams, and what they are shown of their own logs, in sentences.
    withheld: tuple[str, ...] = ()
    #: For organisers: how much a team can learn, for each phase.
    bounds: tuple[Bound, ...] = ()
    #: The most that a submission takes; None: the lab cannot say it now.
    cost: Cost | None = None
    #: Teams merge until then; None: until the first final begins.
    merge_until: Moment | None = None
    #: What one is asked at joining, with the answers to choose from.
    asks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: False: the rules are others than those that the reader accepted, and nothing is taken before they are accepted again.
    rules_accepted: bool = True
    #: True: teams can try their code on training data.
    dry_run: bool = False
    #: How teams are shown single files of the training data; None: they may copy them, or there are none.
    sampling: Sampling | None = None


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
    #: For organisers: the scores that its team is shown, where these are others.
    shown: Mapping[str, float] = field(default_factory=dict)
    #: The phase with what is left after it, for who has just sent it.
    phase: PhaseView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionList:
    """Submissions, newest first."""

    submissions: tuple[SubmissionView, ...]
    #: The phase of now, with what is left to the reader's team; None: there is none.
    phase: PhaseView | None = None
    #: The `before` of the page after this one; None: there is none.
    next: int | None = None


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
    #: As in `ChallengeSubmission`.
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: False: in resamples of the data its order with the line above turns too often to say that they differ. None: not known.
    differs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The places of a phase."""

    challenge: str
    phase: str
    columns: tuple[Column, ...]
    places: tuple[Place, ...]
    #: When it was last scored again, and why.
    rescored: BoardChange | None = None
    #: When teams see it; None: they do.
    opens: Moment | None = None
    #: The level of the intervals; 0: there are none.
    intervals: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoredLine:
    """A submission as the published program has scored it, and as that of the draft has."""

    before: ChallengeSubmission
    #: With a number of its own, by which organisers find the log. None: not yet.
    after: ChallengeSubmission | None
    #: On the board; None: another submission of the team is there.
    rank: int | None
    new_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescore:
    """What another scoring program does to the boards."""

    challenge: str
    lines: tuple[RescoredLine, ...]

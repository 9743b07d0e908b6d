"""Adds up what attempts and cells used, row by row, whatever order they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from carrel.core.gpu_use.facts import AttemptFacts, End, LentFacts
from carrel.core.gpu_use.groups import Grouping, Range, monday_before


@dataclass(slots=True)
class Use:
    """What one row of a report says. Times are seconds; of GPUs, GPUs × seconds."""

    #: Jobs that waited or had a place in the range, and attempts that had one.
    jobs: int = 0
    attempts: int = 0
    #: For how long jobs were in line, added up.
    waited: float = 0.0
    #: For how long attempts had GPUs of their own, by what came of them; without the time for which they were stopped.
    held: dict[End, float] = field(default_factory=dict)
    #: That part of it in which environments and inputs were prepared and no command ran.
    prepared: float = 0.0
    #: That part of it in which commands ran and GPUs were measured, and for how much of that they were busy.
    measured: float = 0.0
    busy: float = 0.0
    #: For how long sessions were open, added up.
    sessions: float = 0.0
    #: What cells and calls had, beside that.
    lent: float = 0.0

    @property
    def all_held(self) -> float:
        """The sum of what was held."""
        return sum(self.held.values())

    def add(self, other: Use) -> None:
        """Count the other row's work, too."""
        self.jobs += other.jobs
        self.attempts += other.attempts
        self.waited += other.waited
        self.prepared += other.prepared
        self.measured += other.measured
        self.busy += other.busy
        self.sessions += other.sessions
        self.lent += other.lent
        for end, seconds in other.held.items():
            self.held[end] = self.held.get(end, 0.0) + seconds


class UseSums:
    """The rows of one report: `add` and `add_lent` what the store has, then read `rows` and `total`.

    A week's row is called by the moment at which the week begins, in Unix seconds.
    """

    def __init__(self, by: Grouping, within: Range, now: float) -> None:
        self._by = by
        self._within = within
        self._now = now
        self._rows: dict[str, Use] = {}
        #: Over the whole range: a job that is in two weeks is one job.
        self._jobs = self._attempts = 0
        #: The weeks of the row that was added last.
        self._recent: Sequence[tuple[Range, Use]] = ()

    @property
    def rows(self) -> Mapping[str, Use]:
        """What was used, by the name of the row."""
        return self._rows

    @property
    def total(self) -> Use:
        """All rows together. Jobs and attempts are counted once, also where they are in several weeks."""
        found = Use()
        for use in self._rows.values():
            found.add(use)
        found.jobs, found.attempts = self._jobs, self._attempts
        return found

    def add(self, attempts: Iterable[AttemptFacts]) -> None:
        """Add attempts, and jobs that have none."""
        for facts in attempts:
            parts = self._weeks(facts) if self._by is Grouping.WEEK else ((self._within, self._row(self._name(facts))),)
            job = attempt = False
            for part, use in parts:
                job_here, attempt_here = _add_attempt(use, facts, part, self._now)
                job, attempt = job or job_here, attempt or attempt_here
            self._jobs += job
            self._attempts += attempt

    def add_lent(self, lent: Iterable[LentFacts]) -> None:
        """Add what cells and calls had."""
        for facts in lent:
            seconds = facts.gpus * facts.computed
            if self._by is not Grouping.WEEK:
                self._row(self._name(facts)).lent += _lent_in(seconds, facts.since, facts.until, self._within)
                continue
            for week in self._within.weeks(facts.since, facts.until):
                self._row(_week(week)).lent += _lent_in(seconds, facts.since, facts.until, week)

    def _weeks(self, facts: AttemptFacts) -> Sequence[tuple[Range, Use]]:
        """The weeks in which the job was there, or the attempt, where two clocks do not agree; with their rows."""
        since, until = facts.submitted_at, self._now if facts.job_ended_at is None else facts.job_ended_at
        if facts.number:
            since = min(since, facts.leased_at)
            until = max(until, self._now if facts.ended_at is None else facts.ended_at)
        # Mostly it is one, and that of the row before.
        if self._recent and self._recent[-1][0].begin <= since and until < self._recent[-1][0].end:
            return self._recent[-1:]
        found = [(week, self._row(_week(week))) for week in self._within.weeks(since, until)]
        self._recent = found or self._recent
        return found

    def _name(self, facts: AttemptFacts | LentFacts) -> str:
        match self._by:
            case Grouping.USER:
                return facts.owner
            case Grouping.ACCOUNT:
                return facts.account
            case Grouping.QOS:
                return facts.qos
            case _:
                return facts.kind

    def _row(self, name: str) -> Use:
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = Use()
        return found


def _week(week: Range) -> str:
    return f"{monday_before(week.begin):.0f}"


def _add_attempt(use: Use, facts: AttemptFacts, within: Range, now: float) -> tuple[bool, bool]:
    """Add what lies in the range of one attempt, and with the first one of its job's life. Return whether a job was counted, and
    an attempt.
    """
    overlap = within.overlap
    submitted_at, life_ends = facts.submitted_at, now if facts.job_ended_at is None else facts.job_ended_at
    job = facts.first and within.meets(submitted_at, max(life_ends, submitted_at))
    if job:
        use.jobs += 1
        use.waited += overlap(submitted_at, life_ends)
    if not facts.number:
        return bool(job), False
    since, began, until = facts.place(now)
    # A job waits when it is there and has no place.
    use.waited -= overlap(max(since, submitted_at), min(until, life_ends))
    if not within.meets(since, until):
        return bool(job), False
    use.attempts += 1
    if facts.is_session:
        use.sessions += overlap(since, until)
    if facts.gpus:
        preparing = overlap(since, began) * facts.gpus
        # When it was stopped is not known, only for how long: as if that had been spread over its command.
        stopped = min(1.0, facts.stopped_for(now) / (until - began)) if until > began else 0.0
        end = facts.end
        computing = overlap(began, until) * facts.gpus * (1.0 - stopped)
        use.held[end] = use.held.get(end, 0.0) + preparing + computing
        if facts.busy is not None:
            use.measured += computing
            use.busy += computing * facts.busy / 100
        use.prepared += preparing
    if facts.lease_seconds and facts.on_cluster:
        # Of cells on a cluster the sum is known, and not when they were.
        use.lent += _lent_in(facts.lease_seconds, since, until, within)
    return bool(job), True


def _lent_in(seconds: float, since: float, until: float, within: Range) -> float:
    """The part of `seconds`, which are spread over an interval, that lies in the range."""
    return seconds * within.overlap(since, until) / (until - since) if until > since else 0.0

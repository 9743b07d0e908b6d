"""Adds up what attempts and cells used, row by row, whatever order they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

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
    #: What attempts asked for: GPUs × walltime, spread evenly over the time for which they had their place.
    asked: float = 0.0
    #: For how long attempts had GPUs of their own, by what came of them; without the time for which they were stopped.
    held: dict[End, float] = field(default_factory=dict)
    #: That part of it in which environments and inputs were prepared and no command ran.
    prepared: float = 0.0
    #: That part of it in which commands ran and GPUs were measured, and for how much of that they were busy.
    measured: float = 0.0
    busy: float = 0.0
    #: The same of their streaming multiprocessors.
    sm_measured: float = 0.0
    sm_busy: float = 0.0
    #: Joules that GPUs of attempts took.
    energy: float = 0.0
    #: Bytes × seconds of host memory that attempts asked for whose peak is known, and that peak; of GPUs, what they have.
    memory: float = 0.0
    memory_peak: float = 0.0
    gpu_memory: float = 0.0
    gpu_memory_peak: float = 0.0
    #: For how long sessions were open, added up.
    sessions: float = 0.0
    #: What cells and calls had, beside that; how many there were, for how long they waited for GPUs, had them, and were paused.
    lent: float = 0.0
    cells: int = 0
    cells_waited: float = 0.0
    cells_computed: float = 0.0
    cells_paused: float = 0.0

    @property
    def all_held(self) -> float:
        """The sum of what was held."""
        return sum(self.held.values())

    def add(self, other: Use) -> None:
        """Count the other row's work, too."""
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for end, seconds in other.held.items():
            self.held[end] = self.held.get(end, 0.0) + seconds


#: What is a number in every row.
FIGURES = tuple(one.name for one in fields(Use) if one.name != "held")


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
            waits = self._row("") if self._by.of_attempts else None
            by_week = self._by is Grouping.WEEK
            parts = self._weeks(facts) if by_week else ((self._within, self._row(_name(self._by, facts))),)
            job = attempt = False
            for part, use in parts:
                job_here, attempt_here = _add_attempt(use, facts, part, self._now, waits or use)
                job, attempt = job or job_here, attempt or attempt_here
            self._jobs += job
            self._attempts += attempt

    def add_lent(self, lent: Iterable[LentFacts]) -> None:
        """Add what cells and calls had."""
        for facts in lent:
            if self._by is not Grouping.WEEK:
                _add_lent(self._row(_name(self._by, facts)), facts, self._within)
                continue
            for week in self._within.weeks(facts.asked_at, facts.until):
                _add_lent(self._row(_week(week)), facts, week)

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

    def _row(self, name: str) -> Use:
        found = self._rows.get(name)
        if found is None:
            found = self._rows[name] = Use()
        return found


def _week(week: Range) -> str:
    return f"{monday_before(week.begin):.0f}"


def _name(by: Grouping, facts: AttemptFacts | LentFacts) -> str:
    """Return the row in which it is. Projects of two users are two, whatever they are called."""
    match by:
        case Grouping.USER:
            return facts.owner
        case Grouping.ACCOUNT:
            return facts.account
        case Grouping.PROJECT:
            return f"{facts.owner}/{facts.project}"
        case Grouping.QOS:
            return facts.qos
        case Grouping.GPU_TYPE:
            return facts.gpu_type
        case Grouping.NODE:
            return facts.node
        case _:
            return facts.kind


def _add_attempt(use: Use, facts: AttemptFacts, within: Range, now: float, waits: Use) -> tuple[bool, bool]:
    """Add what lies in the range of one attempt, and with the first one of its job's life; to `waits` how long it waited.

    Return whether a job was counted, and an attempt.
    """
    overlap = within.overlap
    submitted_at, life_ends = facts.submitted_at, now if facts.job_ended_at is None else facts.job_ended_at
    job = facts.first and within.meets(submitted_at, max(life_ends, submitted_at))
    if job:
        use.jobs += 1
        waits.waited += overlap(submitted_at, life_ends)
    if not facts.number:
        return bool(job), False
    since, _, until = facts.place(now)
    # A job waits when it is there and has no place.
    waits.waited -= overlap(max(since, submitted_at), min(until, life_ends))
    if not within.meets(since, until):
        return bool(job), False
    use.attempts += 1
    placed = overlap(since, until)
    if facts.is_session:
        use.sessions += placed
    if facts.memory_peak is not None:
        use.memory += placed * facts.memory
        use.memory_peak += placed * facts.memory_peak
    if facts.gpus:
        _add_gpus(use, facts, within, now)
    if facts.lease_seconds and facts.on_cluster:
        # Of cells on a cluster the sum is known, and not when they were.
        use.lent += _part(facts.lease_seconds, since, until, within)
    return bool(job), True


def _add_gpus(use: Use, facts: AttemptFacts, within: Range, now: float) -> None:
    """Add what lies in the range of the GPUs that an attempt had for itself."""
    since, began, until = facts.place(now)
    overlap, length = within.overlap, until - began
    preparing = overlap(since, began) * facts.gpus
    # When it was stopped is not known, only for how long: as if that had been spread over its command.
    stopped = min(1.0, facts.stopped_for(now) / length) if length > 0 else 0.0
    computing = overlap(began, until) * facts.gpus * (1.0 - stopped)
    end = facts.end
    use.held[end] = use.held.get(end, 0.0) + preparing + computing
    use.prepared += preparing
    use.asked += _part(facts.gpus * facts.time, since, until, within)
    if facts.busy is not None:
        use.measured += computing
        use.busy += computing * facts.busy / 100
    if facts.sm is not None:
        use.sm_measured += computing
        use.sm_busy += computing * facts.sm / 100
    if facts.energy:
        use.energy += _part(facts.energy, began, until, within)
    if facts.gpu_memory and facts.gpu_memory_peak is not None:
        use.gpu_memory += computing * facts.gpu_memory
        use.gpu_memory_peak += computing * facts.gpu_memory_peak


def _add_lent(use: Use, facts: LentFacts, within: Range) -> None:
    """Add what lies in the range of what a cell or a call had; of several, which are told together, all does."""
    since, until = facts.since, facts.until
    if within.begin <= since < within.end:
        use.cells += facts.cells
    use.lent += _part(facts.lent, since, until, within)
    use.cells_computed += _part(facts.computed, since, until, within)
    use.cells_paused += _part(facts.paused, since, until, within)
    use.cells_waited += _part(facts.waited, facts.asked_at, since, within)


def _part(amount: float, since: float, until: float, within: Range) -> float:
    """The part of an amount, which is spread over an interval, that lies in the range."""
    return amount * within.overlap(since, until) / (until - since) if until > since else 0.0

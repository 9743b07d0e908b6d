"""Reports of who used GPUs, and of how long jobs take to begin, for those who may see them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from carrel.core.domain.errors import CarrelError, Invalid, Unavailable
from carrel.core.domain.exported_attempt import ExportedAttempt
from carrel.core.domain.job import Job
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.core.gpu_use import (
    HOUR,
    WEEK,
    AnonymousSums,
    AttemptFacts,
    CellFacts,
    DeviceHours,
    Grouping,
    HeldFacts,
    LentFacts,
    Range,
    SessionTimes,
    StartFacts,
    StartTimes,
    UseCounters,
    UseSums,
    WaitFacts,
    Waits,
    session_times,
)
from carrel.core.gpu_use.week import Holder
from carrel.core.policy.access import Action, Resource, allowed

_log = logging.getLogger(__name__)

#: Seconds before the end of a report at which it begins where nobody says when.
FOUR_WEEKS = 28 * 86400.0
#: Reports that are made at once: one of a year keeps a processor busy for seconds.
_AT_ONCE = 2
#: Those of one user, with those that wait: each holds a thread of the server.
_AT_ONCE_OF_ONE = 3
#: The first moment of the year 9999, Unix seconds: what comes later is no date in all time zones.
_LATEST = 253_370_764_800.0
#: Seconds that another one waits for its turn.
_PATIENCE = 60.0
#: Seconds for which a week is shown as it was, for which it may be told late of what was over, and after which all is read again.
_WEEK_KEPT, _LATE, _DAY = 60.0, 2 * HOUR, 24 * HOUR
#: Seconds that counters are behind, since news of ends comes late; and between two readings of what is new.
_BEHIND, _APART = 60.0, 10.0
#: Attempts of which is remembered that they have logged metrics: the store is not asked each time.
_HEARD = 10_000


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose work a report is about: that of one user, and that of some accounts. Without an owner it is everybody's."""

    owner: str | None = None
    accounts: frozenset[str] = frozenset()


class GpuUseStore(Protocol):
    """What is kept of use. Each iterator reads on as it is asked, from one consistent view.

    `carrel.lab.store.gpu_use.GpuUseTable` is one, and has the promises.
    """

    def attempts(self, within: Range, whose: Whose) -> Iterator[AttemptFacts]: ...
    def lent(self, within: Range, whose: Whose) -> Iterator[LentFacts]: ...
    def new_lent(self, after: int, last: int) -> Iterator[LentFacts]: ...
    def last_lent(self) -> int: ...
    def cells(self, within: Range, whose: Whose, session: int | None = None) -> Iterator[CellFacts]: ...
    def held(self, within: Range) -> Iterator[HeldFacts]: ...
    def starts(self, within: Range, whose: Whose) -> Iterator[StartFacts]: ...
    def first_metric(self, job: int, attempt: int, at: float) -> None: ...
    def waits(self, within: Range, whose: Whose) -> Iterator[WaitFacts]: ...
    def exported(
        self, within: Range, whose: Whose, now: float, *, after: int, limit: int
    ) -> tuple[Sequence[ExportedAttempt], int | None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UseReport:
    """Sums of a range."""

    within: Range
    by: Grouping
    whose: Whose
    sums: UseSums | AnonymousSums
    #: Grams for each kWh; None: the site has not entered it.
    co2_per_kwh: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """How long jobs of a range took to begin, and what jobs waited for in it."""

    within: Range
    whose: Whose
    times: StartTimes
    waits: Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """Where the time of sessions went."""

    within: Range
    by: str
    whose: Whose
    rows: Mapping[str, SessionTimes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPage:
    """Attempts of some jobs that were there in a range."""

    within: Range
    attempts: Sequence[ExportedAttempt]
    #: The job after which the next page begins; None: this was the last one.
    next: int | None


class RecentWeek:
    """The last week of all devices. Pages show it often, so what was over two hours ago is read once a day. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: When all of it was read, and when it was looked at last.
        self._read = self._looked = float("-inf")
        #: What was over at the moment `_known`, and all there is.
        self._past = self._whole = DeviceHours(0.0)
        self._known = 0.0

    def at(self, now: float, store: GpuUseStore) -> DeviceHours:
        """The week that ends with the present hour, as it was a minute ago at most."""
        with self._lock:
            if not 0 <= now - self._looked < _WEEK_KEPT:
                self._look(now, store)
                self._looked = now
            return self._whole

    def _look(self, now: float, store: GpuUseStore) -> None:
        begin, over, recent = now // HOUR * HOUR - WEEK, now - _LATE, []
        if 0 <= now - self._read < _DAY:
            past, known = self._past.since(begin), self._known
        else:
            past, known, self._read = DeviceHours(begin), begin, now
        for held in store.held(Range(known, now)):
            if held.until is None or held.until > over:
                recent.append(held)
            elif held.until > known:
                past.add(held, now)
        self._past, self._known, self._whole = past, over, past.since(begin)
        for held in recent:
            self._whole.add(held, now)


class CountedUse:
    """Counters of everybody's use, from when they are looked at first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: UseCounters | None = None

    def text(self, now: float, store: GpuUseStore) -> str:
        """All of them, as they were a minute ago."""
        until = now - _BEHIND
        with self._lock:
            if self._counters is None:
                self._counters = UseCounters(until, store.last_lent())
            found = self._counters
            if until - found.until >= _APART:
                within, last = Range(found.until, until), store.last_lent()
                lent = store.new_lent(found.lease, last)
                found.add(until, store.attempts(within, Whose()), lent, last, store.waits(within, Whose()))
            return found.text()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWeek:
    """The last week of all devices, as far as somebody may see it."""

    #: For each device, by its UUID: seconds of each of its 169 hours, of which the last goes on, by owner and account.
    hours: Mapping[str, Sequence[Mapping[Holder, float]]]
    #: The names of owners; None: of those whose use they may not see.
    names: Mapping[Holder, str | None]


class Turns:
    """Lets few reports be made at once. Thread-safe."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()

    @contextmanager
    def one(self, subject: str) -> Iterator[None]:
        """A report for this user is made inside. Raises `Unavailable` when they have too many, or when no turn comes."""
        with self._lock:
            if self._asked[subject] >= _AT_ONCE_OF_ONE:
                raise Unavailable(
                    f"{_AT_ONCE_OF_ONE} reports are being made for you already.", remedy="Wait for one of them, then ask again."
                )
            self._asked[subject] += 1
        try:
            if not self._free.acquire(timeout=_PATIENCE):
                raise Unavailable("Others' reports are being made.", remedy="Try again in a minute, or ask for a shorter time.")
            try:
                yield
            finally:
                self._free.release()
        finally:
            with self._lock:
                self._asked[subject] -= 1
                self._asked += Counter()  # without those who have none


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Thread-safe."""

    store: GpuUseStore
    clock: Clock
    co2_per_kwh: int | None = None
    turns: Turns = field(default_factory=lambda: Turns())
    recent: RecentWeek = field(default_factory=lambda: RecentWeek())
    counted: CountedUse = field(default_factory=lambda: CountedUse())
    heard: set[tuple[int, int]] = field(default_factory=set)

    def use(self, caller: Caller, *, begin: float | None, end: float | None, by: Grouping) -> UseReport:
        """What the caller may see of the use from `begin` until before `end` (Unix seconds), by default of four weeks."""
        now = self.clock()
        within, whose = _range(begin, end, now), whose_use(caller)
        sums = UseSums(by, within, now)
        with self.turns.one(caller.user.subject):
            sums.add(self.store.attempts(within, whose))
            sums.add_lent(self.store.lent(within, whose))
        return UseReport(within=within, by=by, whose=whose, sums=sums, co2_per_kwh=self.co2_per_kwh)

    def anonymous(self, caller: Caller, *, begin: float | None, end: float | None, by: Grouping) -> UseReport:
        """The same in rows of at least five people. Raises `Invalid` where each row is of one."""
        if by in (Grouping.USER, Grouping.PROJECT):
            others = ", ".join(one for one in Grouping if one not in (Grouping.USER, Grouping.PROJECT))
            raise Invalid(f"Rows by {by} are of one person each.", remedy=f"Without names there are rows by {others}.")
        now = self.clock()
        within, whose = _range(begin, end, now), whose_use(caller)
        by_owner: dict[str, UseSums] = {}

        def of(owner: str) -> UseSums:
            return by_owner.get(owner) or by_owner.setdefault(owner, UseSums(by, within, now))

        with self.turns.one(caller.user.subject):
            for facts in self.store.attempts(within, whose):
                of(facts.owner).add((facts,))
            for lent in self.store.lent(within, whose):
                of(lent.owner).add_lent((lent,))
        return UseReport(within=within, by=by, whose=whose, sums=AnonymousSums(by_owner), co2_per_kwh=self.co2_per_kwh)

    def starts(self, caller: Caller, *, begin: float | None, end: float | None) -> StartReport:
        """How long jobs took to begin that got their first place in the range, and what jobs waited for in it."""
        now = self.clock()
        within, whose = _range(begin, end, now), whose_use(caller)
        times, waits = StartTimes(), Waits(within, now)
        with self.turns.one(caller.user.subject):
            times.add(self.store.starts(within, whose))
            waits.add(self.store.waits(within, whose))
        return StartReport(within=within, whose=whose, times=times, waits=waits)

    def sessions(self, caller: Caller, *, begin: float | None, end: float | None, by: str) -> SessionReport:
        """Where the time of sessions went that borrow GPUs; `by`: "user", "account" or "qos"."""
        now = self.clock()
        within, whose = _range(begin, end, now), whose_use(caller)
        with self.turns.one(caller.user.subject):
            rows = session_times(self.store.cells(within, whose), by, within, now)
        return SessionReport(within=within, by=by, whose=whose, rows=rows)

    def of_session(self, job: Job) -> SessionTimes | None:
        """What the cells of one session had, as far as they are over; None for one that borrows nothing, or did not begin."""
        now = self.clock()
        within = Range(0.0, now)
        return session_times(self.store.cells(within, Whose(), job.id), "user", within, now).get(job.owner)

    def counters(self, caller: Caller) -> str:
        """Counters of everybody's use for Prometheus, for those who may see all of it."""
        allowed(caller, Action.SEE_USE).check()
        return self.counted.text(self.clock(), self.store)

    def hear_metric(self, caller: Caller) -> None:
        """A job logs a metric: when its attempt does so for the first time is written down."""
        if caller.job_id is None or (found := (caller.job_id, caller.attempt or 1)) in self.heard:
            return
        try:
            self.store.first_metric(*found, self.clock())
        except CarrelError as error:  # the metric itself goes on, and the next one tries again
            _log.warning("When job %d logged its first metric cannot be written down now: %s", found[0], error)
            return
        if len(self.heard) >= _HEARD:
            self.heard.clear()
        self.heard.add(found)

    def week(self, caller: Caller) -> SeenWeek:
        """The holders of each device in the last week; what the caller may not see of others is together, without a name."""
        whose, found = whose_use(caller), self.recent.at(self.clock(), self.store)

        def seen(owner: str, account: str) -> bool:
            return whose.owner in (None, owner) or account in whose.accounts

        return SeenWeek(hours=found.rows, names={holder: holder[0] if seen(*holder) else None for holder in found.holders})

    def attempts(self, caller: Caller, *, begin: float | None, end: float | None, after: int, limit: int) -> AttemptPage:
        """Attempts that were there in the range, with their jobs: those of `limit` jobs after `after`, in the order of jobs.

        Whoever reads all pages with the range of the first has each attempt once; those of one job are of one moment.
        """
        now = self.clock()
        within, whose = _range(begin, end, now), whose_use(caller)
        with self.turns.one(caller.user.subject):
            found, last = self.store.exported(within, whose, now, after=after, limit=limit)
        there = [one for one in found if within.meets(one.submitted_at, now if one.ended_at is None else one.ended_at)]
        return AttemptPage(within=within, attempts=there, next=last)


def whose_use(caller: Caller) -> Whose:
    """Whose use the caller may see: their own, account managers that of their accounts, administrators everybody's."""
    if allowed(caller, Action.SEE_USE):
        return Whose()
    me = caller.user.subject
    managed = {name for name in caller.accounts if allowed(caller, Action.SEE_USE, Resource(account=name))}
    allowed(caller, Action.SEE_USE, Resource(owner=me)).check()
    return Whose(me, frozenset(managed))


def _range(begin: float | None, end: float | None, now: float) -> Range:
    end = now if end is None else end
    begin = max(0.0, end - FOUR_WEEKS) if begin is None else begin
    if begin < 0 or end > _LATEST:
        raise Invalid("No lab has been there then.", remedy="Name moments from 1970 on, and before the year 9999.")
    if begin >= end:
        raise Invalid("The report would end before it begins.", remedy="`to` has to be later than `from`; both are in UTC.")
    return Range(begin, end)

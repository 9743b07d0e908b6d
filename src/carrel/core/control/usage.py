"""What everybody has used, as the loop keeps it between cycles: use that is over, faded, and what is held now.

Nothing of it is stored: it follows from the attempts, which are, so a restart counts it anew and nothing is charged twice. What
cells of sessions borrow is reported by the node's broker as a total, and stored with the attempt
(`carrel.core.control.borrowing`).
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.ports import Used
from carrel.core.control.rules import RuleBook
from carrel.core.control.views import ShareReport
from carrel.core.domain.account import AccountUsage, Standing
from carrel.core.domain.job import Job
from carrel.core.domain.qos import JobKind
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.policy.fairshare import accrued, faded, standings

#: Half-lives after which a use is not worth reading: less than a thousandth of it is left.
REMEMBERED = 10
#: How far ahead the lab says what keeping and releasing would do to one's standing, in seconds.
AN_HOUR = 3600.0
Who = tuple[str, str]
#: A job and the number of its attempt.
SessionAttempt = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that holds resources: whose it is, and what a second of it is charged."""

    who: Who
    rate: float


@dataclass(slots=True)
class Borrowed:
    """What the cells of one attempt of a session have borrowed, in devices × seconds."""

    who: Who
    #: The broker's total, as reported last.
    reported: float
    #: Charged before the broker lost its journal and began to count anew.
    before: float = 0.0

    @property
    def charged(self) -> float:
        """What was charged for it in all."""
        return self.before + self.reported

    def report(self, total: float) -> float:
        """The broker's total is `total` now; return what is new. A total that shrank is one that began anew."""
        new = total - self.reported
        if new < 0:
            self.before -= new
        self.reported = total
        return max(0.0, new)


@dataclass(slots=True)
class Total:
    """What one user has used on one account, and what they hold."""

    #: Charged seconds as of the moment `at`.
    seconds: float = 0.0
    at: float = 0.0
    #: What is charged each second from then on.
    rate: float = 0.0
    #: How many jobs hold something.
    jobs: int = 0

    def seconds_at(self, now: float, half_life: float) -> float:
        """Charged seconds as of `now`, if what is held is held until then."""
        return faded(self.seconds, now - self.at, half_life) + accrued(self.rate, self.at, now, half_life)

    def settle(self, now: float, half_life: float) -> None:
        """Count until `now`."""
        if now > self.at:
            self.seconds, self.at = self.seconds_at(now, half_life), now


class UsageBook:
    """Charges by (account, user). Thread-safe."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._totals: dict[Who, Total] = {}
        self._open: dict[int, Holder] = {}
        #: By job and attempt: sessions that hold something, and those that ended of which the broker still speaks.
        self._borrowed: dict[SessionAttempt, Borrowed] = {}
        self._lock = threading.Lock()

    def load(self, used: Iterable[Used]) -> None:
        """Count what is over since before this server."""
        half_life = self._rules.current.half_life
        with self._lock:
            for item in used:
                rate = self._rate(item.kind, item.gpus, item.cpus)
                # As if it had been stopped first and had run then: what is charged fades by a little less.
                since = min(item.since + item.suspended_seconds, item.until)
                total = self._totals.setdefault((item.account, item.owner), Total(at=item.until))
                total.settle(item.until, half_life)
                charge = accrued(rate, since, item.until, half_life)
                charge += _spread(item.lease_seconds, item.since, item.until, half_life)
                total.seconds += faded(charge, total.at - item.until, half_life)

    def take_up(self, job: Job, *, leased_at: float, borrowed: float, now: float) -> None:
        """An earlier server left the job, whose attempt has had its place since `leased_at`; `borrowed` as for `put`."""
        since = (job.started_at or now if job.handed_over else leased_at) + job.suspended_seconds
        if job.stopped or job.suspended_at is not None:
            # Charged for as long as it ran, and not since then.
            since += now - (job.suspended_at or now)
            self.put(replace(job, preemption=None, suspended_at=None), now=now, since=since, borrowed=borrowed)
            self.put(job, now=now)
        else:
            self.put(job, now=now, since=since, borrowed=borrowed)

    def put(self, job: Job, *, now: float, since: float | None = None, borrowed: float = 0.0) -> None:
        """The job is now as given: it holds resources (from `since` on, by default from `now`), or holds none any more. One
        that is stopped, or whose devices cells have, holds nothing that is charged.

        `borrowed`: what its cells were charged from `since` until `now`, in devices × seconds.
        """
        half_life = self._rules.current.half_life
        with self._lock:
            held = self._open.get(job.id)
            # What waits in the engine's own queue has nothing yet.
            queued = job.handed_over and job.started_at is None
            holds = job.state.holds_resources and job.suspended_at is None and not job.stopped and not queued
            if holds and held is None:
                wanted = job.resources
                rate = self._rate(job.kind, wanted.total_gpus, wanted.cpus * wanted.nodes)
                held = Holder(who=(job.account, job.owner), rate=rate)
                self._open[job.id] = held
                total = self._settled(held.who, now)
                since = now if since is None else since
                total.seconds += accrued(held.rate, since, total.at, half_life)
                total.rate += held.rate
                total.jobs += 1
                # A broker may have spoken of it first, and was believed.
                if (job.id, job.attempt) not in self._borrowed:
                    total.seconds += _spread(borrowed, since, now, half_life)
                    self._borrowed[job.id, job.attempt] = Borrowed(held.who, borrowed)
            elif not holds and held is not None:
                del self._open[job.id]
                total = self._settled(held.who, now)
                # It may have ended while no server ran: what was charged since then is taken back.
                until = now if job.ended_at is None else min(job.ended_at, now)
                total.seconds = max(0.0, total.seconds - accrued(held.rate, until, total.at, half_life))
                total.jobs -= 1
                # Nothing is left of rounding when nothing is held.
                total.rate = total.rate - held.rate if total.jobs else 0.0
                borrowed_of = self._borrowed.get((job.id, job.attempt))
                if borrowed_of is not None and not borrowed_of.charged:
                    del self._borrowed[job.id, job.attempt]

    def borrowed(self, job_id: int, attempt: int, total: float, now: float) -> float | None:
        """The cells of a session have borrowed `total` devices × seconds, says the broker: charge what is new at `now`.

        Return what was charged for them in all; None, and nothing is charged, for a session that was neither put nor recalled.
        """
        with self._lock:
            found = self._borrowed.get((job_id, attempt))
            if found is None:
                return None
            new = found.report(total)
            if new:
                self._settled(found.who, now).seconds += new
            return found.charged

    def recall(self, job_id: int, attempt: int, who: Who, charged: float) -> None:
        """The broker still speaks of a session that has ended, whose cells were charged so much: count on from there."""
        with self._lock:
            self._borrowed.setdefault((job_id, attempt), Borrowed(who, charged))

    def charged(self, job_id: int, attempt: int) -> float | None:
        """What was charged for the cells of the session, in devices × seconds; None for a job without any."""
        with self._lock:
            found = self._borrowed.get((job_id, attempt))
        return found.charged if found is not None and found.charged else None

    def holds(self, job_id: int) -> bool:
        """True while the job is on a node, with or without devices of its own."""
        with self._lock:
            return job_id in self._open

    def let_go(self, spoken_of: Container[SessionAttempt]) -> None:
        """Forget sessions that have ended, but for those of which the broker still speaks."""
        with self._lock:
            self._borrowed = {of: found for of, found in self._borrowed.items() if of in spoken_of or of[0] in self._open}

    def usage(
        self, now: float, others: Iterable[Who] = (), *, ahead: float = 0.0, released: str | None = None
    ) -> Sequence[AccountUsage]:
        """What everybody has used as of `ahead` seconds from `now`, if what is held stays held, but for what `released` holds.

        `others` are counted too, who may have used nothing.
        """
        half_life, then = self._rules.current.half_life, now + ahead
        with self._lock:
            found = {}
            for who, total in self._totals.items():
                until = now if who[1] == released else then
                found[who] = faded(total.seconds_at(max(until, total.at), half_life), then - max(until, total.at), half_life)
        for who in others:
            found.setdefault(who, 0.0)
        return [AccountUsage(account=account, user=user, seconds=seconds) for (account, user), seconds in found.items()]

    def held_by(self, user: str) -> float:
        """What is charged now, each second, for what `user` holds."""
        with self._lock:
            return sum(total.rate for who, total in self._totals.items() if who[1] == user)

    def standings(
        self, now: float, others: Iterable[Who] = (), *, ahead: float = 0.0, released: str | None = None
    ) -> Sequence[Standing]:
        """Where everybody stands then, first those who go first."""
        return standings(self._rules.current.accounts, self.usage(now, others, ahead=ahead, released=released))

    def _rate(self, kind: JobKind, gpus: int, cpus: int) -> float:
        """Charged seconds a second. A session keeps no processors, and no GPU that it has not reserved."""
        return gpus + (0.0 if kind is JobKind.SESSION else cpus * self._rules.current.cpu_charge)

    def _settled(self, who: Who, now: float) -> Total:
        total = self._totals.get(who)
        if total is None:
            total = self._totals[who] = Total(at=now)
        total.settle(now, self._rules.current.half_life)
        return total


def _spread(seconds: float, since: float, until: float, half_life: float) -> float:
    """The charge, as of `until`, of `seconds` that were used evenly between two moments."""
    return accrued(seconds / (until - since), since, until, half_life) if until > since else seconds


def standing_of(caller: Caller, policy: LabPolicy, use: UsageBook, now: float) -> Standing | None:
    """Return where the caller stands on the account that is charged if they name none; None where shares do not count."""
    mine = (policy.charged(caller.user), caller.user.subject)
    if not mine[0] or not policy.rules.current.share_weight:
        return None
    return next((row for row in use.standings(now, [mine]) if (row.account, row.user) == mine), None)


def share_report(caller: Caller, policy: LabPolicy, use: UsageBook, now: float) -> ShareReport:
    """Return where the caller stands on each of their accounts, and others as far as the caller may see them."""
    rules = policy.rules.current
    me = caller.user.subject
    own = policy.charged(caller.user)
    if not own and not allowed(caller, Action.SEE_SHARES):
        policy.account(None, caller.user)  # raises: no account admits them
    others = [(own, me)] if own else []
    found = use.standings(now, others)
    seen = [row for row in found if allowed(caller, Action.SEE_SHARES, Resource(owner=row.user, account=row.account))]
    return ShareReport(
        standings=seen,
        places={(standing.account, standing.user): place for place, standing in enumerate(found, start=1)},
        of=len(found),
        half_life=rules.half_life,
        weight=rules.share_weight,
        held=use.held_by(me),
        kept=_factors(use.standings(now, others, ahead=AN_HOUR), me),
        released=_factors(use.standings(now, others, ahead=AN_HOUR, released=me), me),
    )


def _factors(standings: Sequence[Standing], user: str) -> Mapping[str, float]:
    return {standing.account: standing.factor for standing in standings if standing.user == user}

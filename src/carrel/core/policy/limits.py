"""What one user, one account, and everybody together may hold at the same time in one QoS; and the elements of one array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from carrel.core.domain.placement import ArrayLimit, Holding, Kind, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.submit_limits import SUBMIT_LIMITS, SubmitLimit, SubmitScope

ARRAY_JOBS = "JobArrayTaskLimit"
MAX_JOBS = "QOSMaxJobsPerUserLimit"
MAX_GPUS = "QOSMaxGRESPerUser"
MAX_ACCOUNT_JOBS = "MaxJobsPerAccount"
MAX_ACCOUNT_GPUS = "MaxGRESPerAccount"
GROUP_GPUS = "QOSGrpGRES"
#: Of these, the codes that speak of GPUs.
GPU_CODES = frozenset({MAX_GPUS, MAX_ACCOUNT_GPUS, GROUP_GPUS})
#: The codes of jobs that wait for nothing but a limit.
CODES = GPU_CODES | {ARRAY_JOBS, MAX_JOBS, MAX_ACCOUNT_JOBS} | SUBMIT_LIMITS.keys()


#: More than any number of GPUs.
_MANY = 2**62


class Claim:
    """Room within a limit that is kept for a waiting job, from one moment to another."""

    __slots__ = ("at", "gpus", "gpus_left", "job", "jobs_left", "until")

    def __init__(self, job: Waiting, at: float, jobs_left: float, gpus_left: float) -> None:
        self.job = job
        self.at, self.until = at, at + job.seconds
        self.gpus = job.resources.total_gpus
        #: What the limit leaves to others at the moment at which this begins.
        self.jobs_left, self.gpus_left = jobs_left, gpus_left


#: Why a limit refuses a job: the code, and the claim that the job would be in the way of; None where the limit is used up now.
LimitRefusal = tuple[str, Claim | None]


class Limit:
    """What one holder (a user, an account, everybody) may have at once in one QoS: a resource in time, as a node is.

    Holders give back what they have when they end. Until a `Claim` begins, the room that it keeps is for who is over by then.
    """

    __slots__ = (
        *("jobs", "jobs_code", "max_jobs", "gpus", "gpus_code", "max_gpus"),
        *("claims", "first", "holds"),
    )

    def __init__(self, max_jobs: int | None, max_gpus: int | None, jobs_code: str, gpus_code: str) -> None:
        self.max_jobs: float = inf if max_jobs is None else max_jobs
        self.max_gpus: float = inf if max_gpus is None else max_gpus
        self.jobs_code = jobs_code
        self.gpus_code = gpus_code
        self.jobs = 0
        self.gpus = 0
        #: End and GPUs of each job that is held, by its id.
        self.holds: dict[int, tuple[float, int]] = {}
        #: What is kept for waiting jobs during one walk through the queue.
        self.claims: list[Claim] = []
        #: The first job in line that waits for this limit in this walk.
        self.first: Waiting | None = None

    @property
    def is_bounded(self) -> bool:
        """True when there is a limit at all."""
        return self.max_jobs != inf or self.max_gpus != inf

    def refuses(self, gpus: int, until: float = -inf) -> LimitRefusal | None:
        """Return why a job of so many GPUs that runs from now `until` a moment cannot start now, or None when it can."""
        if self.jobs >= self.max_jobs:
            return self.jobs_code, None
        if gpus and self.gpus + gpus > self.max_gpus:
            return self.gpus_code, None
        for claim in self.claims:
            if claim.at < until:
                if claim.jobs_left < 1:
                    return self.jobs_code, claim
                if gpus > claim.gpus_left and gpus:
                    return self.gpus_code, claim
        return None

    def opens(self, gpus: int, seconds: float, after: float) -> float:
        """Return when a job of so many GPUs and seconds may start, `after` a moment or at it, if all holders use their walltimes.

        Infinite when it never may.
        """
        if gpus > self.max_gpus or self.max_jobs < 1:
            return inf
        ends = sorted(self.holds.values())
        # What holders have from each of these ends on.
        jobs, held = [self.jobs], [self.gpus]
        for _, one in ends:
            jobs.append(jobs[-1] - 1)
            held.append(held[-1] - one)

        def is_open(moment: float) -> bool:
            place = bisect_right(ends, (moment, _MANY))
            active = [claim for claim in self.claims if claim.at <= moment < claim.until]
            if jobs[place] + len(active) >= self.max_jobs:
                return False
            return not gpus or held[place] + sum(claim.gpus for claim in active) + gpus <= self.max_gpus

        moments = {after, *(end for end, _ in ends), *(claim.until for claim in self.claims)}
        for moment in sorted(moment for moment in moments if moment >= after):
            if is_open(moment) and all(is_open(one.at) for one in self.claims if moment < one.at < moment + seconds):
                return moment
        return inf

    def charge(self, job_id: int, gpus: int, ends_by: float) -> None:
        """Count a job that holds resources until a moment."""
        self.jobs += 1
        self.gpus += gpus
        self.holds[job_id] = (ends_by, gpus)
        for claim in self.claims:
            if claim.at < ends_by:
                claim.jobs_left -= 1
                claim.gpus_left -= gpus

    def discharge(self, job_id: int) -> None:
        """A job holds nothing any more."""
        _, gpus = self.holds.pop(job_id)
        self.jobs -= 1
        self.gpus -= gpus

    def claim(self, job: Waiting, at: float) -> None:
        """Keep room for `job` from a moment on, for as long as it runs."""
        later = [gpus for end, gpus in self.holds.values() if end > at]
        others = [claim for claim in self.claims if claim.at <= at < claim.until]
        gpus = job.resources.total_gpus
        own = Claim(
            job,
            at,
            self.max_jobs - len(later) - len(others) - 1,
            self.max_gpus - sum(later) - sum(claim.gpus for claim in others) - gpus,
        )
        for claim in self.claims:
            if at <= claim.at < own.until:
                claim.jobs_left -= 1
                claim.gpus_left -= gpus
        self.claims.append(own)

    def unclaim(self) -> None:
        """The walk is over."""
        self.claims.clear()
        self.first = None


class Submitted(Limit):
    """How many jobs of one scope are handed to Slurm, since it has refused one."""

    __slots__ = ("scope", "words")

    #: Slurm's limit comes and goes.
    is_bounded = True

    def __init__(self, scope: SubmitScope, known: SubmitLimit) -> None:
        super().__init__(known.at_most, None, known.code, "")
        self.scope = scope
        #: What Slurm said, without a full stop.
        self.words = known.words


class Limits:
    """All that limits one user who works for one account in one QoS, or one array of theirs."""

    __slots__ = ("_bounded", "parts", "qos")

    def __init__(self, qos: QoS, parts: tuple[Limit, ...], array: Limit | None = None) -> None:
        """`parts` are that of the user first, then that of the account and that of everybody, where there is one."""
        self.qos = qos
        #: The inner ones first: whom the array's own limit keeps out stands before nobody else of its owner.
        self.parts = parts if array is None else (array, *parts)
        #: Those that may refuse somebody.
        self._bounded = tuple(limit for limit in self.parts if limit.is_bounded)

    def refuses(self, gpus: int, until: float = -inf) -> tuple[Limit, LimitRefusal] | None:
        """Return the first limit that keeps a job of so many GPUs from starting now, to run `until` a moment, and why; or None.

        Without `until` nothing counts that is kept for others.
        """
        for limit in self._bounded:
            refusal = limit.refuses(gpus, until)
            if refusal is not None:
                return limit, refusal
        return None

    def opens(self, gpus: int, seconds: float, after: float) -> float:
        """Return the first moment from `after` on at which all of them let such a job start; infinite when they never do."""
        while True:
            moment = max((limit.opens(gpus, seconds, after) for limit in self._bounded), default=after)
            if moment in (after, inf):
                return moment
            after = moment

    def charge(self, job_id: int, gpus: int, ends_by: float) -> None:
        """Count a job that holds resources."""
        for limit in self.parts:
            limit.charge(job_id, gpus, ends_by)

    def discharge(self, job_id: int) -> None:
        """A job holds nothing any more."""
        for limit in self.parts:
            limit.discharge(job_id)

    def claim(self, job: Waiting, at: float, parts: Iterable[Limit] | None = None) -> None:
        """Keep room for `job` from a moment on, within these `parts` or within all."""
        for limit in self.parts if parts is None else parts:
            limit.claim(job, at)

    def unclaim(self) -> None:
        """The walk is over."""
        for limit in self.parts:
            limit.unclaim()

    def of_code(self, code: str) -> Limit | None:
        """Return the limit that gives `code`, or None."""
        return next((limit for limit in self.parts if code in (limit.jobs_code, limit.gpus_code)), None)

    def up_to_last(self, gpus: int, seconds: float, after: float) -> Sequence[Limit]:
        """Return the limit that lets such a job start last, and those inside it."""
        opens = [limit.opens(gpus, seconds, after) for limit in self.parts]
        return self.parts[: opens.index(max(opens)) + 1]


class LimitsByOwner:
    """The limits of everybody, made when first asked for."""

    def __init__(
        self,
        qos: Mapping[str, QoS],
        holding: Iterable[Holding],
        now: float = -inf,
        *,
        clusters: Collection[str] = (),
        submit_limits: Mapping[SubmitScope, SubmitLimit] | None = None,
    ) -> None:
        """`clusters` are the partitions whose jobs are handed to Slurm, `submit_limits` those for which it has refused some."""
        self._qos = qos
        self._clusters = clusters
        #: What holds for jobs in Slurm, beside the lab's own limits.
        self.submitted = {scope: Submitted(scope, known) for scope, known in (submit_limits or {}).items()}
        self._limits: dict[tuple[str, str, str, bool], Limits] = {}
        self._arrays: dict[ArrayLimit, Limits] = {}
        self._users: dict[tuple[str, str], Limit] = {}
        self._accounts: dict[tuple[str, str], Limit] = {}
        self._groups: dict[str, Limit] = {}
        for held in holding:
            limits = self.of(held)
            if limits is not None:
                limits.charge(held.id, held.resources.total_gpus, max(held.over_by, now))

    def of(self, job: Kind | Waiting | Holding) -> Limits | None:
        """Return what limits a job; None when there is no such QoS."""
        whole = self._of(job.owner, job.account, job.qos, in_slurm=job.partition in self._clusters)
        if whole is None or job.array is None:
            return whole
        limits = self._arrays.get(job.array)
        if limits is None:
            own = Limit(job.array.at_most, None, ARRAY_JOBS, "")
            limits = self._arrays[job.array] = Limits(whole.qos, whole.parts, own)
        return limits

    def forget(self, array: ArrayLimit) -> None:
        """Nobody of the array is there any more."""
        self._arrays.pop(array, None)

    def _of(self, owner: str, account: str, qos: str, *, in_slurm: bool) -> Limits | None:
        limits = self._limits.get((owner, account, qos, in_slurm))
        if limits is None:
            service = self._qos.get(qos)
            if service is None:
                return None
            parts = self._parts(owner, account, service)
            if in_slurm:
                parts += tuple(limit for scope, limit in self.submitted.items() if scope.covers(owner, account, qos))
            limits = self._limits[owner, account, qos, in_slurm] = Limits(service, parts)
        return limits

    def _parts(self, owner: str, account: str, qos: QoS) -> tuple[Limit, ...]:
        user = self._users.get((owner, qos.name))
        if user is None:
            user = self._users[owner, qos.name] = Limit(qos.max_jobs_per_user, qos.max_gpus_per_user, MAX_JOBS, MAX_GPUS)
        parts = [user]
        if qos.max_jobs_per_account is not None or qos.max_gpus_per_account is not None:
            whole = self._accounts.get((account, qos.name))
            if whole is None:
                whole = self._accounts[account, qos.name] = Limit(
                    qos.max_jobs_per_account,
                    qos.max_gpus_per_account,
                    MAX_ACCOUNT_JOBS,
                    MAX_ACCOUNT_GPUS,
                )
            parts.append(whole)
        if qos.max_gpus is not None:
            # There is no limit to the jobs of everybody, so nothing is ever refused with the code for it.
            if qos.name not in self._groups:
                self._groups[qos.name] = Limit(None, qos.max_gpus, "", GROUP_GPUS)
            parts.append(self._groups[qos.name])
        return tuple(parts)

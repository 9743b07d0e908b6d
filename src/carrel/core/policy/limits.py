"""What one user, one account, and everybody together may hold at the same time in one QoS; and the elements of one array."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Protocol

from carrel.core.domain.placement import ArrayLimit, Holding, Waiting
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


#: Tells limits apart: whose it is, and in which QoS.
LimitKey = tuple[str, ...]


class Limit:
    """What one holder (a user, an account, everybody) has in one QoS, counting this cycle's starts, against what it may have."""

    __slots__ = (
        *("jobs", "jobs_code", "max_jobs", "gpus", "gpus_code", "max_gpus"),
        *("claims", "holds", "key"),
    )

    def __init__(self, key: LimitKey, max_jobs: int | None, max_gpus: int | None, jobs_code: str, gpus_code: str) -> None:
        self.key = key
        self.max_jobs: float = inf if max_jobs is None else max_jobs
        self.max_gpus: float = inf if max_gpus is None else max_gpus
        self.jobs_code = jobs_code
        self.gpus_code = gpus_code
        self.jobs = 0
        self.gpus = 0
        #: End and GPUs of each job that is held, by its id.
        self.holds: dict[int, tuple[float, int]] = {}
        #: The holder's jobs that something is promised to, in order.
        self.claims: list[Waiting] = []

    def refuses(self, wanted: int, ahead: int) -> str | None:
        """Return the code of the limit that stops a job of `wanted` GPUs from starting now, or None.

        `ahead` are the GPUs of the largest of the holder's jobs that wait ahead of it. When the limit does not let that one
        in, no later job takes GPUs: otherwise a stream of small jobs would keep the large one waiting for ever.
        """
        jobs, gpus = self.jobs, self.gpus
        for job in self.claims:
            jobs += 1
            gpus += job.resources.total_gpus
        if jobs >= self.max_jobs:
            return self.jobs_code
        if wanted == 0:
            return None
        return self.gpus_code if gpus + wanted > self.max_gpus or self.gpus + ahead > self.max_gpus else None

    @property
    def limits_gpus(self) -> bool:
        """True when there is a limit to GPUs at all."""
        return self.max_gpus != inf

    def admits(self, gpus: int) -> bool:
        """True when a job of so many GPUs could start now, as far as this limit goes, without those ahead."""
        return self.jobs < self.max_jobs and (gpus == 0 or self.gpus + gpus <= self.max_gpus)

    def charge(self, job_id: int, gpus: int, ends_by: float) -> None:
        """Count a job that holds resources."""
        self.jobs += 1
        self.gpus += gpus
        self.holds[job_id] = (ends_by, gpus)

    def discharge(self, job_id: int) -> None:
        """A job holds nothing any more."""
        _, gpus = self.holds.pop(job_id)
        self.jobs -= 1
        self.gpus -= gpus

    def claim(self, job: Waiting) -> None:
        """Keep room within the limit for `job`, from now until it starts.

        Also against jobs that would be over by then: while they run the limit would refuse `job`, which would lose its promise,
        and others would take the room. Several claims add up, also those of jobs that are not to run at the same time: what
        is promised is never refused because of somebody who came later.
        """
        self.claims.append(job)

    def unclaim(self) -> None:
        """The promises are over."""
        self.claims.clear()

    @property
    def first_claim(self) -> Waiting | None:
        """The first of the holder's jobs that something is promised to, or None."""
        return self.claims[0] if self.claims else None

    def counts(self, inner: Iterable[Limit], gpus: int) -> bool:
        """True when a waiting job of so many GPUs stands before later ones: it may have them some day, and as far as the
        `inner` limits go now."""
        return gpus <= self.max_gpus and all(limit.admits(gpus) for limit in inner)


class Submitted(Limit):
    """How many jobs of one scope are handed to Slurm, since it has refused one."""

    __slots__ = ("scope", "words")

    def __init__(self, scope: SubmitScope, known: SubmitLimit) -> None:
        super().__init__(("Slurm", str(scope)), known.at_most, None, known.code, "")
        self.scope = scope
        #: What Slurm said, without a full stop.
        self.words = known.words


def _nobody(_limit: Limit) -> int:
    return 0


class Limits:
    """All that limits one user who works for one account in one QoS, or one array of theirs."""

    __slots__ = ("parts", "qos", "user")

    def __init__(self, qos: QoS, parts: tuple[Limit, ...], array: Limit | None = None) -> None:
        """`parts` are that of the user first, then that of the account and that of everybody, where there is one."""
        self.qos = qos
        self.user = parts[0]
        #: The inner ones first: whom the array's own limit keeps out stands before nobody else of its owner.
        self.parts = parts if array is None else (array, *parts)

    def refuses(self, gpus: int, ahead: Callable[[Limit], int] = _nobody) -> tuple[Limit, str] | None:
        """Return the first limit that stops a job of so many GPUs from starting now, and the code for it; or None.

        `ahead` says of a limit to GPUs how many a job asks for that stands ahead and that this limit alone does not let in now.
        """
        for limit in self.parts:
            code = limit.refuses(gpus, ahead(limit) if gpus and limit.limits_gpus else 0)
            if code is not None:
                return limit, code
        return None

    def charge(self, job_id: int, gpus: int, ends_by: float) -> None:
        """Count a job that holds resources."""
        for limit in self.parts:
            limit.charge(job_id, gpus, ends_by)

    def discharge(self, job_id: int) -> None:
        """A job holds nothing any more."""
        for limit in self.parts:
            limit.discharge(job_id)

    def claim(self, job: Waiting) -> None:
        """Keep room within the limits for `job`, from now until it starts."""
        for limit in self.parts:
            limit.claim(job)

    def unclaim(self) -> None:
        """The promises are over."""
        for limit in self.parts:
            limit.unclaim()

    def of_code(self, code: str) -> Limit | None:
        """Return the limit that gives `code`, or None."""
        return next((limit for limit in self.parts if code in (limit.jobs_code, limit.gpus_code)), None)

    def inside(self, limit: Limit) -> tuple[Limit, ...]:
        """Return those before `limit`, which is one of them."""
        return self.parts[: self.parts.index(limit)]


class Limited(Protocol):
    """A job as far as limits go."""

    @property
    def owner(self) -> str:
        """Whose it is."""
        ...

    @property
    def account(self) -> str:
        """What its use is charged to."""
        ...

    @property
    def qos(self) -> str:
        """Its class of service."""
        ...

    @property
    def partition(self) -> str:
        """Where it runs; "" in a lab without partitions."""
        ...

    @property
    def array(self) -> ArrayLimit | None:
        """Its array, where that has a limit of its own."""
        ...


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

    def of(self, job: Limited) -> Limits | None:
        """Return what limits a job; None when there is no such QoS."""
        whole = self._of(job.owner, job.account, job.qos, in_slurm=job.partition in self._clusters)
        if whole is None or job.array is None:
            return whole
        limits = self._arrays.get(job.array)
        if limits is None:
            own = Limit(("array", *map(str, job.array)), job.array.at_most, None, ARRAY_JOBS, "")
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
            user = self._users[owner, qos.name] = Limit(
                ("user", owner, qos.name), qos.max_jobs_per_user, qos.max_gpus_per_user, MAX_JOBS, MAX_GPUS
            )
        parts = [user]
        if qos.max_jobs_per_account is not None or qos.max_gpus_per_account is not None:
            whole = self._accounts.get((account, qos.name))
            if whole is None:
                whole = self._accounts[account, qos.name] = Limit(
                    ("account", account, qos.name),
                    qos.max_jobs_per_account,
                    qos.max_gpus_per_account,
                    MAX_ACCOUNT_JOBS,
                    MAX_ACCOUNT_GPUS,
                )
            parts.append(whole)
        if qos.max_gpus is not None:
            # There is no limit to the jobs of everybody, so nothing is ever refused with the code for it.
            if qos.name not in self._groups:
                self._groups[qos.name] = Limit(("all", qos.name), None, qos.max_gpus, "", GROUP_GPUS)
            parts.append(self._groups[qos.name])
        return tuple(parts)

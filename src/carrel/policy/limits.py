"""How much one user may hold at the same time in one QoS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from carrel.domain.placement import Holding, Waiting
from carrel.domain.qos import QoS

MAX_JOBS = "QOSMaxJobsPerUserLimit"
MAX_GPUS = "QOSMaxGRESPerUser"


class Limit:
    """What one user holds in one QoS, counting this cycle's starts, against what they may hold."""

    __slots__ = ("_claim_at", "claimed_by", "closed_by", "gpus", "holds", "jobs", "max_gpus", "max_jobs", "qos")

    def __init__(self, qos: QoS) -> None:
        self.qos = qos
        self.max_jobs: float = inf if qos.max_jobs_per_user is None else qos.max_jobs_per_user
        self.max_gpus: float = inf if qos.max_gpus_per_user is None else qos.max_gpus_per_user
        self.jobs = 0
        self.gpus = 0
        #: End and GPUs of each job that is held.
        self.holds: list[tuple[float, int]] = []
        #: The first of the user's jobs that the GPU limit stopped in this cycle.
        self.closed_by: Waiting | None = None
        #: The user's job that has the reservation, if any.
        self.claimed_by: Waiting | None = None
        self._claim_at = -inf

    def refuses(self, job: Waiting, ends_by: float) -> str | None:
        """Return the code of the limit that stops `job` from starting now, or None.

        Once the GPU limit stops one job, no later job of the same user and QoS takes GPUs: otherwise a user's stream of
        small jobs would keep their own large job waiting for ever.
        """
        jobs, gpus, wanted = self.jobs, self.gpus, job.resources.gpus
        if self.claimed_by is not None and ends_by > self._claim_at:
            jobs += 1
            gpus += self.claimed_by.resources.gpus
        if jobs >= self.max_jobs:
            return MAX_JOBS
        if wanted == 0:
            return None
        if wanted > self.max_gpus:  # Never, unless the limit changes: it must not stop the others.
            return MAX_GPUS
        if self.closed_by is not None:
            return MAX_GPUS
        if gpus + wanted > self.max_gpus:
            self.closed_by = job
            return MAX_GPUS
        return None

    def charge(self, gpus: int, ends_by: float) -> None:
        """Count a job that holds resources."""
        self.jobs += 1
        self.gpus += gpus
        self.holds.append((ends_by, gpus))

    def claim(self, job: Waiting, at: float) -> None:
        """Keep room within the limit for `job`, which is to start at `at`: jobs that end later count it in."""
        self.claimed_by = job
        self._claim_at = at


class Ledger:
    """The limits of everybody, made when first asked for."""

    def __init__(self, qos: Mapping[str, QoS], holding: Iterable[Holding], now: float) -> None:
        self._qos = qos
        self._limits: dict[tuple[str, str], Limit] = {}
        for held in holding:
            limit = self.of(held.owner, held.qos)
            if limit is not None:
                limit.charge(held.resources.gpus, max(held.ends_by, now))

    def of(self, owner: str, qos: str) -> Limit | None:
        """Return the limit of `owner` in `qos`, or None when there is no such QoS."""
        limit = self._limits.get((owner, qos))
        if limit is None:
            service = self._qos.get(qos)
            if service is None:
                return None
            limit = self._limits[owner, qos] = Limit(service)
        return limit

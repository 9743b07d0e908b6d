"""Later jobs of a project beside its baseline, and baselines that are run again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carrel.core.comparison import Metrics, Side, drift_of
from carrel.core.control.baselines import Baselines
from carrel.core.control.ports import JobFilter
from carrel.core.domain.baseline import MOST_ROWS, Baseline, Calibration, Drift, Outcome
from carrel.core.domain.comparison import Agreement, Kind
from carrel.core.domain.errors import NotFound
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.qos import JobKind
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed, of_job
from carrel.lab.gateway.comparing import CUT_SHORT, NEVER_RAN, Comparing

#: Jobs that are looked through for those of a project, at once and in all.
_PAGE, _LOOKED_AT = 100, 500
#: Comparisons that are remembered: some kilobytes each.
_REMEMBERED = 2000
#: Seconds after its end for which a job's results may still become known.
_PATIENCE = 3600.0
#: Seconds after the end of its job in which one goes on with a calibration that was left.
_LASTS = 12 * 3600.0
#: Seconds for which jobs are compared for one answer; those that are left are compared for the next one.
_AT_ONCE = 10.0
_OUTCOMES = {
    Agreement.IDENTICAL: Outcome.SAME,
    Agreement.WITHIN_TOLERANCE: Outcome.SAME,
    Agreement.DIFFERENT: Outcome.MOVED,
    Agreement.UNKNOWN: Outcome.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Later:
    """A job of the project, as the table has it."""

    job: Job
    #: The calibration whose job it is; None: it is none.
    calibration: Calibration | None
    drift: Drift | None


class Remembered:
    """Comparisons of jobs that have ended, the ones that were asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, Drift] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: object) -> Drift | None:
        """What was put under this key, or None."""
        with self._guard:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: object, drift: Drift) -> None:
        """Remember it in the place of the one that was not asked for for the longest time."""
        with self._guard:
            self._found[key] = drift
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifts:
    """Compares later jobs with baselines, and runs baselines again."""

    baselines: Baselines
    comparing: Comparing
    remembered: Remembered = field(default_factory=Remembered)

    def ran_with(self, caller: Caller, baseline: Baseline) -> tuple[str, str]:
        """Python and machine of the baseline's own job, as those of others are told."""
        side = _Once(self, caller, baseline).get()
        own = drift_of(side, side)
        return own.python, own.machine

    def later(self, caller: Caller, baseline: Baseline) -> Sequence[Later]:
        """The last later jobs of the project and calibrations, oldest first."""
        past = {one.job: one for one in self._calibrations(caller, [baseline])[baseline.id]}
        found = {job.id: job for job in self._jobs(baseline)}
        jobs_store = self.comparing.lab.jobs_store
        found |= {number: job for number in [*past][:MOST_ROWS] if number not in found and (job := jobs_store.get(number))}
        side = _Once(self, caller, baseline)
        shown = sorted(found.values(), key=lambda job: job.id, reverse=True)[:MOST_ROWS]
        rows, until = [], time.monotonic() + _AT_ONCE
        for job in shown:  # the newest first
            calibration = past.get(job.id)
            rows.append(Later(job, calibration, self._drift_of_job(side, job, calibration) if time.monotonic() < until else None))
        return rows[::-1]

    def last_known(self, caller: Caller, found: Sequence[Baseline]) -> Mapping[int, Calibration | None]:
        """Of each baseline the newest calibration of which it is known what came of it."""
        past = self._calibrations(caller, found)
        return {number: next((one for one in every if one.known_at is not None), None) for number, every in past.items()}

    # ---- calibrations

    def calibrate(self, caller: Caller, baseline_id: int, *, fresh: bool) -> Calibration:
        """Run the baseline again as a job of the caller's, or go on with the one that the caller has begun so and not asked for.

        Raises as `Repeating.rerun`.
        """
        baseline = self.baselines.get(caller, baseline_id, Action.CALIBRATE)
        past = self.baselines.store.calibrations([baseline_id])[baseline_id]
        for one in past:
            if one.fresh == fresh and one.by == caller.user.subject and self._is_open(one):
                return self._known(caller, baseline, one)
        number = 1 + max((one.number for one in past), default=0)
        # Asked twice at once, there is one job.
        key = f"calibrate:{baseline.id}:{number}:{'fresh' if fresh else 'same'}"
        lab = self.comparing.lab
        job = lab.repeating.rerun(caller, baseline.job, fresh=fresh, key=key)
        begun = Calibration(
            baseline=baseline.id, job=job.id, number=number, by=caller.user.subject, fresh=fresh, begun_at=lab.clock()
        )  # fmt: skip
        self.baselines.store.begin(begun)
        return self._known(caller, baseline, begun)

    def calibration(self, caller: Caller, baseline_id: int, job_id: int) -> Calibration:
        """One calibration, and what came of it if its job has ended; that is kept. Raises `NotFound`."""
        baseline = self.baselines.get(caller, baseline_id)
        for one in self.baselines.store.calibrations([baseline_id])[baseline_id]:
            if one.job == job_id:
                found = self._known(caller, baseline, one)
                if found.known_at is not None and not found.collected and found.by == caller.user.subject:
                    self.baselines.store.collect(found.job)
                return found
        raise NotFound(f"Job {job_id} does not calibrate baseline {baseline_id}.", remedy="`carrel baseline show` lists those.")

    def _calibrations(self, caller: Caller, found: Sequence[Baseline]) -> Mapping[int, Sequence[Calibration]]:
        past = self.baselines.store.calibrations([one.id for one in found])
        return {baseline.id: [self._known(caller, baseline, one) for one in past[baseline.id]] for baseline in found}

    def _known(self, caller: Caller, baseline: Baseline, one: Calibration) -> Calibration:
        """The calibration with what came of it, which is written down once it is known."""
        lab = self.comparing.lab
        job = lab.jobs_store.get(one.job)
        if one.known_at is not None or job is None or not job.state.ended or not allowed(caller, Action.READ_JOB, of_job(job)):
            return one
        if job.state in CUT_SHORT:
            return replace(one, state=job.state.value, message=job.reason.message, outcome=Outcome.UNKNOWN)
        if job.state is JobState.COMPLETED:
            drift = self._drift(_Once(self, caller, baseline), job)
            known = replace(one, drift=drift, outcome=_OUTCOMES[drift.agreement], state=job.state.value)
            if drift.not_known and lab.clock() - (job.ended_at or 0.0) < _PATIENCE:  # the tracking server may tell it later
                return known
        else:
            outcome = Outcome.UNKNOWN if job.reason.code in NEVER_RAN else Outcome.MOVED
            known = replace(one, state=job.state.value, message=job.reason.message, outcome=outcome)
        known = replace(known, known_at=lab.clock())
        self.baselines.store.conclude(known)
        return known

    def _is_open(self, one: Calibration) -> bool:
        """True while who has begun it does not know what came of it, and may still go on with it."""
        job = self.comparing.lab.jobs_store.get(one.job)
        if job is None or job.state in CUT_SHORT or one.collected:
            return False
        # What it came to yesterday says nothing about the machine of today.
        return job.ended_at is None or self.comparing.lab.clock() - job.ended_at < _LASTS

    # ---- comparing

    def _jobs(self, baseline: Baseline) -> list[Job]:
        """The project's last later jobs, newest first: tasks of its name that are no experiments of `carrel why`."""
        found: list[Job] = []
        which, before = JobFilter(owner=baseline.owner, name=baseline.project, kind=JobKind.TASK), None
        for _ in range(_LOOKED_AT // _PAGE):
            page = self.comparing.lab.jobs_store.list(which, before=before, limit=_PAGE)
            later = [job for job in page if job.id > baseline.job]
            found += self._of_project(baseline, later)
            if len(found) >= MOST_ROWS or len(later) < _PAGE:
                break
            before = page[-1].id
        return found[:MOST_ROWS]

    def _of_project(self, baseline: Baseline, jobs: Sequence[Job]) -> Iterator[Job]:
        calibrated = self.baselines.store.calibrated_by([job.id for job in jobs])
        for job in jobs:
            task = self.comparing.lab.jobs_store.task(job.id)
            if task is not None and task.variant_of is None and calibrated.get(job.id, baseline.id) == baseline.id:
                yield job

    def _drift_of_job(self, side: _Once, job: Job, calibration: Calibration | None) -> Drift | None:
        if calibration is not None and calibration.drift is not None:
            return calibration.drift
        readable = bool(allowed(side.caller, Action.READ_JOB, of_job(job)))
        return self._drift(side, job) if job.state.ended and job.attempt and readable else None

    def _drift(self, side: _Once, job: Job) -> Drift:
        baseline = side.baseline
        key = (baseline.job, baseline.tolerance, baseline.ignored, job.id, job.attempt)
        found = self.remembered.get(key)
        if found is None:
            first, other = side.get(), side.read(job)
            found = drift_of(first, other, tolerance=baseline.tolerance, ignore=baseline.ignored)
            if not found.not_known:  # what is not known now may be known later
                self.remembered.put(key, found)
        return found


class _Once:
    """What is known of a baseline's own job, read when it is needed first, and of others beside it."""

    def __init__(self, drifts: Drifts, caller: Caller, baseline: Baseline) -> None:
        self.caller, self.baseline = caller, baseline
        self._comparing = drifts.comparing
        self._side: Side | None = None
        #: Said instead of the metrics of jobs, once the tracking server did not tell those of one: it is not asked fifty times.
        self.silent: Metrics | None = None

    def get(self) -> Side:
        if self._side is None:
            self._side = self.read(self._comparing.lab.job(self.caller, self.baseline.job, Action.READ_JOB))
        return self._side

    def read(self, job: Job) -> Side:
        """What is known of another job."""
        found = self._comparing.results_of(self.caller, job, self.silent)
        if (missing := found.section(Kind.METRIC).missing) and job.run_id is not None:
            self.silent = Metrics(missing=missing)
        return found

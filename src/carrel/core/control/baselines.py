"""Baselines of projects: who may set, see and calibrate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.control.lab import Lab
from carrel.core.domain.baseline import Baseline, Calibration
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.job import JobState
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, Resource, allowed
from carrel.core.submission.kinds import NAME


class BaselineStore(Protocol):
    """Keeps baselines, and what calibrations of them came to. Every method is one transaction.

    `carrel.lab.store.baselines.BaselineTable` is one, and has the promises.
    """

    def put(self, *, owner: str, project: str, job: int, tolerance: float, ignored: Sequence[str], now: float) -> Baseline: ...
    def get(self, baseline_id: int) -> Baseline | None: ...
    def list(self, owner: str | None) -> Sequence[Baseline]: ...
    def remove(self, baseline_id: int) -> None: ...
    def calibrations(self, baselines: Sequence[int]) -> Mapping[int, Sequence[Calibration]]: ...
    def begin(self, calibration: Calibration) -> None: ...
    def conclude(self, calibration: Calibration) -> None: ...
    def collect(self, job: int) -> None: ...
    def calibrated_by(self, jobs: Sequence[int]) -> Mapping[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Sets, lists and removes them. Thread-safe."""

    store: BaselineStore
    lab: Lab

    def set(self, caller: Caller, job_id: int, *, project: str | None, tolerance: float, ignored: Sequence[str]) -> Baseline:
        """Make a job of the caller's the baseline of a project, by default of the jobs of its name.

        Raises `Invalid` for a session and for a job that is not COMPLETED, `NotFound` and `Denied` for jobs of others.
        """
        job = self.lab.job(caller, job_id)
        allowed(caller, Action.CHANGE_BASELINE, Resource(owner=job.owner)).check()
        if self.lab.task(caller, job_id).session is not None:
            raise Invalid(f"Job {job_id} is a session.", remedy="Name a task.")
        if job.state is not JobState.COMPLETED:
            raise Invalid(f"Job {job_id} is {job.state}.", remedy="Name a job that is COMPLETED.")
        named = NAME.read("project", project) if project is not None else job.name
        return self.store.put(
            owner=job.owner, project=named, job=job_id, tolerance=tolerance, ignored=ignored, now=self.lab.clock()
        )

    def get(self, caller: Caller, baseline_id: int, action: Action = Action.SEE_BASELINE) -> Baseline:
        """The baseline, if the caller may do `action` with it. Raises `NotFound` and `Denied`."""
        missing = NotFound(f"There is no baseline {baseline_id}.", remedy="`carrel baseline list` lists yours.")
        found = self.store.get(baseline_id)
        if found is None:
            raise missing
        allowed(caller, action, Resource(owner=found.owner)).check(missing)
        return found

    def list(self, caller: Caller, *, everybody: bool = False) -> Sequence[Baseline]:
        """The caller's own, or everybody's. Raises `Denied` for who may not see those of others."""
        allowed(caller, Action.SEE_BASELINE, Resource(owner=None if everybody else caller.user.subject)).check()
        return self.store.list(None if everybody else caller.user.subject)

    def remove(self, caller: Caller, baseline_id: int) -> Baseline:
        """Forget it. Jobs stay as they are."""
        found = self.get(caller, baseline_id, Action.CHANGE_BASELINE)
        self.store.remove(baseline_id)
        return found

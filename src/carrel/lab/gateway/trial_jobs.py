"""Trials of sweeps are jobs like others, submitted for the sweep's owner; and from a request to what a sweep is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carrel.core.control.lab import Lab
from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.distribution import Distribution, DistributionKind, ParameterValue, as_text
from carrel.core.domain.errors import Invalid
from carrel.core.domain.sweep import Direction, Pruner, Sampler, Sweep, SweepSpec, Trial
from carrel.core.domain.user import Caller
from carrel.core.policy.next_trial import grid_size
from carrel.core.submission import SweepOptions, options_of
from carrel.lab.gateway.submission import Submissions
from carrel.wire.v1 import SweepRequest, TaskRequest

_TRIALS, _PARALLEL = 20, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJobs:
    """Implements `carrel.core.control.sweep_ports.TrialJobs`."""

    lab: Lab
    submissions: Submissions

    def read(self, caller: Caller, request: SweepRequest) -> SweepSpec:
        """What the sweep is: the request's own words, then those of the task's file. Raises `Invalid`, `NotFound`."""
        said = _said(request).over(self.submissions.sweep_options(caller, request.task))
        task = request.task
        if caller.account is not None and task.account is None:
            task = task.model_copy(update={"account": caller.account})
        parameters = dict(said.parameters or {})
        both = sorted(parameters.keys() & (request.task.parameters.keys() - request.parameters.keys()))
        for name in both:  # said on the command line, so it stays the same although the file would vary it
            del parameters[name]
        if said.metric is None:
            raise Invalid(
                "Nothing says which metric decides.", remedy="Say --metric val_loss, or write sweep: metric: into the MLproject."
            )
        grid = said.sampler is Sampler.GRID
        spec = SweepSpec(
            name="",
            parameters=parameters,
            trials=said.trials or (grid_size(parameters) if grid and parameters else _TRIALS),
            parallel=said.parallel or _PARALLEL,
            metric=said.metric,
            direction=said.direction or Direction.MINIMIZE,
            sampler=said.sampler or Sampler.TPE,
            pruner=said.pruner or Pruner.NONE,
            seed=said.seed or 0,
            task=task.model_dump(mode="json", exclude_none=True),
        )
        return replace(spec, name=self.submissions.name_of(caller, _first(spec)))

    def check(self, caller: Caller, spec: SweepSpec) -> None:
        """Raise what keeps such a trial from being submitted by the caller."""
        request = _first(spec)
        if request.array is not None:
            raise Invalid("A trial is one job, and no array.", remedy="Leave array out; --parallel says how many run at once.")
        if spec.task.get("cache"):
            raise Invalid("A trial is carried out, and takes no earlier job's result.", remedy="Leave cache out.")
        if request.tracking is not None:
            raise Invalid("Each trial has a run of its own.", remedy="Leave tracking out.")
        self.submissions.check(caller, request)

    def start(self, sweep: Sweep, trial: Trial) -> int:
        """Submit a trial for the sweep's owner; the same trial is the same job. Returns its number."""
        caller = self.lab.for_owner(sweep.owner, sweep.resumed_at or sweep.created_at)
        request, key = _request(sweep.spec, trial.parameters), f"sweep-{sweep.id}-{trial.number}-{trial.created_at}"
        submitted, _ = self.submissions.submit(caller, request, key, trial=(sweep.id, trial.number), parent=sweep.spec.parent)
        return submitted.job.id

    def end(self, job_id: int, *, by: str) -> None:
        """Ask for the end of a trial's job; `by` says who, and why."""
        job = self.lab.jobs_store.get(job_id)
        if job is not None and not job.state.ended:
            self.lab.end_idle(job, by=by)

    def describe(self, sweep: Sweep, job_id: int) -> Sequence[OutboxEntry]:
        """What there is to tell the tracking server about the sweep's state; `job_id` is one of its trials'."""
        job, task = self.lab.jobs_store.get(job_id), self.lab.jobs_store.task(job_id)
        return () if job is None or task is None else self.lab.describe_sweep(job, task, sweep)


def _said(request: SweepRequest) -> SweepOptions:
    declared = options_of(SweepOptions)
    given: dict[str, Any] = {name: getattr(request, name) for name in declared}
    return SweepOptions(**{name: declared[name].kind.read(name, value) for name, value in given.items() if value is not None})


def _first(spec: SweepSpec) -> TaskRequest:
    """A trial with the smallest values: what can be said of it can be said of all."""
    return _request(spec, {name: _smallest(one) for name, one in spec.parameters.items()})


def _smallest(one: Distribution) -> ParameterValue:
    if one.kind is DistributionKind.CATEGORICAL:
        return one.choices[0]
    return int(one.low) if one.whole else one.low


def _request(spec: SweepSpec, parameters: Mapping[str, ParameterValue]) -> TaskRequest:
    task = TaskRequest.model_validate(spec.task)
    chosen = {name: as_text(value) for name, value in parameters.items()}
    # It has values of its own to report, so no earlier job's result is taken, also where the task's file says so.
    found: TaskRequest = task.model_copy(update={"parameters": {**task.parameters, **chosen}, "cache": False})
    return found

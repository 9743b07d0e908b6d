"""Sweeps: trials of one task with different parameters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from carrel.core.domain.sweep import MOST_TRIALS
from carrel.core.submission import SweepOptions
from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.declared import request_of
from carrel.wire.v1.jobs import TaskRequest

_TrialState = Literal["RUNNING", "COMPLETED", "PRUNED", "FAILED", "CANCELLED"]
_SweepState = Literal["RUNNING", "COMPLETED", "STOPPED", "FAILED"]
#: Most values that a trial reports at once, and the largest step.
MOST_VALUES, LARGEST_STEP = 10_000, 2**53


class SweepRequest(request_of(SweepOptions)):  # type: ignore[misc] # made from the declaration
    """What to try. What is None comes from the table `sweep` of the task's own file."""

    #: The task that each trial is, with the parameters that stay the same.
    task: TaskRequest


class ResumeRequest(Request):
    """Go on with a sweep."""

    #: How many trials it has altogether; None: as many as before.
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)


class TrialValue(Request):
    """A value of the metric."""

    step: int = Field(default=0, ge=0, le=LARGEST_STEP)
    #: NaN and the infinities are the worst that there is.
    value: float


class TrialReport(Request):
    """What a trial has to tell."""

    values: Annotated[list[TrialValue], Field(min_length=1, max_length=MOST_VALUES)]


class TrialVerdict(Response):
    """What becomes of a trial that reported."""

    #: True: it is about to be ended.
    pruned: bool


class TrialView(Response):
    """One trial."""

    number: int
    state: _TrialState
    parameters: dict[str, Any]
    #: The last that it reported.
    value: float | None = None
    job_id: int | None = None
    message: str = ""
    created_at: datetime
    #: When its job ended.
    ended_at: datetime | None = None


class SweepView(Response):
    """One sweep."""

    id: int
    owner: str
    name: str
    state: _SweepState
    message: str = ""
    #: Distributions, as they are written.
    parameters: dict[str, str]
    trials: int
    parallel: int
    metric: str
    direction: str
    sampler: str
    pruner: str
    seed: int
    created_at: datetime
    ended_at: datetime | None = None
    #: Trials by their state.
    counts: dict[str, int] = Field(default_factory=dict)


class SweepDetail(SweepView):
    """One sweep with its trials."""

    #: In their order.
    all_trials: list[TrialView] = Field(default_factory=list)
    #: The best trial's number; None before one has ended well.
    best: int | None = None
    #: The options of `carrel run` with the best trial's parameters, after its target.
    best_arguments: list[str] = Field(default_factory=list)
    #: What keeps trials from being started.
    trouble: str = ""


class SweepList(Response):
    """One's own sweeps, newest first. `next` is the `before` of the following page, or None at the end."""

    sweeps: list[SweepView]
    next: int | None = None

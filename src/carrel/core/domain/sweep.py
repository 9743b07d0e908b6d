"""A sweep: trials of one task with different parameters, each a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from carrel.core.domain.distribution import Distribution, ParameterValue

#: The most trials of a sweep, and the most at once.
MOST_TRIALS, MOST_PARALLEL = 10_000, 1000


class SweepState(StrEnum):
    """What becomes of a sweep."""

    RUNNING = "RUNNING"
    #: All trials that were asked for have ended.
    COMPLETED = "COMPLETED"
    #: Its owner stopped it; it can be resumed.
    STOPPED = "STOPPED"
    #: Its trials cannot be carried out; it can be resumed.
    FAILED = "FAILED"


class TrialState(StrEnum):
    """Slurm's words where it has them."""

    #: Its job has not ended.
    RUNNING = "RUNNING"
    #: Its job ended well, and it has a value.
    COMPLETED = "COMPLETED"
    #: It was ended early, since it would not become one of the best.
    PRUNED = "PRUNED"
    FAILED = "FAILED"
    #: Somebody ended it; another takes its place.
    CANCELLED = "CANCELLED"


class Direction(StrEnum):
    """Which values are better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def worst(self) -> float:
        """The worst value that there is."""
        return math.inf if self is Direction.MINIMIZE else -math.inf


class Sampler(StrEnum):
    """How parameters are chosen."""

    #: Tree-structured Parzen estimator (Bergstra et al. 2011).
    TPE = "tpe"
    RANDOM = "random"
    #: Every combination once.
    GRID = "grid"
    #: Covariance matrix adaptation (Hansen & Ostermeier 2001).
    CMAES = "cmaes"


class Pruner(StrEnum):
    """Which trials end early."""

    NONE = "none"
    #: Those that are worse than the median of others at the same step.
    MEDIAN = "median"
    #: Those that are not in the best quarter at a rung; rungs are at 1, 4, 16, … times the first (Li et al. 2020).
    HALVING = "halving"
    #: The same with several first rungs, of which each trial has one (Li et al. 2018).
    HYPERBAND = "hyperband"

    @property
    def has_rungs(self) -> bool:
        """True when trials are compared at rungs."""
        return self in (Pruner.HALVING, Pruner.HYPERBAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """What is asked for."""

    name: str
    parameters: Mapping[str, Distribution]
    #: How many trials are carried out, and how many at once.
    trials: int
    parallel: int
    #: Which of the values that trials report is the one.
    metric: str
    direction: Direction = Direction.MINIMIZE
    sampler: Sampler = Sampler.TPE
    pruner: Pruner = Pruner.NONE
    seed: int = 0
    #: The task that a trial is, without the parameters of the sweep: a request to submit, as plain values.
    task: Mapping[str, Any] = field(default_factory=dict)
    #: The job that started the sweep, and so submits its trials; None: a person did.
    parent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Trials of one task with different parameters."""

    id: int
    owner: str
    spec: SweepSpec
    state: SweepState = SweepState.RUNNING
    #: Why, where it is not as everybody expects.
    message: str = ""
    created_at: float
    ended_at: float | None = None
    #: When it was resumed last.
    resumed_at: float | None = None
    #: The last step of the trials that were the first to be carried out: rungs are set by it, and stay. None before.
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One combination of parameters, and the job that carries it out."""

    #: From 1 on, in its sweep.
    number: int
    parameters: Mapping[str, ParameterValue]
    state: TrialState = TrialState.RUNNING
    #: None until its job was submitted.
    job_id: int | None = None
    #: The last that it reported of the metric.
    value: float | None = None
    message: str = ""
    created_at: float
    #: When its job ended; None before, also of one that is pruned already.
    ended_at: float | None = None
    #: What the sampler and the pruner keep with it: which rungs it has passed, the state of CMA-ES. JSON.
    attributes: Mapping[str, Any] = field(default_factory=dict)


def best_of(spec: SweepSpec, trials: Iterable[Trial]) -> Trial | None:
    """The trial with the best value among those that were carried out to their end; of equal ones the first."""
    done = [one for one in trials if one.state is TrialState.COMPLETED and one.value is not None]
    sign = 1 if spec.direction is Direction.MINIMIZE else -1
    return min(done, key=lambda one: (sign * (one.value or 0.0), one.number), default=None)

"""Which trial of a sweep is next, and when a sweep is over. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from carrel.core.domain.distribution import Distribution, DistributionKind, ParameterValue
from carrel.core.domain.errors import Invalid
from carrel.core.domain.sweep import Sampler, SweepSpec, SweepState, Trial, TrialState

#: Parameters that are numbers, at most, for CMA-ES: its state grows with their square (64: some 100 KB with a trial).
MOST_FOR_CMAES = 64
#: So many trials may fail before one has a value; then a sweep is over, since the others would fail as well.
FIRST_FAILURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What to do with a sweep that runs."""

    #: Trials to start now.
    start: int = 0
    #: What becomes of it, if it is over, and why.
    state: SweepState = SweepState.RUNNING
    message: str = ""


def standing(spec: SweepSpec, trials: Iterable[Trial], *, since: float = 0.0) -> Standing:
    """Return how many trials to start now, or how the sweep ends. Trials that somebody cancelled do not count.

    `since`: when the sweep was resumed; failures from before are forgiven.
    """
    counted = [one for one in trials if one.state is not TrialState.CANCELLED or one.ended_at is None]
    running = sum(one.ended_at is None for one in counted)
    failed = [one for one in counted if one.state is TrialState.FAILED and one.created_at >= since]
    if len(failed) >= FIRST_FAILURES and not any(one.value is not None for one in counted):
        last = max(failed, key=lambda one: one.number)
        if running:
            return Standing()
        return Standing(
            state=SweepState.FAILED,
            message=f"{len(failed)} trials failed and none has a value. The last, trial {last.number}: {last.message}",
        )
    left = spec.trials - len(counted)
    if left <= 0 and not running:
        return Standing(state=SweepState.COMPLETED)
    return Standing(start=max(0, min(left, spec.parallel - running)))


def grid_size(parameters: Mapping[str, Distribution]) -> int:
    """Return how many combinations there are. Raises `Invalid` where there is no end of them."""
    endless = [name for name, one in parameters.items() if one.size is None]
    if endless:
        raise Invalid(
            f"A grid tries every value, and {endless[0]} is {parameters[endless[0]]}, which has no end of them.",
            remedy="Give it a step, as in uniform(0, 1, step=0.1), or choices, as in categorical(0.1, 0.2); "
            "or take another sampler.",
        )
    return math.prod(one.size or 1 for one in parameters.values())


def grid_point(parameters: Mapping[str, Distribution], index: int) -> dict[str, ParameterValue]:
    """Return combination `index` of a grid, from 0 on; the last parameter changes first."""
    point: dict[str, ParameterValue] = {}
    for name, one in reversed(list(parameters.items())):
        index, place = divmod(index, one.size or 1)
        point[name] = one.value(place)
    return {name: point[name] for name in parameters}


def next_in_grid(spec: SweepSpec, trials: Iterable[Trial]) -> dict[str, ParameterValue]:
    """Return the first combination that no trial has tried, but for those that somebody cancelled."""
    counted = [one for one in trials if one.state is not TrialState.CANCELLED or one.ended_at is None]
    tried = {tuple(one.parameters.items()) for one in counted}
    highest = max((one.number for one in counted), default=0)
    # Where none was cancelled, all up to there were tried: a long sweep does not begin to look at the first.
    begin = len(tried) if highest == len(counted) else 0
    for index in range(begin, grid_size(spec.parameters)):
        point = grid_point(spec.parameters, index)
        if tuple(point.items()) not in tried:
            return point
    raise AssertionError("a sweep has no more trials than its grid has combinations")


def last_step(trials: Iterable[Trial], reported: Mapping[int, Mapping[int, float]]) -> int | None:
    """Return the largest step of all trials that were carried out, or None while there is none."""
    done = [one.number for one in trials if one.state is TrialState.COMPLETED]
    return max((step for number in done for step in reported.get(number, ()) if step >= 0), default=None)


def settled(spec: SweepSpec) -> SweepSpec:
    """Return what is asked for with as many trials as a grid has combinations. Raises `Invalid` for what cannot be."""
    if not spec.parameters:
        raise Invalid(
            "No parameter has a distribution, so every trial would be the same.",
            remedy="Give one: -P lr=loguniform(1e-5,1e-2), or write sweep: parameters: into the MLproject.",
        )
    if spec.sampler is Sampler.CMAES:
        _check_cmaes(spec)
    if spec.sampler is not Sampler.GRID:
        return spec
    return replace(spec, trials=min(spec.trials, grid_size(spec.parameters)))


def _check_cmaes(spec: SweepSpec) -> None:
    numbers = [one for one in spec.parameters.values() if one.kind is not DistributionKind.CATEGORICAL and one.size != 1]
    if not 1 <= len(numbers) <= MOST_FOR_CMAES:
        raise Invalid(
            f"CMA-ES chooses 1 to {MOST_FOR_CMAES} parameters that are numbers, and there are {len(numbers)}.",
            remedy="Take another sampler, such as --sampler tpe.",
        )

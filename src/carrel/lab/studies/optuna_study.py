"""Optuna as the engine of sweeps: a study is made anew from the lab's own trials for each decision, so there is no second memory.

What Optuna's samplers and pruners write into a trial (its system attributes) is handed out, and given back with that trial.
https://optuna.readthedocs.io. A study of 300 trials with 100 values each is made in some 60 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from carrel.core.control.sweep_ports import Reported, Suggestion, Verdict
from carrel.core.domain.distribution import Distribution, DistributionKind, ParameterValue
from carrel.core.domain.errors import Invalid
from carrel.core.domain.sweep import Pruner, Sampler, Sweep, SweepSpec, Trial, TrialState
from carrel.core.submission.installed import install_command

if TYPE_CHECKING:
    import optuna


def seed_of(seed: int, number: int) -> int:
    """Return the seed by which trial `number` of a sweep is chosen. A sum would give neighbouring seeds the same trials."""
    from numpy.random import SeedSequence

    return int(SeedSequence((seed, number)).generate_state(1)[0])


class OptunaStudy:
    """Implements `carrel.core.control.sweep_ports.Study`. The same trials and seed give the same answer."""

    def check(self, spec: SweepSpec) -> None:
        """Raise `Invalid` for a sampler that is not installed here."""
        if spec.sampler is Sampler.CMAES and find_spec("cmaes") is None:
            raise Invalid(
                "The sampler cmaes needs the package cmaes, which is not installed where the lab's server runs.",
                remedy="Take another sampler, such as --sampler tpe; or an administrator installs it there: "
                f"{install_command('cmaes')}.",
            )

    def suggest(self, sweep: Sweep, trials: Sequence[Trial], reported: Reported) -> Suggestion:
        """Return the parameters of the next trial."""
        from optuna.trial import TrialState as State
        from optuna.trial import create_trial

        study = _study(sweep, trials, reported, seed=seed_of(sweep.spec.seed, len(trials) + 1))
        if sweep.last_step is not None:
            # Hyperband knows its brackets, by which it shares trials out to samplers, when it was asked once.
            study.pruner.prune(study, create_trial(state=State.RUNNING))
        asked = study.ask(_distributions(sweep.spec))
        return Suggestion(
            parameters={name: _value(one, asked.params[name]) for name, one in sweep.spec.parameters.items()},
            attributes=_attributes(study, len(trials)),
        )

    def judge(self, sweep: Sweep, trials: Sequence[Trial], reported: Reported, number: int) -> Verdict:
        """Say whether trial `number` should end early after what it has reported last; of others `reported` has that step."""
        study = _study(sweep, trials, reported, seed=sweep.spec.seed)
        pruned = study.pruner.prune(study, study.get_trials(deepcopy=False)[number - 1])
        return Verdict(pruned=bool(pruned), attributes=_attributes(study, number - 1))


def _attributes(study: optuna.Study, place: int) -> dict[str, Any]:
    return dict(study.get_trials(deepcopy=False)[place].system_attrs)


def _study(sweep: Sweep, trials: Sequence[Trial], reported: Reported, *, seed: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spec = sweep.spec
    study = optuna.create_study(
        study_name=f"sweep-{sweep.id}",
        direction=spec.direction.value,
        sampler=_sampler(spec, seed),
        pruner=_pruner(spec.pruner, sweep.last_step),
    )
    distributions = _distributions(spec)
    study.add_trials([_frozen(spec, trial, reported.get(trial.number, {}), distributions) for trial in trials])
    return study


def _sampler(spec: SweepSpec, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    if spec.sampler is Sampler.TPE:
        # Trials that run count as bad ones, so that those beside each other are not alike.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    if spec.sampler is Sampler.CMAES:
        # Choices are no numbers: they are chosen at random, without a warning each time.
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(kind: Pruner, last_step: int | None) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if kind is Pruner.MEDIAN:
        return pruners.MedianPruner()
    if kind.has_rungs and last_step is None:
        return pruners.NopPruner()  # there is nothing yet by which rungs could be set
    # As with "auto", which sets them once and then keeps them in memory.
    if kind is Pruner.HALVING:
        return pruners.SuccessiveHalvingPruner(min_resource=max((last_step or 0) // 100, 1))
    if kind is Pruner.HYPERBAND:
        return pruners.HyperbandPruner(max_resource=(last_step or 0) + 1)
    return pruners.NopPruner()


def _distributions(spec: SweepSpec) -> dict[str, optuna.distributions.BaseDistribution]:
    return {name: _distribution(one) for name, one in spec.parameters.items()}


def _distribution(one: Distribution) -> optuna.distributions.BaseDistribution:
    from optuna import distributions

    if one.kind is DistributionKind.CATEGORICAL:
        return distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return distributions.IntDistribution(int(one.low), int(one.high), log=one.logarithmic, step=int(one.step or 1))
    if one.step is not None:
        # By place: Optuna computes the last step with the noise of its numbers, and may leave it out.
        return distributions.IntDistribution(0, (one.size or 1) - 1)
    return distributions.FloatDistribution(one.low, one.high, log=one.logarithmic)


def _value(one: Distribution, value: Any) -> ParameterValue:
    if one.kind is DistributionKind.CATEGORICAL:
        return str(value)
    if one.step is not None and not one.whole:
        return one.value(int(value))
    return int(value) if one.whole else float(value)


def _param(one: Distribution, value: ParameterValue) -> ParameterValue:
    """A value as Optuna has it."""
    if one.step is None or one.whole or isinstance(value, str):
        return value
    return min(max(0, round((value - one.low) / one.step)), (one.size or 1) - 1)


def _frozen(
    spec: SweepSpec, trial: Trial, values: Mapping[int, float], distributions: Mapping[str, Any]
) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    states = {
        TrialState.RUNNING: State.RUNNING,
        TrialState.COMPLETED: State.COMPLETE,
        TrialState.PRUNED: State.PRUNED,
        TrialState.FAILED: State.FAIL,
        TrialState.CANCELLED: State.FAIL,
    }
    has_value = trial.value is not None and math.isfinite(trial.value)
    state = states[trial.state] if has_value or trial.state is not TrialState.COMPLETED else State.FAIL
    return create_trial(
        state=state,
        value=trial.value if state is State.COMPLETE else None,
        params={name: _param(spec.parameters[name], value) for name, value in trial.parameters.items()},
        distributions=dict(distributions),
        # Steps of Optuna begin at 0.
        intermediate_values={step: value for step, value in values.items() if step >= 0},
        system_attrs=dict(trial.attributes),
    )

"""Which trial is next, and when a sweep is over; and what Optuna makes of the lab's trials. No server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.distribution import ParameterValue, read_distribution
from carrel.core.domain.errors import Invalid
from carrel.core.domain.sweep import Direction, Pruner, Sampler, Sweep, SweepSpec, SweepState, Trial, TrialState, best_of
from carrel.core.policy.next_trial import grid_point, grid_size, next_in_grid, settled, standing
from carrel.lab.studies import OptunaStudy

pytestmark = pytest.mark.quick


def spec(parameters: Mapping[str, str], **more: object) -> SweepSpec:
    read = {name: read_distribution(name, text) for name, text in parameters.items()}
    said = {"name": "s", "trials": 10, "parallel": 3, "metric": "loss"} | more
    return SweepSpec(parameters=read, **said)  # type: ignore[arg-type]


def trial(
    number: int, state: TrialState, *, running: bool = False, value: float | None = None, at: float = 1.0, **x: ParameterValue
) -> Trial:
    ended = None if running else 2.0
    return Trial(number=number, parameters=x or {"x": 0.5}, state=state, value=value, created_at=at, ended_at=ended)


ONE = spec({"x": "uniform(0, 1)"})
STATES = st.tuples(st.sampled_from(TrialState), st.booleans())


@given(st.lists(STATES, max_size=30), st.integers(1, 20), st.integers(1, 8))
def test_never_too_many_and_never_stuck(made: list[tuple[TrialState, bool]], trials: int, parallel: int) -> None:
    """A trial with a value exists, so that failures end nothing."""
    asked = replace(ONE, trials=trials, parallel=parallel)
    there = [trial(1, TrialState.COMPLETED, value=1.0)]
    there += [
        trial(number, state, running=running or state is TrialState.RUNNING)
        for number, (state, running) in enumerate(made, start=2)
    ]
    found = standing(asked, there)
    running = sum(one.ended_at is None for one in there)
    counted = sum(one.state is not TrialState.CANCELLED or one.ended_at is None for one in there)
    assert found.start >= 0
    if found.start:
        assert running + found.start <= parallel
        assert counted + found.start <= trials
    assert (found.state is SweepState.COMPLETED) is (counted >= trials and not running)
    assert found.start or running or found.state is SweepState.COMPLETED


def test_three_failures_without_a_value_end_it_unless_they_were_before_it_was_resumed() -> None:
    failed = [trial(number, TrialState.FAILED, at=float(number)) for number in (1, 2, 3)]
    assert standing(ONE, failed[:2]).start == 3
    assert standing(ONE, failed).state is SweepState.FAILED
    assert standing(ONE, [*failed, trial(4, TrialState.RUNNING, running=True)]).start == 0
    assert standing(ONE, [*failed, trial(4, TrialState.COMPLETED, value=1.0)]).start == 3
    assert standing(ONE, failed, since=1.5).start == 3


GRID = spec({"a": "int(1, 3)", "b": "categorical(x, y)", "c": "uniform(0, 1, step=0.5)"}, sampler=Sampler.GRID, trials=100)


def test_a_grid_has_every_combination_once_also_after_one_was_cancelled() -> None:
    assert settled(GRID).trials == grid_size(GRID.parameters) == 18
    points = [grid_point(GRID.parameters, index) for index in range(18)]
    assert {tuple(point.values()) for point in points} == set(product((1, 2, 3), ("x", "y"), (0.0, 0.5, 1.0)))
    done: list[Trial] = []
    for number in range(1, 20):
        point = next_in_grid(GRID, done)
        done.append(trial(number, TrialState.CANCELLED if number == 4 else TrialState.COMPLETED, **point))
    assert done[4].parameters == done[3].parameters
    assert {tuple(one.parameters.values()) for one in done} == {tuple(point.values()) for point in points}


def test_what_is_endless_is_no_grid_and_nothing_is_no_sweep() -> None:
    with pytest.raises(Invalid, match="no end of them"):
        settled(replace(ONE, sampler=Sampler.GRID))
    with pytest.raises(Invalid, match="No parameter has a distribution"):
        settled(replace(ONE, parameters={}))


def test_the_best_is_one_that_was_carried_out() -> None:
    made = [
        trial(1, TrialState.COMPLETED, value=2.0),
        trial(2, TrialState.PRUNED, value=0.0),
        trial(3, TrialState.COMPLETED, value=3.0),
        trial(4, TrialState.COMPLETED, value=2.0),
    ]
    assert best_of(ONE, made) == made[0]
    assert best_of(replace(ONE, direction=Direction.MAXIMIZE), made) == made[2]
    assert best_of(ONE, made[1:2]) is None


def sweep(asked: SweepSpec) -> Sweep:
    return Sweep(id=1, owner="ada", spec=asked, created_at=0.0)


EVERY = {
    "f": "uniform(-1, 1)",
    "s": "uniform(0, 1, step=0.1)",
    "l": "loguniform(1e-5, 1e-1)",
    "i": "int(0, 10, step=5)",
    "g": "logint(1, 1000)",
    "c": "categorical(1, b)",
}


@pytest.mark.parametrize("sampler", [Sampler.TPE, Sampler.RANDOM, Sampler.CMAES])
def test_what_is_suggested_is_in_range_and_repeatable(sampler: Sampler) -> None:
    asked = sweep(spec(EVERY, sampler=sampler, seed=7))
    made: list[Trial] = []
    for number in range(1, 16):
        found = OptunaStudy().suggest(asked, made, {}).parameters
        assert found == OptunaStudy().suggest(asked, made, {}).parameters
        assert -1 <= float(found["f"]) <= 1
        assert found["s"] in [round(0.1 * step, 1) for step in range(11)]
        assert 1e-5 <= float(found["l"]) <= 1e-1
        assert found["i"] in (0, 5, 10)
        assert isinstance(found["i"], int)
        assert 1 <= int(found["g"]) <= 1000
        assert found["c"] in ("1", "b")
        states = (TrialState.COMPLETED, TrialState.FAILED, TrialState.PRUNED, TrialState.CANCELLED, TrialState.RUNNING)
        made.append(trial(number, states[number % 5], running=number % 5 == 4, value=float(found["f"]), **found))
    assert len({one.parameters["f"] for one in made}) == 15


def test_tpe_comes_nearer_to_what_is_good() -> None:
    asked = sweep(spec({"x": "uniform(0, 100)"}, seed=3))
    made: list[Trial] = []
    for number in range(1, 41):
        found = OptunaStudy().suggest(asked, made, {}).parameters
        made.append(trial(number, TrialState.COMPLETED, value=(float(found["x"]) - 70) ** 2, **found))
    late = [abs(float(one.parameters["x"]) - 70) for one in made[30:]]
    assert sum(late) / len(late) < 15


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 10), st.integers(1, 50))
def test_steps_are_the_same_for_optuna(low: float, step: float, number: int) -> None:
    asked = sweep(spec({"x": f"uniform({low!r}, {low + number * step!r}, step={step!r})"}, sampler=Sampler.RANDOM))
    one = asked.spec.parameters["x"]
    values = [one.value(index) for index in range(one.size or 0)]
    made = [trial(index, TrialState.COMPLETED, value=1.0, x=value) for index, value in enumerate(values, start=1)]
    assert OptunaStudy().suggest(asked, made, {}).parameters["x"] in values


@pytest.mark.parametrize(
    ("direction", "value", "pruned"), [("minimize", 9.0, True), ("minimize", 0.0, False), ("maximize", 0.0, True)]
)
def test_the_median_decides_in_its_direction(direction: str, value: float, pruned: bool) -> None:
    asked = sweep(replace(ONE, direction=Direction(direction), pruner=Pruner.MEDIAN))
    made = [trial(number, TrialState.COMPLETED, value=float(number)) for number in range(1, 6)]
    made.append(trial(6, TrialState.RUNNING, running=True))
    reported = {number: {0: float(number), 1: float(number)} for number in range(1, 6)} | {6: {1: value}}
    assert OptunaStudy().judge(asked, made, reported, 6).pruned is pruned
    assert not OptunaStudy().judge(sweep(replace(asked.spec, pruner=Pruner.NONE)), made, reported, 6).pruned

"""Sweeps, on every database that a lab may use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.core.domain.distribution import read_distribution
from carrel.core.domain.errors import NotFound
from carrel.core.domain.sweep import Direction, Pruner, SweepSpec, SweepState, Trial, TrialState
from carrel.lab.store import Store

SPEC = SweepSpec(
    name="s",
    parameters={"x": read_distribution("x", "loguniform(1e-5, 1)"), "c": read_distribution("c", "categorical(a, 'b, c')")},
    trials=5,
    parallel=2,
    metric="loss",
    direction=Direction.MAXIMIZE,
    pruner=Pruner.MEDIAN,
    task={"snapshot": "sha256:1", "parameters": {"n": "1"}},
)


@pytest.mark.gate
def test_a_sweep_comes_back_as_it_was(store: Store) -> None:
    table = store.sweeps
    sweep = table.add("ada", SPEC, now=3.0)
    assert table.get(sweep.id) == sweep
    assert table.get(sweep.id + 1) is None
    changed = replace(
        sweep, state=SweepState.FAILED, message="why", ended_at=4.0, resumed_at=3.5, last_step=2**53, spec=replace(SPEC, trials=7)
    )
    table.change(changed)
    assert table.get(sweep.id) == changed
    other = table.add("bob", SPEC, now=5.0)
    assert table.list(owner=None, limit=9) == [other, changed]
    assert table.list(owner=None, limit=1) == [other]
    assert table.list(owner="ada", limit=9) == [changed]
    assert table.list(owner=None, before=other.id, limit=9) == [changed]


def test_trials_come_back_in_their_order_and_keep_their_sweep_unfinished(store: Store) -> None:
    table = store.sweeps
    sweep = table.add("ada", SPEC, now=3.0)
    first = Trial(number=1, parameters={"x": 0.1, "c": "a"}, created_at=4.0)
    second = Trial(number=2, parameters={"x": 1e-05, "c": "b, c"}, created_at=5.0, attributes={"cma:generation": 3})
    for one in (first, second):
        table.add_trial(sweep.id, one)
    assert table.trials(sweep.id) == [first, second]
    table.change(replace(sweep, state=SweepState.STOPPED))
    ended = replace(
        first, state=TrialState.COMPLETED, value=0.5, message="m", ended_at=6.0, attributes={"completed_rung_0": 1e-300}
    )
    table.change_trial(sweep.id, ended)
    assert table.trials(sweep.id) == [ended, second]
    assert table.counts([sweep.id, 99]) == {sweep.id: {"COMPLETED": 1, "RUNNING": 1}, 99: {}}
    assert [one.id for one in table.unfinished()] == [sweep.id]
    table.change_trial(sweep.id, replace(second, state=TrialState.PRUNED, ended_at=7.0))
    assert table.unfinished() == []


def test_a_step_that_comes_again_has_the_newer_value(store: Store) -> None:
    table = store.sweeps
    sweep = table.add("ada", SPEC, now=3.0)
    table.add_values(sweep.id, 1, {0: 1.0, 2: 3.0})
    table.add_values(sweep.id, 1, {2: 4.0, 1: 2.0})
    table.add_values(sweep.id, 2, {2**53: -1e-300})
    table.add_values(sweep.id, 2, {})
    assert table.values(sweep.id) == {1: {0: 1.0, 1: 2.0, 2: 4.0}, 2: {2**53: -1e-300}}
    assert table.values(sweep.id + 1) == {}


def test_what_is_over_for_long_goes_with_its_trials(store: Store) -> None:
    table = store.sweeps
    sweeps = [table.add("ada", SPEC, now=1.0) for _ in range(4)]
    over, late, running, resumed = sweeps
    for one in sweeps:
        first = Trial(number=1, parameters={"x": 0.1}, created_at=1.0)
        table.add_trial(one.id, first)
        table.add_values(one.id, 1, {0: 1.0})
        table.change_trial(one.id, replace(first, state=TrialState.COMPLETED, ended_at=9.0 if one is late else 2.0))
        if one is not running:
            table.change(replace(one, state=SweepState.STOPPED, ended_at=3.0))
    table.change(replace(resumed, state=SweepState.RUNNING))
    assert table.old(3.0) == []
    assert table.old(9.0) == [over.id]
    table.drop_old(9.0)
    assert table.get(over.id) is None
    assert table.trials(over.id) == []
    assert table.values(over.id) == {}
    assert [one.id for one in table.list(owner=None, limit=9)] == [resumed.id, running.id, late.id]
    with pytest.raises(NotFound):
        table.change(replace(over, state=SweepState.RUNNING))

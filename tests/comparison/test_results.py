"""Whether attempts came to the same results."""

from __future__ import annotations

import math
from typing import Any

import pytest
from comparison_records import METRICS, digest, side
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison import UNTRACKED, Agreement, Metrics, Results, agree
from carrel.core.comparison.results import distance

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def curve(*values: float) -> Metrics:
    return Metrics(last={"loss": values[-1]}, curves={"loss": dict(enumerate(values))})


def outputs(**files: str) -> Any:
    def change(record: dict[str, Any]) -> None:
        record["attempts"][0]["outputs"] = [{"path": path, "size": 1, "digest": digest(text)} for path, text in files.items()]

    return change


def judged(*sides: Any, **more: Any) -> Results:
    return agree([side(), *sides], **more)


def test_equal_outputs_and_curves_are_bit_identical() -> None:
    found = judged(side(number=2), side(number=3))
    assert (found.agreement, found.outputs, found.metrics, found.distance) == (Agreement.IDENTICAL, 1, 1, 0.0)
    assert not found.differences
    assert not found.not_known


def test_a_curve_parts_at_a_step_and_at_the_first_of_all() -> None:
    found = judged(side(number=2, metrics=curve(1.0, 0.7, 0.4)), side(number=3, metrics=curve(1.0, 0.8, 0.5)))
    assert found.agreement is Agreement.DIFFERENT
    assert [(one.label, one.path, one.step, one.expected, one.found) for one in found.differences] == [
        ("3", "loss", 1, "0.7", "0.8"),
        ("2", "loss", 2, "0.5", "0.4"),
    ]


def test_metrics_may_be_away_by_the_tolerance_and_outputs_by_nothing() -> None:
    near = curve(1.0, 0.7, 0.5 * (1 - 1e-7))
    assert judged(side(number=2, metrics=near)).agreement is Agreement.DIFFERENT
    found = judged(side(number=2, metrics=near), tolerance=1e-6)
    assert found.agreement is Agreement.WITHIN_TOLERANCE
    assert found.distance == pytest.approx(1e-7)
    other = judged(side(outputs(**{"model.pt": "another"}), 2), tolerance=1.0)
    assert [(one.kind.value, one.path, one.step) for one in other.differences] == [("output", "model.pt", None)]


def test_what_is_missing_on_one_side_is_a_difference() -> None:
    more = judged(side(outputs(**{"model.pt": "model", "extra": "x"}), 2, metrics=curve(1.0, 0.7)))
    assert [(one.path, one.step, one.expected, one.found) for one in more.differences] == [
        ("loss", 2, "0.5", "none"),
        ("extra", None, "none", digest("x")),
    ]


def test_patterns_leave_out_what_does_not_count() -> None:
    changed = side(outputs(**{"model.pt": "model", "train.log": "12:01"}), 2, metrics=curve(9.0))
    assert judged(changed, ignore=["*.log", "loss"]).agreement is Agreement.IDENTICAL
    assert judged(changed, ignore=["*.log"]).agreement is Agreement.DIFFERENT
    assert judged(changed, ignore=["*"]).agreement is Agreement.UNKNOWN, "nothing is left to compare"


def test_what_is_not_known_is_not_equal() -> None:
    away = Metrics(missing="The tracking server did not answer.")
    found = judged(side(number=2, metrics=away))
    assert found.agreement is Agreement.UNKNOWN
    assert found.not_known == ("Not all metrics of job 2 are known: The tracking server did not answer.",)

    def torn(record: dict[str, Any]) -> None:
        record["attempts"][0]["uncollected"] = True

    assert judged(side(torn, 2)).agreement is Agreement.UNKNOWN
    assert judged(side(outputs(**{"model.pt": "another"}), 2, metrics=away)).agreement is Agreement.DIFFERENT, "one is enough"


def test_a_lab_without_a_tracking_server_has_outputs_to_compare() -> None:
    none = Metrics(missing=UNTRACKED)
    found = agree([side(metrics=none), side(number=2, metrics=none)])
    assert (found.agreement, found.outputs, found.metrics) == (Agreement.IDENTICAL, 1, 0)


def test_a_tracking_server_that_is_down_tells_nothing_of_either() -> None:
    down = Metrics(missing="The tracking server did not tell its metrics: it is starting.")
    found = agree([side(metrics=down), side(number=2, metrics=down)])
    assert (found.agreement, len(found.not_known)) == (Agreement.UNKNOWN, 2)


def test_where_steps_were_not_read_last_values_are_compared() -> None:
    last = Metrics(last={"loss": 0.5})
    assert agree([side(metrics=last), side(number=2, metrics=last)]).agreement is Agreement.IDENTICAL
    found = agree([side(metrics=last), side(number=2, metrics=Metrics(last={"loss": 0.25}))])
    assert [(one.step, one.expected, one.found) for one in found.differences] == [(None, "0.5", "0.25")]


@given(NUMBERS, NUMBERS)
def test_a_distance_is_the_same_from_both_sides_and_none_only_between_equals(one: float, other: float) -> None:
    assert distance(one, other) == distance(other, one)
    assert (distance(one, other) == 0.0) == (one == other or (math.isnan(one) and math.isnan(other)))
    assert distance(one, one) == 0.0


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.lists(NUMBERS, min_size=1, max_size=6))
def test_a_smaller_tolerance_never_agrees_more(mine: list[float], theirs: list[float]) -> None:
    order = list(Agreement)
    sides = [side(metrics=curve(*mine)), side(number=2, metrics=curve(*theirs))]
    found = [order.index(agree(sides, tolerance=tolerance).agreement) for tolerance in (1.0, 1e-3, 0.0)]
    assert found == sorted(found)
    assert agree([sides[0], sides[0]]).agreement is Agreement.IDENTICAL
    assert agree([side(), side(metrics=METRICS)]).agreement is Agreement.IDENTICAL

"""How far an attempt is from the baseline of its project."""

from __future__ import annotations

import math
from typing import Any

import pytest
from comparison_records import HARDWARE, LOCK, digest, side
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison import Agreement, Code, Metrics, drift_of
from carrel.core.domain.baseline import Calibration, Drift
from carrel.core.domain.serial import from_plain, to_plain

UNREAD = Code(missing="It is not looked at.")


def curve(*values: float) -> Metrics:
    return Metrics(last={"loss": values[-1]}, curves={"loss": dict(enumerate(values))})


def drift(change: Any = lambda _record: None, **more: Any) -> Drift:
    options = {name: more.pop(name) for name in ("tolerance", "ignore") if name in more}
    return drift_of(side(code=UNREAD), side(change, 2, code=UNREAD, **more), **options)


def test_a_repetition_has_not_moved() -> None:
    found = drift()
    assert (found.agreement, found.words, found.told) == (Agreement.IDENTICAL, "bit-identical", "bit-identical")
    assert (found.python, found.machine) == ("cpython-3.11.9", "NVIDIA H100, 80 GiB, driver 550.1")
    assert (found.packages, found.others, found.moved_metrics) == ((), (), ())


def test_what_moved_and_what_it_ran_with() -> None:
    def upgraded(record: dict[str, Any]) -> None:
        attempt = record["attempts"][0]
        lock = LOCK.replace("idna==3.7", "idna==3.8").replace("torch==2.4.0", "torch==2.5.0")
        attempt |= {"environment_lock": digest(lock), "environment_lock_text": lock, "node": "node2"}
        attempt["hardware"] = {**HARDWARE, "gpu_driver": "560.2"}

    found = drift(upgraded, metrics=curve(1.0, 0.7, 0.6))
    assert (found.agreement, found.words, found.step) == (Agreement.DIFFERENT, "different from step 2 on", 2)
    (loss,) = found.moved_metrics
    assert (loss.before, loss.after, loss.relative) == ("0.5", "0.6", pytest.approx(0.2))
    assert [str(one) for one in found.packages] == ["torch 2.4.0 -> 2.5.0", "idna 3.7 -> 3.8"], "what computes comes first"
    assert {one.after for one in found.others} >= {"560.2", "node2"}
    assert found.told.startswith("different from step 2 on; loss +20 %; torch 2.4.0 -> 2.5.0, idna 3.7 -> 3.8; ")
    assert found.machine.endswith("driver 560.2")


def test_other_code_and_parameters_are_said_so_that_nobody_blames_the_machine() -> None:
    def other(record: dict[str, Any]) -> None:
        record["task"] |= {"snapshot": digest("other"), "parameters": {"lr": "0.2"}, "command": "python train.py --lr 0.2"}

    assert [one.what for one in drift(other).others] == ["parameter lr", "code"]


def test_a_metric_within_the_tolerance_has_moved_a_little_and_the_results_agree() -> None:
    near = curve(1.0, 0.7, 0.5 * (1 + 1e-7))
    found = drift(metrics=near, tolerance=1e-6)
    assert (found.agreement, found.words) == (Agreement.WITHIN_TOLERANCE, "within 1e-06")
    assert [one.what for one in found.moved_metrics] == ["loss"]
    assert not drift(metrics=near, ignore=["loss"]).moved_metrics


def test_outputs_that_differ_are_named_and_what_is_missing_is_not_known() -> None:
    def rewritten(record: dict[str, Any]) -> None:
        record["attempts"][0]["outputs"] = [{"path": "model.pt", "size": 1, "digest": digest("other")}]

    found = drift(rewritten)
    assert (found.moved_outputs, found.told) == (("model.pt",), "different; model.pt")
    away = drift(metrics=Metrics(missing="The tracking server did not answer."))
    assert (away.agreement, away.words) == (Agreement.UNKNOWN, "not known")
    assert away.not_known


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_any_two_values_have_a_drift_that_can_be_written_down(one: float, other: float) -> None:
    metrics = [Metrics(last={"loss": value}, curves={"loss": {0: value}}) for value in (one, other)]
    found = drift_of(side(metrics=metrics[0]), side(number=2, metrics=metrics[1]))
    alike = one == other or (math.isnan(one) and math.isnan(other))
    assert (found.agreement is Agreement.IDENTICAL) == alike
    assert all(moved.relative is None or math.isfinite(moved.relative) for moved in found.moved_metrics)
    whole = Calibration(baseline=1, job=2, number=1, by="ada", fresh=False, begun_at=1.0, drift=found)
    assert from_plain(Calibration, to_plain(whole)) == whole
    assert from_plain(Drift, to_plain(found)) == found


def test_a_processor_stands_for_a_machine_without_gpus() -> None:
    def without(record: dict[str, Any]) -> None:
        record["attempts"][0]["hardware"] = {"cpu": "EPYC 7713"}

    assert drift(without).machine == "EPYC 7713"

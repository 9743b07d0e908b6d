"""Baselines as the wire has them."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.baseline import Baseline, Calibration
from carrel.core.domain.user import Caller
from carrel.lab.gateway.drift import Drifts, Later
from carrel.lab.gateway.views import view_of
from carrel.wire.v1 import BaselineRow, BaselineTable, BaselineView, CalibrationView


def baseline_views(drifts: Drifts, caller: Caller, found: Sequence[Baseline]) -> list[BaselineView]:
    """Baselines, each with what its last calibration came to."""
    known = drifts.last_known(caller, found)
    return [_view(one, known[one.id]) for one in found]


def baseline_table(drifts: Drifts, caller: Caller, baseline: Baseline) -> BaselineTable:
    """The later jobs of its project."""
    rows = drifts.later(caller, baseline)
    python, machine = drifts.ran_with(caller, baseline)
    (view,) = baseline_views(drifts, caller, [baseline])
    return BaselineTable(baseline=view, python=python, machine=machine, rows=[_row(one) for one in rows])


def calibration_view(one: Calibration) -> CalibrationView:
    """A baseline that was run again."""
    return view_of(CalibrationView, one, outcome="" if one.outcome is None else one.outcome)


def _view(one: Baseline, last: Calibration | None) -> BaselineView:
    return view_of(BaselineView, one, ignore=one.ignored, calibration=None if last is None else calibration_view(last))


def _row(one: Later) -> BaselineRow:
    job, calibration = one.job, one.calibration
    kind = "" if calibration is None else "fresh" if calibration.fresh else "same lock"
    return view_of(BaselineRow, job, job=job.id, calibration=kind, drift=one.drift)

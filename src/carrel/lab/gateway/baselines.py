"""Baselines as the wire has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from carrel.core.domain.baseline import Baseline, Calibration, Drift, Moved
from carrel.core.domain.user import Caller
from carrel.lab.gateway.drift import Drifts, Later
from carrel.lab.gateway.views import moment
from carrel.wire.v1 import BaselineRow, BaselineTable, BaselineView, CalibrationView, DriftView, MovedView


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
    return CalibrationView(
        job=one.job,
        by=one.by,
        fresh=one.fresh,
        begun_at=datetime.fromtimestamp(one.begun_at, UTC),
        known_at=moment(one.known_at),
        state=one.state,
        outcome="" if one.outcome is None else one.outcome.value,
        told=one.told,
        drift=_drift(one.drift),
    )


def _view(one: Baseline, last: Calibration | None) -> BaselineView:
    return BaselineView(
        id=one.id,
        owner=one.owner,
        project=one.project,
        job=one.job,
        tolerance=one.tolerance,
        ignore=list(one.ignored),
        set_at=datetime.fromtimestamp(one.set_at, UTC),
        calibration=None if last is None else calibration_view(last),
    )


def _row(one: Later) -> BaselineRow:
    job, calibration = one.job, one.calibration
    return BaselineRow(
        job=job.id,
        owner=job.owner,
        state=job.state.value,
        submitted_at=datetime.fromtimestamp(job.submitted_at, UTC),
        ended_at=moment(job.ended_at),
        calibration="" if calibration is None else "fresh" if calibration.fresh else "same lock",
        drift=_drift(one.drift),
    )


def _drift(one: Drift | None) -> DriftView | None:
    if one is None:
        return None
    return DriftView(
        agreement=one.agreement,
        words=one.words,
        outputs=one.outputs,
        metrics=one.metrics,
        step=one.step,
        moved_metrics=_moved(one.moved_metrics),
        moved_outputs=list(one.moved_outputs),
        python=one.python,
        machine=one.machine,
        packages=_moved(one.packages),
        others=_moved(one.others),
        not_known=list(one.not_known),
    )


def _moved(found: Sequence[Moved]) -> list[MovedView]:
    return [MovedView(what=one.what, before=one.before, after=one.after, relative=one.relative) for one in found]

"""Reports of use as the wire has them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from carrel.core.control.gpu_use import AttemptPage, SessionReport, StartReport, UseReport
from carrel.core.gpu_use import OTHERS, ClassTimes, Grouping, SessionTimes, Times, Use
from carrel.lab.gateway.views import view_of
from carrel.wire.v1 import (
    ClassTimesView,
    ExportedAttemptPage,
    SessionReportView,
    SessionTimesView,
    StartReportView,
    TimesView,
    UseReportView,
    UseView,
)

#: Joules.
_KWH = 3_600_000


def use_report_view(report: UseReport) -> UseReportView:
    """What was used."""
    factor = report.co2_per_kwh
    rows = [_use(name, use, factor) for name, use in report.sums.rows.items()]
    if report.by is Grouping.WEEK:
        rows = [
            row if row.name == OTHERS else row.model_copy(update={"name": f"{_moment(float(row.name)):%Y-%m-%d}"}) for row in rows
        ]
        rows.sort(key=lambda row: row.name)
    else:
        rows.sort(key=lambda row: (-row.held - row.lent, row.name))
    return UseReportView(
        begin=_moment(report.within.begin),
        end=_moment(report.within.end),
        by=report.by.value,
        owner=report.whose.owner,
        accounts=sorted(report.whose.accounts),
        rows=rows,
        total=_use("", report.sums.total, factor),
        co2_per_kwh=factor,
    )


def start_report_view(report: StartReport) -> StartReportView:
    """How long jobs took to begin, and what they waited for."""
    times, waits = report.times.classes, report.waits.classes
    return StartReportView(
        begin=_moment(report.within.begin),
        end=_moment(report.within.end),
        owner=report.whose.owner,
        accounts=sorted(report.whose.accounts),
        classes=[_class(name, times.get(name) or ClassTimes(), waits.get(name, {})) for name in sorted({*times, *waits})],
    )


def session_report_view(report: SessionReport) -> SessionReportView:
    """Where the time of sessions went; those that were open longest first."""
    rows = sorted(report.rows.items(), key=lambda row: (-sum(row[1].seconds.values()), row[0]))
    return SessionReportView(
        begin=_moment(report.within.begin),
        end=_moment(report.within.end),
        by=report.by,
        owner=report.whose.owner,
        accounts=sorted(report.whose.accounts),
        rows=[session_times_view(times, name) for name, times in rows],
    )


def session_times_view(times: SessionTimes, name: str = "") -> SessionTimesView:
    """Where the time of some sessions went."""
    return view_of(SessionTimesView, times, name=name, **times.seconds)


def attempt_page(page: AttemptPage) -> ExportedAttemptPage:
    """Attempts with their jobs."""
    return ExportedAttemptPage(
        begin=_moment(page.within.begin),
        end=_moment(page.within.end),
        attempts=page.attempts,
        next=page.next,
    )


def _use(name: str, use: Use, factor: int | None) -> UseView:
    # What is left of rounding where jobs were placed at once is no wait.
    waited = max(0.0, use.waited)
    held_by_end = {end.value: use.held[end] for end in sorted(use.held)}
    co2 = None if factor is None else use.energy / _KWH * factor
    return view_of(UseView, use, name=name, waited=waited, held=use.all_held, held_by_end=held_by_end, co2=co2)


def _class(qos: str, times: ClassTimes, waits: Mapping[str, float]) -> ClassTimesView:
    return ClassTimesView(
        qos=qos,
        waited=_times(times.waited),
        prepared=_times(times.prepared),
        silent=_times(times.silent),
        to_output=_times(times.to_output),
        to_metric=_times(times.to_metric),
        waits=dict(sorted(waits.items(), key=lambda one: -one[1])),
    )


def _times(times: Times) -> TimesView:
    median, p95 = times.percentiles(50, 95)
    return TimesView(count=len(times), median=median, p95=p95)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)

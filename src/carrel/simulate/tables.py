"""Numbers side by side for a terminal: heads and rows. What is not known is a dash. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from carrel.core.domain.units import format_duration
from carrel.simulate.composed import LayoutMeasures
from carrel.simulate.measures import Measures, Spread
from carrel.simulate.study import NotebookMeasures

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
Tell = Callable[[float | None], str]

_NONE = "–"


def policies_table(measures: Sequence[Measures]) -> Table:
    """One row a policy. Columns in which there is nothing to tell are left out."""
    shown = [(head, tell) for head, tell, always in _COLUMNS if always or any(tell(one) not in (_NONE, "0") for one in measures)]
    return ["Policy", *(head for head, _ in shown)], [[one.policy, *(tell(one) for _, tell in shown)] for one in measures]


def change_table(before: Measures, after: Measures) -> Table:
    """Each measure now and then, and the change in percent, or in points where it is a share."""
    rows = [
        [name, tell(value(before)), tell(value(after)), _change(_told(tell, value(before)), _told(tell, value(after)), tell)]
        for name, value, tell in _MEASURES
    ]
    return ["", "Now", "Then", "Change"], rows


def notebooks_table(rows: Sequence[NotebookMeasures]) -> Table:
    """One row a way of lending."""
    return (
        ["Mode", *(head for head, _ in _NOTEBOOK_COLUMNS)],
        [[row.mode, *(tell(row) for _, tell in _NOTEBOOK_COLUMNS)] for row in rows],
    )


def layouts_table(rows: Sequence[LayoutMeasures]) -> Table:
    """One row a layout: what it needs for equal waits."""
    heads = ("Layout", "GPUs", "Cut", "Saved", "Mean wait", "p95 wait")
    waits = [(_duration(row.wait_seconds.mean), _duration(row.wait_seconds.p95)) for row in rows]
    return heads, [
        [row.layout, _number(row.gpus), _number(row.cut), _share(row.saved), *wait] for row, wait in zip(rows, waits, strict=True)
    ]


def _duration(seconds: float | None) -> str:
    return _NONE if seconds is None else format_duration(seconds)


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    """ "1,037", "14.2", "0.91": as many decimals as say something."""
    if value is None:
        return _NONE
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _hours(value: float | None) -> str:
    """What is less than a hundredth is nothing."""
    return _number(None if value is None else round(value, 2))


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name))


#: Head, cell, whether it is shown also when there is nothing in any row.
_COLUMNS: Sequence[tuple[str, Callable[[Measures], str], bool]] = (
    ("Jobs", lambda one: _number(one.jobs), True),
    ("Refused", lambda one: _number(one.refused), False),
    ("Mean wait", lambda one: _duration(_of(one.wait_seconds, "mean")), True),
    ("Median wait", lambda one: _duration(_of(one.wait_seconds, "median")), True),
    ("p95 wait", lambda one: _duration(_of(one.wait_seconds, "p95")), True),
    ("Mean JCT", lambda one: _duration(_of(one.completion_seconds, "mean")), True),
    ("p95 JCT", lambda one: _duration(_of(one.completion_seconds, "p95")), True),
    ("Slowdown", lambda one: _number(_of(one.bounded_slowdown, "mean")), True),
    ("Used", lambda one: _share(one.utilisation), True),
    ("Stopped", lambda one: _number(one.preemptions), False),
    ("Lost GPU-h", lambda one: _hours(one.gpu_hours_lost), False),
    ("Fairness", lambda one: _number(one.finish_time_fairness if len(one.users) > 1 else None), False),
)

_MEASURES: Sequence[tuple[str, Callable[[Measures], float | None], Tell]] = (
    ("GPUs", lambda one: one.gpus, _number),
    ("Jobs", lambda one: one.jobs, _number),
    ("Jobs refused", lambda one: one.refused, _number),
    ("Makespan", lambda one: one.makespan_seconds, _duration),
    ("Wait, mean", lambda one: _of(one.wait_seconds, "mean"), _duration),
    ("Wait, median", lambda one: _of(one.wait_seconds, "median"), _duration),
    ("Wait, p95", lambda one: _of(one.wait_seconds, "p95"), _duration),
    ("Wait, p99", lambda one: _of(one.wait_seconds, "p99"), _duration),
    ("Wait, longest", lambda one: _of(one.wait_seconds, "max"), _duration),
    ("JCT, mean", lambda one: _of(one.completion_seconds, "mean"), _duration),
    ("JCT, median", lambda one: _of(one.completion_seconds, "median"), _duration),
    ("JCT, p95", lambda one: _of(one.completion_seconds, "p95"), _duration),
    ("JCT, p99", lambda one: _of(one.completion_seconds, "p99"), _duration),
    ("JCT, longest", lambda one: _of(one.completion_seconds, "max"), _duration),
    ("Bounded slowdown, mean", lambda one: _of(one.bounded_slowdown, "mean"), _number),
    ("Bounded slowdown, p95", lambda one: _of(one.bounded_slowdown, "p95"), _number),
    ("GPUs in use", lambda one: one.utilisation, _share),
    ("GPUs in use up to the last submission", lambda one: one.utilisation_while_submitting, _share),
    ("GPU-hours", lambda one: one.gpu_hours, _hours),
    ("GPU-hours lost", lambda one: one.gpu_hours_lost, _hours),
    ("Times stopped", lambda one: one.preemptions, _number),
    ("Users", lambda one: len(one.users), _number),
    ("Finish-time fairness, worst user", lambda one: one.finish_time_fairness, _number),
)

_NOTEBOOK_COLUMNS: Sequence[tuple[str, Callable[[NotebookMeasures], str]]] = (
    ("GPUs for no wait", lambda row: _number(row.gpus_for_p95_wait_of_0_seconds)),
    ("GPUs for ≤ 1 min", lambda row: _number(row.gpus_for_p95_wait_of_60_seconds)),
    ("GPUs here", lambda row: _number(row.gpus)),
    ("p95 wait here", lambda row: _duration(_of(row.request_wait_seconds, "p95"))),
    ("GPU-h held", lambda row: _hours(row.gpu_hours_held)),
    ("Computing", lambda row: _share(row.gpu_hours_of_cells / row.gpu_hours_held if row.gpu_hours_held else None)),
    ("Acquisitions", lambda row: _number(row.acquisitions)),
    ("Warm starts", lambda row: _number(row.warm_starts)),
    ("Cold starts", lambda row: _number(row.cold_starts)),
    ("Evictions", lambda row: _number(row.evictions)),
    ("Pauses", lambda row: _number(row.pauses)),
)


def _told(tell: Tell, value: float | None) -> float | None:
    """What is shown as nothing is nothing: sums of floating-point numbers hardly ever are."""
    return value if value is None or tell(value) not in ("0", "0 s") else 0.0


def _change(before: float | None, after: float | None, tell: Tell) -> str:
    if before is None or after is None:
        return _NONE
    if tell is _share:
        return f"{100 * (after - before):+.1f} points"
    if not before:
        return "" if not after else "from 0"
    change = 100 * (after - before) / before
    return "0 %" if abs(change) < 0.05 else f"{change:+,.1f} %"

"""Plots of a run's metrics over its steps. Pure; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.wire.v1 import MetricsView

#: Size of one plot, in units of its own, and what stands free around its line.
WIDTH, HEIGHT, MARGIN = 300.0, 120.0, 6.0
#: Plots on a page, and points of a line; of more each stands for several steps.
_PLOTS, _POINTS = 60, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One metric."""

    name: str
    last: str
    #: As SVG has it; "" where there are no two steps.
    path: str = ""
    #: What stands at its corners: least and largest value, first and last step.
    low: str = ""
    high: str = ""
    first: int = 0
    end: int = 0


def plots_of(found: MetricsView) -> Sequence[Plot]:
    """Return a plot of each metric, by name; of one that has a single value, or too many steps, only the last value."""
    return [_plot(name, metric.last, metric.steps or [], metric.values) for name, metric in list(found.metrics.items())[:_PLOTS]]


def _plot(name: str, last: str, steps: Sequence[int], values: Sequence[str]) -> Plot:
    points = [(step, float(value)) for step, value in zip(steps, values, strict=False)]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    said = f"{float(last):.6g}"
    if len(points) < 2:
        return Plot(name=name, last=said)
    thin = points[:: max(1, len(points) // _POINTS)]
    if thin[-1] != points[-1]:
        thin.append(points[-1])
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, end = points[0][0], points[-1][0]

    path = path_of(thin, low, high)
    return Plot(name=name, last=said, path=path, low=f"{low:.4g}", high=f"{high:.4g}", first=first, end=end)


def path_of(points: Sequence[tuple[float, float]], low: float, high: float) -> str:
    """Return the line through two points or more, as SVG has it, from `low` at the bottom to `high` at the top."""
    first, end = points[0][0], points[-1][0]

    def place(at: float, value: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * (at - first) / (end - first or 1)
        y = MARGIN + (HEIGHT - 2 * MARGIN) * (0.5 if high == low else (high - value) / (high - low))
        return f"{x:.1f} {y:.1f}"

    return "M" + "L".join(place(at, value) for at, value in points)

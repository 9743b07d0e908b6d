"""A picture of a sweep: an axis for each parameter and one for the metric, a line for each trial. Pure; the templates draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.core.domain.distribution import Distribution, read_distribution
from carrel.wire.v1 import SweepDetail, TrialView

#: Size of the picture, in units of its own; axes stand from TOP to BOTTOM.
WIDTH, HEIGHT, TOP, BOTTOM = 1000.0, 320.0, 40.0, 270.0
_MARGIN = 90.0
#: Width of a letter, about.
_LETTER = 8.5
#: Lines are drawn of so many trials: the best.
_MOST = 500
#: Choices of which the names are written.
_NAMES = 12
#: Powers of ten that are written at a logarithmic axis, and how far they are from its ends, as a part of it.
_DECADES, _END = 4, 0.08
#: Looks of lines by how good they are, from the best on.
_LOOKS = ("q0", "q1", "q2", "q3")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisMark:
    """A value at an axis."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureAxis:
    """One parameter, or the metric."""

    x: float
    name: str
    #: As much of the name as there is room for.
    label: str
    marks: Sequence[AxisMark]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLine:
    """One trial."""

    path: str
    look: str
    title: str
    #: The page of its job.
    job_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All of it, with what it shows in one sentence."""

    axes: Sequence[PictureAxis]
    #: The best is drawn last, over the others.
    lines: Sequence[PictureLine]
    summary: str


def picture_of(sweep: SweepDetail) -> Picture | None:
    """Return the picture; None while no trial has a value."""
    shown = [one for one in sweep.all_trials if one.value is not None and math.isfinite(one.value)]
    if not shown:
        return None
    valued, shown = len(shown), _ordered(sweep, shown)[:_MOST]
    parameters = {name: read_distribution(name, text) for name, text in sweep.parameters.items()}
    gap = (WIDTH - 2 * _MARGIN) / len(parameters)
    places = [_MARGIN + gap * index for index in range(len(parameters) + 1)]
    values = [one.value for one in shown if one.value is not None]
    low, high = min(values), max(values)
    room = int(min(gap, 2 * _MARGIN) / _LETTER)
    axes = [_axis(x, name, _marks(one, room), room) for x, (name, one) in zip(places, parameters.items(), strict=False)]
    ends = [(_y(1.0), high), (_y(0.0), low)] if high > low else [(_y(0.5), low)]
    axes.append(_axis(places[-1], sweep.metric, [AxisMark(y=y, text=f"{value:.4g}") for y, value in ends], room))
    lines = []
    for rank, trial in enumerate(shown):
        heights = [_y(_place(one, trial.parameters.get(name))) for name, one in parameters.items()]
        heights.append(_y(_share(trial.value or 0.0, low, high)))
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(places, heights, strict=True))
        lines.append(
            PictureLine(path=path, look=_look(sweep, trial, rank, len(shown)), title=_title(sweep, trial), job_id=trial.job_id)
        )
    best = next((f" The best is trial {one.number} with {one.value:.6g}." for one in shown if one.number == sweep.best), "")
    trials = f"{valued} trials" if valued == len(shown) else f"The best {len(shown)} of {valued} trials"
    summary = f"{trials}; {sweep.metric} is from {low:.6g} to {high:.6g}.{best}"
    return Picture(axes=axes, lines=lines[::-1], summary=summary)


def _ordered(sweep: SweepDetail, trials: Sequence[TrialView]) -> list[TrialView]:
    """Best first; those that ended well before the others."""
    sign = 1 if sweep.direction == "minimize" else -1
    return sorted(trials, key=lambda one: (one.state != "COMPLETED", sign * (one.value or 0.0), one.number))


def _look(sweep: SweepDetail, trial: TrialView, rank: int, number: int) -> str:
    if trial.number == sweep.best:
        return "best"
    return _LOOKS[rank * len(_LOOKS) // number] if trial.state == "COMPLETED" else "unfinished"


def _title(sweep: SweepDetail, trial: TrialView) -> str:
    said = ", ".join(f"{name} {_text(value)}" for name, value in trial.parameters.items())
    return f"Trial {trial.number}, {trial.state}: {sweep.metric} {_text(trial.value)}; {said}"


def _axis(x: float, name: str, marks: Sequence[AxisMark], room: int) -> PictureAxis:
    return PictureAxis(x=x, name=name, label=_short(name, room), marks=marks)


def _marks(one: Distribution, room: int) -> list[AxisMark]:
    if one.choices:
        every = math.ceil(len(one.choices) / _NAMES)
        return [AxisMark(y=_y(_place(one, name)), text=_short(name, min(room, 14))) for name in one.choices[::every]]
    ends = [one.high, one.low] if one.high > one.low else [one.low]
    return [AxisMark(y=_y(_place(one, value)), text=f"{value:.4g}") for value in [*ends, *_decades(one)]]


def _decades(one: Distribution) -> list[float]:
    """Powers of ten between the ends of a logarithmic axis, which show that it is one."""
    if not one.logarithmic:
        return []
    powers = range(math.ceil(math.log10(one.low)), math.floor(math.log10(one.high)) + 1)
    inside = [10.0**power for power in powers if _END < _place(one, 10.0**power) < 1 - _END]
    return inside[:: math.ceil(len(inside) / _DECADES) or 1]


def _place(one: Distribution, value: object) -> float:
    """From 0, the lowest, to 1."""
    if one.choices:
        return _share(float(one.choices.index(str(value))), 0.0, len(one.choices) - 1.0) if value in one.choices else 0.0
    number = float(value) if isinstance(value, int | float) else one.low
    if one.logarithmic:
        return _share(math.log(number), math.log(one.low), math.log(one.high))
    return _share(number, one.low, one.high)


def _share(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2))) if high > low else 0.5


def _y(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

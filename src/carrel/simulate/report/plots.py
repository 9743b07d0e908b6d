"""The plots of a report, as inline SVG whose colours and fonts come from the page.

All have one width, so that type has one size wherever two of them stand side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.simulate.measures import distribution
from carrel.simulate.report import axes, svg, words

WIDTH = 440.0
_HEIGHT = 270.0
_RIGHT = WIDTH - 12
_ROW = 19.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of one or two parts."""

    name: str
    #: From left to right.
    parts: Sequence[float]
    #: What is written behind it.
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """One row of dots, one a series; None where a series has none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """How something went over time."""

    name: str
    #: What is written at its right end.
    label: str
    #: Moments (seconds) and shares.
    points: Sequence[tuple[float, float]]


def distributions(series: Sequence[tuple[str, Sequence[float]]], *, key: str, title: str, axis_name: str) -> str:
    """Which share of the values (seconds) is at most so large: one curve a series."""
    left, top, bottom = 46.0, 10.0, _HEIGHT - 42
    across = axes.durations([value for _, values in series for value in values])
    up = axes.shares()
    parts = [
        *svg.left_axis(up, left, _RIGHT, top, bottom),
        *svg.bottom_axis(across, left, _RIGHT, top, bottom, name=axis_name),
    ]
    for index, (_, values) in enumerate(series):
        if values:
            places = [
                (left + (_RIGHT - left) * across.at(value), bottom - (bottom - top) * share)
                for value, share in distribution(values)
            ]
            parts.append(svg.curve(svg.steps([(places[0][0], bottom), *places]), index))
    told = "; ".join(f"{name}: {_told(values)}" for name, values in series)
    return svg.picture(WIDTH, _HEIGHT, parts, key=key, title=title, description=f"{title}. {told}.")


def strips(series: Sequence[Strip], *, key: str, title: str, marked: float | None = None) -> str:
    """A strip of 0 to 100 % a series, one above the other over one axis of time; `marked`: a moment to point out (seconds)."""
    left, top, high, gap = 46.0, 4.0, 38.0, 22.0
    moments = [moment for strip in series for moment, _ in strip.points]
    first, last = min(moments, default=0.0), max(moments, default=1.0)
    across = axes.even_durations(last, first if first > 0.1 * last else 0.0)
    bottom = top + len(series) * (high + gap)
    parts = list(svg.bottom_axis(across, left, _RIGHT, top + gap, bottom, name="time since the beginning of the trace"))
    for index, strip in enumerate(series):
        floor = top + (index + 1) * (high + gap)
        parts += [
            svg.text(words.shortened(strip.name, 36), left, floor - high - 7, class_="label", title=strip.name),
            svg.text(strip.label, _RIGHT, floor - high - 7, anchor="end", class_="value"),
            svg.line(left, floor - high, _RIGHT, floor - high, "grid"),
            svg.text("100 %", left - 6, floor - high + 4, anchor="end", class_="mark"),
            svg.text("0", left - 6, floor + 1, anchor="end", class_="mark"),
        ]
        if strip.points:
            places = [(left + (_RIGHT - left) * across.at(moment), floor - high * share) for moment, share in strip.points]
            parts.append(svg.area(places, floor, index))
        parts.append(svg.line(left, floor, _RIGHT, floor, "axis"))
        if marked is not None:
            x = left + (_RIGHT - left) * across.at(marked)
            parts.append(svg.line(x, floor - high, x, floor, "marked"))
    told = "; ".join(f"{strip.name}: {strip.label}" for strip in series)
    return svg.picture(WIDTH, bottom + 40, parts, key=key, title=title, description=f"{title}. {told}.")


def bars(rows: Sequence[Bar], *, key: str, title: str, axis_name: str) -> str:
    """Bars from left to right. A second part is pale."""
    left, top = _names_width([row.name for row in rows]), 6.0
    across = axes.numbers(max((sum(row.parts) for row in rows), default=1.0))
    # As far to the right as the labels behind the bars allow.
    ends = ((across.at(sum(row.parts)), _RIGHT - 8 - 6.6 * len(row.label)) for row in rows)
    right = min((left + (room - left) / end for end, room in ends if end), default=_RIGHT)
    right = min(right, _RIGHT)
    pitch = 26.0
    bottom = top + len(rows) * pitch
    parts = list(svg.bottom_axis(across, left, right, top, bottom, name=axis_name))
    for index, row in enumerate(rows):
        y = top + index * pitch + 4
        parts.append(svg.text(words.shortened(row.name, 22), left - 8, y + 13, anchor="end", class_="label", title=row.name))
        begin = 0.0
        for number, value in enumerate(row.parts):
            x, end = (left + (right - left) * across.at(at) for at in (begin, begin + value))
            if value:
                parts.append(svg.bar(x, y, end - x, pitch - 8, index, second=number > 0))
            begin += value
        parts.append(svg.text(row.label, left + (right - left) * across.at(begin) + 6, y + 13, class_="value"))
    told = "; ".join(f"{row.name}: {row.label}" for row in rows)
    return svg.picture(WIDTH, bottom + 40, parts, key=key, title=title, description=f"{title}. {told}.")


def dots(rows: Sequence[Dots], series: Sequence[str], *, key: str, title: str, axis_name: str) -> str:
    """A row of dots for each name (seconds), one a series."""
    left, top = _names_width([row.name for row in rows]), 6.0
    bottom = top + len(rows) * _ROW
    across = axes.durations([value for row in rows for value in row.values if value is not None])
    parts = list(svg.bottom_axis(across, left, _RIGHT, top, bottom, name=axis_name))
    for index, row in enumerate(rows):
        y = top + (index + 0.5) * _ROW
        parts += [
            svg.line(left, y, _RIGHT, y, "grid"),
            svg.text(words.shortened(row.name, 22), left - 8, y + 4, anchor="end", class_="label", title=row.name),
        ]
        for number, value in enumerate(row.values):
            if value is not None:
                said = f"{row.name}, {series[number]}: {words.duration(value)}"
                parts.append(svg.marker(number, left + (_RIGHT - left) * across.at(value), y, said))
    description = f"{title}: {words.count(len(rows), 'row')}, for {', '.join(series)}. The numbers are in the table."
    return svg.picture(WIDTH, bottom + 40, parts, key=key, title=title, description=description)


def _names_width(names: Sequence[str]) -> float:
    return 18 + 6.6 * max((len(words.shortened(name, 22)) for name in names), default=0)


def _told(values: Sequence[float]) -> str:
    if not values:
        return "none"
    ordered = sorted(values)
    half, most = ordered[(len(ordered) - 1) // 2], ordered[-(-len(ordered) * 95 // 100) - 1]
    return f"half at most {words.duration(half)}, 95 of 100 at most {words.duration(most)}"

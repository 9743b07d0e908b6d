"""The plots of the report, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from carrel.cli.roi import svg
from carrel.cli.roi.svg import Axis
from carrel.core.worth import Assessment, Varied, show

#: All plots that stand two in a row have one width, so that their type has one size.
WIDTH = 440.0
_RIGHT = WIDTH - 22
#: Assumptions that are drawn; all are in the table.
SHOWN = 10
_WIDE = 760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A cost by utilisation: at 0 and at 100 %."""

    name: str
    at_none: float
    at_all: float


def costs(found: Assessment) -> str:
    """Bars from left to right: the cost by kind."""
    rows = [(kind, float(figure.quantity.value), show(figure.quantity)) for kind, figure in found.kinds.items()]
    left, top, pitch, most = 18 + 6.6 * max(len(svg.shortened(kind, 22)) for kind in found.kinds), 6.0, 26.0, WIDTH - 12
    across = svg.numbers(max(value for _, value, _ in rows))
    # As far to the right as the labels behind the bars allow.
    ends = ((across.at(value), most - 8 - 6.6 * len(label)) for _, value, label in rows)
    right = min([most, *(left + (room - left) / end for end, room in ends if end)])
    bottom = top + len(rows) * pitch
    parts = list(svg.bottom_axis(across, left, right, top, bottom, name=found.model.lab.currency))
    for index, (kind, value, label) in enumerate(rows):
        y, end = top + index * pitch + 4, left + (right - left) * across.at(value)
        parts.append(svg.text(svg.shortened(kind, 22), left - 8, y + 13, anchor="end", class_="label", title=kind))
        if value:
            parts.append(svg.bar(left, y, end - left, pitch - 8, index))
        parts.append(svg.text(label, end + 6, y + 13, class_="value"))
    told = "; ".join(f"{kind}: {label}" for kind, _, label in rows)
    title = "Cost by kind"
    return svg.picture(WIDTH, bottom + 40, parts, key="costs", title=title, description=f"{title}. {told}.")


def lines(found: Assessment) -> Sequence[Line]:
    """What the lab costs at any utilisation, and what each price list would."""
    cost = float(found.sheet["cost"].quantity.value)
    result = [Line(name=found.model.lab.name, at_none=cost, at_all=cost)]
    for cloud in found.clouds:
        data = float(sum(each.quantity.value for each in cloud.data))
        full = found.sheet.get(f"{cloud.id}.on_demand.full")
        if full is not None:
            result.append(Line(name=f"{cloud.name}, on demand", at_none=data, at_all=data + float(full.quantity.value)))
        if cloud.reserved is not None:
            reserved = float(cloud.reserved.quantity.value)
            result.append(Line(name=f"{cloud.name}, reserved", at_none=reserved, at_all=reserved))
    return result


def break_even(found: Assessment, drawn: Sequence[Line]) -> str:
    """Costs by utilisation: the lab saves money to the right of where its line meets another."""
    up = svg.numbers(1.05 * max(max(one.at_none, one.at_all) for one in drawn))
    left, top, bottom = 16 + 6.8 * max(len(mark) for _, mark in up.marks), 18.0, 228.0
    across = svg.shares()
    parts = [
        *svg.left_axis(up, left, _RIGHT, top, bottom),
        *svg.bottom_axis(across, left, _RIGHT, top, bottom, name="utilisation"),
    ]
    for index, one in enumerate(drawn):
        ends = [bottom - (bottom - top) * up.at(value) for value in (one.at_none, one.at_all)]
        parts.append(svg.curve(f"M{left:.1f} {ends[0]:.1f}L{_RIGHT:.1f} {ends[1]:.1f}", index))
    used = found.sheet.get("utilisation")
    if used is not None and used.quantity.value <= 1:
        x = left + (_RIGHT - left) * float(used.quantity.value)
        parts += [
            svg.line(x, top, x, bottom, "marked"),
            svg.text(f"it was {show(used.quantity)}", x, top - 6, anchor="middle" if 100 < x < 380 else None, class_="mark"),
        ]
    told = "; ".join(
        f"{cloud.break_even.name}: {show(cloud.break_even.quantity)}" for cloud in found.clouds if cloud.break_even is not None
    )
    title = "Cost by utilisation"
    return svg.picture(WIDTH, bottom + 40, parts, key="even", title=title, description=f"{title}. {told}.")


def tornado(found: Assessment) -> str:
    """What comes of each assumption at its low and at its high end, the one that matters most on top."""
    varied = [one for one in found.varied if one.swing(found.target)][:SHOWN]
    figure = found.sheet[found.target]
    middle = float(figure.quantity.value)
    ends = [[float(end.value) for end in one.outcomes[found.target]] for one in varied]
    left, top, pitch, right = 240.0, 6.0, 23.0, _WIDE - 195
    across = _between(min([middle, *(min(each) for each in ends)]), max([middle, *(max(each) for each in ends)]))
    bottom = top + len(varied) * pitch
    parts = list(svg.bottom_axis(across, left, right, top, bottom, name=f"{figure.name}, {figure.quantity.unit}"))
    for index, (one, values) in enumerate(zip(varied, ends, strict=True)):
        y = top + index * pitch + 4
        label = _range(one)
        parts.append(svg.text(svg.shortened(one.name, 36), left - 8, y + 12, anchor="end", class_="label", title=one.name))
        places = [left + (right - left) * across.at(value) for value in (middle, *values)]
        # The longer one first: both may be on one side.
        for series, place in sorted(enumerate(places[1:]), key=lambda each: -abs(each[1] - places[0])):
            parts.append(svg.bar(min(places[0], place), y, abs(place - places[0]), pitch - 8, series))
        parts.append(svg.text(label, right + 10, y + 12, class_="mark", title=label))
    x = left + (right - left) * across.at(middle)
    parts.append(svg.line(x, top, x, bottom, "axis"))
    told = "; ".join(f"{one.name}: {show(low)} to {show(high)}" for one in varied for low, high in [one.outcomes[found.target]])
    title = f"{figure.name} with other assumptions"
    return svg.picture(_WIDE, bottom + 40, parts, key="tornado", title=title, description=f"{title}. {told}.")


def _range(one: Varied) -> str:
    """ "52,000 to 78,000 EUR"."""
    low, high, unit = show(one.low), show(one.high), str(one.high.unit)
    return f"{low.removesuffix(unit).rstrip() if unit else low} to {high}"


def _between(low: float, high: float) -> Axis:
    """An even axis with room at both ends."""
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** floor(log10(span))
    step = next(step for step in (unit / 5, unit / 2, unit, unit * 2) if span / step <= 6)
    low, high = low - 0.04 * span, high + 0.04 * span
    decimals = max(0, -floor(log10(step)))
    marks = [(step * many, f"{step * many:,.{decimals}f}") for many in range(ceil(low / step), floor(high / step) + 1)]
    return Axis(low=low, high=high, marks=marks)

"""SVG as text: elements, marks of a series, a frame with axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log10

#: How a series looks repeats after this many; a page has a colour for each (page.css).
COLOURS = 7
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
#: Width that a character of a mark takes on average, and a little more: nobody knows the reader's font.
_CHARACTER = 6.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale from `low` to `high`."""

    low: float
    high: float
    #: Values and what is written beside them.
    marks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what is beyond an end stands at that end."""
        inside = min(max(value, self.low), self.high)
        return (inside - self.low) / (self.high - self.low)


def numbers(highest: float) -> Axis:
    """An even axis from 0 for numbers."""
    highest = highest if highest > 1e-6 else 1.0
    unit = 10 ** floor(log10(highest))
    step = next(step for step in (unit / 5, unit / 2, unit, unit * 2) if highest / step <= 6)
    marks = [
        (min(step * many, highest), f"{step * many:,.6g}" if step < 1000 else f"{step * many:,.0f}")
        for many in range(floor(highest / step) + 1)
    ]
    return Axis(low=0.0, high=highest, marks=marks)


def shares(marks: Iterable[float] = (0, 0.25, 0.5, 0.75, 1)) -> Axis:
    """An axis from 0 to 100 %."""
    return Axis(low=0.0, high=1.0, marks=[(mark, f"{100 * mark:g} %") for mark in marks])


def shortened(text: str, length: int) -> str:
    """`text` with at most `length` characters."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def safe(text: str) -> str:
    """`text`, which may come from anywhere, as text of HTML or SVG, also between quotes."""
    shown = "".join(char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return escape(shown, quote=True)


def tag(name: str, content: str = "", **attributes: object) -> str:
    """One element. `content` is markup and goes in as it is, attributes are made safe; `class_` is "class", "a_b" is "a-b"."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value) if isinstance(value, float) else safe(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>"


def text(content: str, x: float, y: float, *, anchor: str | None = None, class_: str | None = None, title: str = "") -> str:
    """A text; `content` and `title` are made safe."""
    whole = tag("title", safe(title)) if title else ""
    return tag("text", safe(content) + whole, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return tag("path", d=f"M{_number(x1)} {_number(y1)}L{_number(x2)} {_number(y2)}", class_=class_)


def curve(path: str, series: int) -> str:
    """The line of a series."""
    return tag("path", d=path, class_=f"curve s{series % COLOURS}", stroke_dasharray=dash(series))


def bar(x: float, y: float, width: float, height: float, series: int) -> str:
    """A bar of a series."""
    return tag("rect", x=x, y=y, width=width, height=height, class_=f"bar s{series % COLOURS}")


def dash(series: int) -> str | None:
    """The dashes of a series: colours alone are lost on those who print in grey."""
    return _DASHES[series % len(_DASHES)] or None


def picture(width: float, height: float, parts: Sequence[str], *, key: str, title: str, description: str) -> str:
    """A whole SVG with its name and description for those who do not see it. `key` is unique on its page."""
    return tag(
        "svg",
        tag("title", safe(title), id=f"{key}-title") + tag("desc", safe(description), id=f"{key}-desc") + "".join(parts),
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        role="img",
        aria_labelledby=f"{key}-title",
        aria_describedby=f"{key}-desc",
    )


def bottom_axis(axis: Axis, left: float, right: float, top: float, bottom: float, *, name: str = "") -> Sequence[str]:
    """Grid lines from `top` to `bottom`, below them those of their marks for which there is room, and what the axis is about."""
    parts = []
    places = [left + (right - left) * axis.at(value) for value, _ in axis.marks]
    labels = [label for _, label in axis.marks]
    every = _every(places, labels)
    for index, (x, label) in enumerate(zip(places, labels, strict=True)):
        parts.append(line(x, top, x, bottom, "grid"))
        if index % every == 0:
            parts.append(text(label, x, bottom + 15, anchor="middle", class_="mark"))
    parts.append(line(left, bottom, right, bottom, "axis"))
    if name:
        parts.append(text(name, (left + right) / 2, bottom + 32, anchor="middle", class_="name"))
    return parts


def _every(places: Sequence[float], labels: Sequence[str]) -> int:
    """Return n so that every n-th label can be written without touching the next."""
    for every in range(1, len(labels)):
        shown = list(zip(places, labels, strict=True))[::every]
        if all(_CHARACTER * (len(this) + len(that) + 2) / 2 <= there - here for (here, this), (there, that) in pairwise(shown)):
            return every
    return max(1, len(labels))


def left_axis(axis: Axis, left: float, right: float, top: float, bottom: float) -> Sequence[str]:
    """Grid lines from `left` to `right` with their marks on the left."""
    parts = []
    for value, label in axis.marks:
        y = bottom - (bottom - top) * axis.at(value)
        parts += [line(left, y, right, y, "grid"), text(label, left - 6, y + 4, anchor="end", class_="mark")]
    return parts


def _number(value: float) -> str:
    """A tenth of a unit is finer than anybody sees."""
    short = f"{value:.1f}".removesuffix(".0")
    return "0" if short == "-0" else short

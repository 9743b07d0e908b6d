"""SVG as text: elements, marks of a series, a frame with axes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from carrel.simulate.report.axes import Axis
from carrel.simulate.report.words import clean

#: How a series looks repeats after this many; a page has a colour for each (page.css).
COLOURS = 7
_DASHES = ("", "7 3", "2 2.5", "9 3 2 3")
#: Width that a character of a mark takes on average, and a little more: nobody knows the reader's font.
_CHARACTER = 6.8
#: Around 0, 0; all of about the same size.
_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.6L4.4 3.4h-8.8z",
    "M0-5L5 0 0 5-5 0z",
    "M0 4.6L4.4-3.4h-8.8z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.4 1.6L-2.8 4.4h5.6L4.4 1.6v-3.2L2.8-4.4h-5.6L-4.4-1.6z",
)


def safe(text: str) -> str:
    """`text`, which may come from anywhere, as text of HTML or SVG, also between quotes."""
    return escape(clean(text), quote=True)


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


def steps(points: Sequence[tuple[float, float]]) -> str:
    """A path that goes from point to point by first moving sideways: what a distribution looks like."""
    (x, y), *more = points
    return f"M{_number(x)} {_number(y)}" + "".join(f"H{_number(x)}V{_number(y)}" for x, y in more)


def curve(path: str, series: int) -> str:
    """The line of a series."""
    return tag("path", d=path, class_=f"curve s{series % COLOURS}", stroke_dasharray=dash(series))


def area(points: Sequence[tuple[float, float]], floor: float, series: int) -> str:
    """What is between a line and the floor."""
    edge = "".join(f"L{_number(x)} {_number(y)}" for x, y in points)
    first = points[0][0]
    return tag("path", d=f"M{_number(first)} {_number(floor)}{edge}V{_number(floor)}z", class_=f"area s{series % COLOURS}") + tag(
        "path", d="M" + edge[1:], class_=f"edge s{series % COLOURS}"
    )


def bar(x: float, y: float, width: float, height: float, series: int, *, second: bool = False) -> str:
    """A bar; the second part of one is only outlined and tinted."""
    kind = "second" if second else "bar"
    return tag("rect", x=x, y=y, width=width, height=height, class_=f"{kind} s{series % COLOURS}")


def dash(series: int) -> str | None:
    """The dashes of a series: colours alone are lost on those who print in grey."""
    return _DASHES[series % len(_DASHES)] or None


def marker(series: int, x: float, y: float, title: str = "") -> str:
    """The mark of a series; `title` is shown to those who point at it."""
    whole = tag("title", safe(title)) if title else ""
    place = f"translate({_number(x)} {_number(y)})"
    return tag("path", whole, d=_SHAPES[series % len(_SHAPES)], transform=place, class_=f"dot s{series % COLOURS}")


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

"""The page of the report as PDF, by Typst (`carrel-lab[report]`): the same words, figures and plots."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.resources import files
from types import MappingProxyType

from carrel.core.domain.errors import Unavailable

_VOID = frozenset({"br", "wbr", "meta", "link"})
#: A font that Typst brings with it, so that reports look alike everywhere. What it lacks comes from fonts of the machine.
_FONT = "Libertinus Serif"
_PREAMBLE = """\
#set document(title: {title}, date: none)
#set page(paper: "a4", margin: (x: 16mm, y: 15mm), numbering: "1 / 1")
#set text(font: "{font}", size: 9pt, lang: "en")
#set par(leading: 0.5em)
#set table(stroke: (_, y) => (bottom: 0.4pt + luma(75%)), inset: (x: 3pt, y: 3pt))
#show heading: set block(above: 1.1em, below: 0.6em)
#let muted(body) = text(size: 0.9em, fill: luma(35%), body)
#let fact(name, value) = block({{ muted(name); linebreak(); text(size: 1.15em, weight: "bold", value) }})
#let card(body) = block(width: 100%, inset: 6pt, radius: 3pt, stroke: 0.4pt + luma(75%), breakable: false, body)
#let here(id) = [#metadata(none)#label(id)]
"""


@dataclass(slots=True)
class _Element:
    """One element of the page, with its attributes and what is in it."""

    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    inside: list[_Element | str] = field(default_factory=list)

    def find(self, tag: str) -> Iterator[_Element]:
        """All elements of that name below it, in their order."""
        for one in self.inside:
            if isinstance(one, _Element):
                if one.tag == tag:
                    yield one
                yield from one.find(tag)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


class _Reader(HTMLParser):
    """Makes elements of the page; a picture (SVG) stays text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = _Element("")
        self._open = [self.root]
        self._picture = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "svg" or self._picture:
            if not self._picture:
                self._begin(_Element("svg"))
            self._picture += 1
            self._open[-1].inside.append(self.get_starttag_text() or "")
        elif tag in _VOID:
            self._open[-1].inside.append(_Element(tag))
        else:
            self._begin(_Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self._picture:
            self._picture -= 1
            self._open[-1].inside.append(f"</{tag}>")
            if self._picture:
                return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        # Inside of a picture it stays markup.
        self._open[-1].inside.append(data.replace("&", "&amp;").replace("<", "&lt;") if self._picture else data)

    def _begin(self, element: _Element) -> None:
        self._open[-1].inside.append(element)
        self._open.append(element)


def pdf(page: str) -> bytes:
    """The same as PDF. Raises `Unavailable` without Typst."""
    try:
        import typst
    except ImportError:
        raise Unavailable(
            "A PDF is written by Typst, which is not installed here.",
            remedy="Install `carrel-lab[report]`, or write report.html, open it in a browser and print it into a file.",
        ) from None
    made: bytes = typst.compile(source(page).encode(), format="pdf")
    return made


def source(page: str) -> str:
    """The page in Typst's language. Names from the cost file are strings in it, and no code."""
    root = _Reader(page).root
    title, main = next(root.find("title")), next(root.find("main"))
    head = _PREAMBLE.format(title=_string("".join(map(str, title.inside))), font=_FONT)
    return head + "".join(f"#{_code(one)}\n" for one in main.inside if isinstance(one, _Element))


def _string(text: str) -> str:
    """A string of Typst: characters that it could take for an end, an escape or a line are written by their number."""
    return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"\\u{{{ord(found[0]):x}}}", text) + '"'


def _all(element: _Element) -> str:
    """What is in it, one after the other."""
    parts = [_string(re.sub(r"\s+", " ", one)) if isinstance(one, str) else _code(one) for one in element.inside]
    return "{" + "; ".join(part for part in parts if part not in ('" "', '""')) + "}"


def _code(element: _Element) -> str:
    return _RULES.get(element.tag, _all)(element)


def _heading(element: _Element) -> str:
    return f"heading(level: {element.tag[1]}, {_all(element)})"


def _paragraph(element: _Element) -> str:
    inner = _all(element)
    if "warning" in element.classes:
        inner = f"strong({inner})"
    return f"par({f'muted({inner})' if 'muted' in element.classes else inner})"


def _list(element: _Element) -> str:
    items = [_all(one) for one in element.find("li")]
    if "legend" in element.classes:
        return f"par(muted({{{'; h(1em); '.join(f'box({one})' for one in items)}}}))"
    return f"list({', '.join(items)})"


def _facts(element: _Element) -> str:
    pairs = zip(element.find("dt"), element.find("dd"), strict=True)
    facts = ", ".join(f"fact({_all(name)}, {_all(value)})" for name, value in pairs)
    return f"grid(columns: (1fr,) * 4, gutter: 8pt, {facts})"


def _division(element: _Element) -> str:
    if "plots" not in element.classes:
        return _all(element)
    cards = ", ".join(_code(one) for one in element.inside if isinstance(one, _Element))
    return f"grid(columns: (1fr, 1fr), gutter: 6pt, {cards})"


def _section(element: _Element) -> str:
    return f"{{ pagebreak(weak: true); {_all(element)} }}" if "leaf" in element.classes else _all(element)


def _table(element: _Element) -> str:
    heads = [f"muted({_all(one)})" for one in next(element.find("thead")).find("th")]
    cells, numbers = [], set[int]()
    for row in next(element.find("tbody")).find("tr"):
        place = f"here({_string(row.attributes['id'])}); " if "id" in row.attributes else ""
        for column, cell in enumerate(row.find("td")):
            numbers |= {column} if "num" in cell.classes else set()
            cells.append(f"{{ {'' if column else place}{_all(cell)} }}")
    widths = ", ".join("auto" if column in numbers else "1fr" for column in range(len(heads)))
    sides = ", ".join("right" if column in numbers else "left" for column in range(len(heads)))
    return (
        f"text(size: 0.9em, table(columns: ({widths},), align: ({sides},), table.header({', '.join(heads)}), {', '.join(cells)}))"
    )


def _link(element: _Element) -> str:
    return f"link(label({_string(element.attributes['href'].removeprefix('#'))}), {_all(element)})"


def _picture(element: _Element) -> str:
    text = "".join(map(str, element.inside))
    text = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f"><style>{_style()}</style>", 1)
    large = "<title" in text
    alt = re.search(r"<desc[^>]*>([^<]*)</desc>", text)
    told = f", alt: {_string(alt[1])}" if alt else ""
    made = f'image(bytes({_string(text)}), format: "svg", width: {"100%" if large else "1.6em"}{told})'
    return made if large else f"box({made})"


def _style() -> str:
    """What the page says of its pictures, with colours in the place of their names: a picture by itself knows none."""
    style = files("carrel.cli.roi").joinpath("page.css").read_text(encoding="utf-8")
    values = dict(re.findall(r"--(\w+(?:-\w+)?): (#\w+);", style.split("@media")[0]))
    series = "".join(
        f".bar.s{number} {{ fill: {values[f's{number}']} }} .curve.s{number} {{ stroke: {values[f's{number}']} }} "
        for number in range(7)
    )
    ink, muted, line, strong = (values[name] for name in ("ink", "muted", "line", "line-strong"))
    return (
        f"text {{ font-family: '{_FONT}'; font-size: 12px; fill: {ink} }} .mark, .name, .value {{ fill: {muted} }} "
        f".grid {{ stroke: {line} }} .axis {{ stroke: {strong} }} .marked {{ stroke: {muted}; stroke-dasharray: 4 3 }} "
        f".curve {{ fill: none; stroke-width: 2 }} {series}"
    )


_RULES: Mapping[str, Callable[[_Element], str]] = MappingProxyType(
    {
        **dict.fromkeys(("h1", "h2", "h3"), _heading),
        "p": _paragraph,
        "ul": _list,
        "dl": _facts,
        "div": _division,
        "section": _section,
        "figure": lambda element: f"card({_all(element)})",
        "figcaption": lambda element: f"muted({_all(element)})",
        "table": _table,
        "a": _link,
        "code": lambda element: f"muted({_all(element)})",
        "svg": _picture,
        "br": lambda _element: "linebreak()",
        "wbr": lambda _element: "sym.zws",
    }
)

"""HTML as text: what a page of numbers is made of. Everything that comes in as a name, a number or a sentence is made safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from carrel.cli.roi import svg
from carrel.cli.roi.svg import safe, tag

#: Nothing may be loaded and nothing may run, with any names in a trace.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' rx='7' "
    "fill='%231f5f52'/%3E%3Cpath d='M7 25V11l9-4 9 4v14M7 18h18M12 25v-7M20 25v-7' fill='none' stroke='%23fff' "
    "stroke-width='2.2' stroke-linecap='round' stroke-linejoin='round'/%3E%3C/svg%3E"
)
_BRAND = '<svg viewBox="0 0 32 32" aria-hidden="true"><path d="M4 27V9l12-5 12 5v18M4 18h24M10 27v-9M22 27v-9"/></svg>'


def document(title: str, sections: Sequence[str], *, about: str) -> str:
    """A whole page with its style in it; `about` stands beside the brand."""
    style = files("carrel.cli.roi").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f'<title>{safe(title)}</title>\n<link rel="icon" href="{_ICON}">\n<style>\n{style}</style>\n</head>\n<body>\n'
        f'<header class="top"><div class="wide"><span class="brand">{_BRAND}Carrel</span><span class="muted">{safe(about)}</span>'
        f'</div></header>\n<main class="wide">\n{"".join(sections)}</main>\n</body>\n</html>\n'
    )


def section(heading: str, parts: Sequence[str]) -> str:
    """A part of the page under its heading."""
    return f"<section>\n{tag('h2', safe(heading))}\n{''.join(parts)}</section>\n"


def paragraph(*sentences: str, muted: bool = False) -> str:
    """Sentences."""
    return tag("p", safe(" ".join(sentences)), class_="muted" if muted else None) + "\n"


def bullets(items: Sequence[str]) -> str:
    """A list; nothing when there are no items."""
    return tag("ul", "".join(tag("li", safe(item)) for item in items)) + "\n" if items else ""


def pairs(facts: Mapping[str, str]) -> str:
    """Names and values; nothing when there are none."""
    rows = "".join(f"<div>{tag('dt', safe(name))}{tag('dd', safe(value))}</div>" for name, value in facts.items())
    return tag("dl", rows, class_="facts") + "\n" if rows else ""


def figure(heading: str, picture: str, note: str, legend: str = "") -> str:
    """A plot between its heading and a sentence on how to read it."""
    said = tag("figcaption", safe(note)) if note else ""
    return f"<figure>{tag('h3', safe(heading))}{legend}{picture}{said}</figure>\n"


def legend(names: Sequence[str]) -> str:
    """What each line of a plot stands for."""
    items = [
        tag("li", f'<svg viewBox="0 0 24 14" aria-hidden="true">{svg.curve("M0 7H24", index)}</svg>' + safe(name))
        for index, name in enumerate(names)
    ]
    return tag("ul", "".join(items), class_="legend")


def grid(figures: Sequence[str]) -> str:
    """Plots, two in a row where there is room."""
    return tag("div", "\n" + "".join(figures), class_="plots") + "\n"

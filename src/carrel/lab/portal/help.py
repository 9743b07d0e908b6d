"""The documentation, served by the lab itself: the pages of ``docs``, and a search in them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.domain.errors import NotFound
from carrel.lab.portal.templating import Templates

#: Which page of the documentation is that of a page of the lab, by the beginning of its path; the first that fits.
PAGES = {
    "/tasks/new": "pages.md#new-task",
    "/notebooks": "notebooks.md",
    "/gpus": "lending.md",
    "/jobs/compare": "compare.md",
    "/jobs/why": "why.md",
    "/jobs": "pages.md#a-job",
    "/sweeps": "sweeps.md",
    "/machines": "composing.md",
    "/use": "use.md",
    "/challenges": "challenges.md",
    "/baselines": "baselines.md",
    "/my-sign-in": "sign-in-local.md",
    "/administration": "administration.md",
    "/account": "pages.md#your-account",
    "/docs": "api.md",
    "/": "pages.md",
}
#: Beside the package where it is installed, else where its checkout has it.
_PLACES = (Path(__file__).parent / "docs", Path(__file__).parents[4] / "docs")
#: Sections that a search shows, and characters of each.
_FOUND, _EXCERPT = 30, 220
_PICTURES = (".svg", ".png")
_NOT_IN_NAMES = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands under one heading."""

    #: The page's file, and its title.
    page: str
    title: str
    heading: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A section in which all words were found."""

    section: Section
    excerpt: str


def help_of(path: str) -> str:
    """Return the address of the documentation of the page at `path`."""
    return "/help/" + next(page for begin, page in PAGES.items() if path.startswith(begin))


class HelpPages:
    """``/help`` and what is below it."""

    def __init__(self, look: Templates, directory: Path | None = None) -> None:
        self._look = look
        self._directory = directory or next((place for place in _PLACES if place.is_dir()), _PLACES[0])
        self._markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])

    def routes(self) -> list[BaseRoute]:
        """The routes of the documentation."""
        return [
            Route("/help", self.search, methods=["GET"]),
            Route("/help/{name:path}", self.page, methods=["GET"]),
        ]

    def page(self, request: Request) -> Response:
        """One page, or a picture of one."""
        name = request.path_params["name"]
        if name.endswith(_PICTURES) and name in self._names:
            return FileResponse(self._directory / name)
        if name not in self._names:
            raise NotFound(f'The documentation has no page "{name[:100]}".', remedy="Look for it: /help.")
        tokens = self._markdown.parse((self._directory / name).read_text(encoding="utf-8"))
        contents = self._prepare(tokens, name)
        html = self._markdown.renderer.render(tokens, self._markdown.options, {})
        # Who has no pointer scrolls by keys what has the focus; and a heading without words is none.
        html = Markup(html.replace("<pre>", '<pre tabindex="0">').replace("<th></th>", "<td></td>"))
        return self._look.page(request, "help_page.html", name=name, title=_title(tokens), contents=contents, html=html)

    def search(self, request: Request) -> Response:
        """The sections that have all words of ``q``; without one, the list of pages."""
        words = request.query_params.get("q", "")[:200].lower().split()
        found = self.find(words) if words else []
        if not words:
            request.path_params["name"] = "README.md"
            return self.page(request)
        return self._look.page(request, "help_search.html", query=" ".join(words), found=found)

    def find(self, words: Sequence[str]) -> list[Found]:
        """Return the sections that have all words, those first that have them in their headings."""
        hits = []
        for section in self._sections:
            heading, text = f"{section.title} {section.heading}".lower(), section.text.lower()
            if all(word in heading or word in text for word in words):
                rank = sum(word in heading for word in words), sum(text.count(word) for word in words) / (len(text) + 200)
                hits.append((rank, section))
        hits.sort(key=lambda hit: hit[0], reverse=True)
        return [Found(section=section, excerpt=_excerpt(section.text, words)) for _, section in hits[:_FOUND]]

    # ---- parts

    @cached_property
    def _names(self) -> frozenset[str]:
        """What is served, relative to the directory."""
        files = (file for kind in (".md", *_PICTURES) for file in self._directory.rglob(f"*{kind}"))
        return frozenset(file.relative_to(self._directory).as_posix() for file in files)

    @cached_property
    def _sections(self) -> Sequence[Section]:
        """All that can be found: decisions are for those who change the code, and left out."""
        found = []
        for name in sorted(self._names):
            if not name.endswith(".md") or name.startswith("decisions/"):
                continue
            tokens = self._markdown.parse((self._directory / name).read_text(encoding="utf-8"))
            title, heading, text = _title(tokens), "", list[str]()
            for index, token in enumerate(tokens):
                if token.type == "heading_open":
                    found.append(_section(name, title, heading, text))
                    heading, text = _plain(tokens[index + 1]), []
                elif token.type in ("inline", "fence", "code_block") and tokens[index - 1].type != "heading_open":
                    text.append(_plain(token))
            found.append(_section(name, title, heading, text))
        return [section for section in found if section.text or section.heading]

    def _prepare(self, tokens: Sequence[Token], name: str) -> list[tuple[str, str]]:
        """Give headings their anchors, and let links lead to the lab's own pages; return headings of the second level."""
        contents = []
        for index, token in enumerate(tokens):
            if token.type == "heading_open":
                text = _plain(tokens[index + 1])
                token.attrSet("id", _anchor(text))
                if token.tag == "h2":
                    contents.append((_anchor(text), text))
            elif token.type == "table_open":
                token.attrSet("class", "plain")
            elif token.attrs.pop("style", "") == "text-align:right":  # the pages' policy allows no styles in place
                token.attrSet("class", "num")
            for child in token.children or ():
                self._lead(child, name)
        return contents

    def _lead(self, token: Token, name: str) -> None:
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        target = str(token.attrGet(attribute)) if attribute else ""
        if not attribute or re.match(r"[a-z][a-z0-9+.-]*:|#|/", target):
            return
        path, hash_sign, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        # What lies outside of the documentation (the code, the licence) is not here.
        token.attrSet(attribute, f"/help/{place}{hash_sign}{anchor}" if place in self._names else "/help")


def _section(name: str, title: str, heading: str, text: Sequence[str]) -> Section:
    return Section(page=name, title=title, heading=heading, anchor=_anchor(heading), text=" ".join(" ".join(text).split()))


def _title(tokens: Sequence[Token]) -> str:
    return next((_plain(tokens[index + 1]) for index, token in enumerate(tokens) if token.type == "heading_open"), "")


def _plain(token: Token) -> str:
    if not token.children:
        return token.content
    return "".join(
        child.content if child.type in ("text", "code_inline") else " " * (child.type == "softbreak") for child in token.children
    )


def _anchor(heading: str) -> str:
    """As GitHub makes anchors, which the links in the documentation are written for."""
    return _NOT_IN_NAMES.sub("", heading.lower()).replace(" ", "-")


def _excerpt(text: str, words: Sequence[str]) -> str:
    at = min((place for word in words if (place := text.lower().find(word)) >= 0), default=0)
    start = max(0, at - 60)
    return ("…" if start else "") + text[start : start + _EXCERPT] + ("…" if start + _EXCERPT < len(text) else "")

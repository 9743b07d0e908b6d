"""A challenge as static files: pages without scripts that load nothing, and hold what everybody may read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.errors import Conflict

if TYPE_CHECKING:
    from carrel.core.domain.challenge import ChallengeView
    from carrel.core.domain.challenge_report import ChallengeReport


def page(title: str, text: str, *, links: str = "") -> str:
    """Markdown as a page. HTML in it is shown as it is written, and pictures are not loaded."""
    from markdown_it import MarkdownIt

    from carrel.cli.roi import markup
    from carrel.cli.roi.svg import safe

    html = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image").render(text)
    html = html.replace("<table>", '<div class="scroll" tabindex="0">\n<table>').replace("</table>", "</table>\n</div>")
    return markup.document(title, [f"<section>\n<h1>{safe(title)}</h1>\n{links}{html}</section>\n"], about="challenge")


def check_place(directory: Path) -> None:
    """Raise `Conflict` unless files can be written into a new or empty directory."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Conflict(f"There is something in {directory} already.", remedy="Name a directory that is new, or empty.")


def write_site(directory: Path, challenge: ChallengeView, report: ChallengeReport) -> None:
    """Write the pages, the rules, and the boards with the report as far as it is everybody's."""
    from carrel.core.challenges.report import markdown

    directory.mkdir(parents=True, exist_ok=True)
    parts = [*challenge.pages.items(), *([("Rules", challenge.rules)] if challenge.rules else [])]
    text = "\n\n".join(f"## {' '.join(title.split())}\n\n{content}" for title, content in parts)
    results = '<p><a href="results.html">Boards and participation</a></p>\n'
    (directory / "index.html").write_text(page(challenge.title, text, links=results), encoding="utf-8")
    back = '<p><a href="index.html">What it was about</a></p>\n'
    written = page(challenge.title, markdown(report, public=True), links=back)
    (directory / "results.html").write_text(written, encoding="utf-8")

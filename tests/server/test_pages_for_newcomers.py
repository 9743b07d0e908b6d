"""The pages that newcomers and administrators begin with lead to what is there, and their example of settings is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carrel.lab.server.settings import read_settings

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.quick


def test_the_page_leads_to_pages_that_are_there() -> None:
    for page in ("tutorial", "README", "coming-from", "administration"):
        file = DOCS / f"{page}.md"
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", file.read_text()):
            other = file.parent / target if target else file
            assert other.exists(), f"{page}.md: {target}"
            assert not anchor or anchor in anchors(other.read_text()), f"{page}.md: {target}#{anchor}"


def test_the_example_of_settings_is_right(tmp_path: Path) -> None:
    page = (DOCS / "administration.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "carrel.toml").write_text(text)
    rules = read_settings(tmp_path / "carrel.toml", {}, {}).rules
    assert {name: set(account.users) for name, account in rules.accounts.items()} == {
        "vision": {"ada", "bob"},
        "optics": {"cem", "dana"},
    }


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}

"""What the project's texts say about decision records."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs/decisions"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md", *RECORDS.glob("*.md")]
#: A link to a record, from any directory.
LINK = re.compile(r"\(((?:\.\./)?(?:docs/)?(?:decisions/)?\d{4}-[a-z0-9-]+\.md)")
#: A record that is named by its number.
NUMBER = re.compile(r"docs/decisions/(\d{4})")


def test_each_link_to_a_record_leads_to_one() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text())]
    assert len(links) > 100
    assert not [f"{page.name}: {link}" for page, link in links if not (page.parent / link).is_file()]


def test_each_record_that_code_and_pages_name_is_there() -> None:
    code = [path for room in ("src", "tests", "residency", "packages") for path in (ROOT / room).rglob("*.py")]
    named = {(path, number) for path in [*PAGES, *code] for number in NUMBER.findall(path.read_text())}
    assert not [f"{path}: {number}" for path, number in named if not list(RECORDS.glob(f"{number}-*.md"))]


def test_the_list_of_records_has_each_of_them() -> None:
    listed = set(re.findall(r"^\| \[\d+\]\((\d{4}-[a-z0-9-]+\.md)\)", (RECORDS / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in RECORDS.glob("0*.md")}

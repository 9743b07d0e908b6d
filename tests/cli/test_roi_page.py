"""The page of `carrel report roi`, and what docs/roi.md says of it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from datetime import date
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typst
from roi_sample import PDF, SAMPLE, sample, sample_page

from carrel.cli.roi.command import period_of
from carrel.cli.roi.page import METHODS, page
from carrel.cli.roi.pdf import pdf, source
from carrel.cli.roi.sheets import as_csv, as_json, plain
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.worth import Measured, Period, assess, read_costs, show
from carrel.core.worth.declaring import keys_of, required
from carrel.core.worth.model import LISTS, SINGLE

pytestmark = pytest.mark.quick

PAGE = (Path(__file__).parents[2] / "docs" / "roi.md").read_text()
YEAR = Period(date(2026, 1, 1), date(2027, 1, 1))


def test_the_sample_is_what_the_program_writes() -> None:
    """`python tests/cli/roi_sample.py` writes it anew."""
    assert SAMPLE.read_text() == sample_page()
    # Its bytes depend on the fonts of the machine.
    assert PDF.read_bytes().startswith(b"%PDF-")


class _Page(HTMLParser):
    """What a page loads and links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


def test_it_needs_nothing_and_each_figure_can_be_followed() -> None:
    found = _Page(sample_page())
    assert not found.tags & {"script", "iframe", "img", "object"}
    assert len(found.ids) == len(set(found.ids))
    assert {figure.id for figure in sample().sheet} <= set(found.ids)
    inside = [link.removeprefix("#") for link in found.links if not link.startswith("data:")]
    assert inside
    assert set(inside) <= set(found.ids)


def test_names_from_the_cost_file_are_text() -> None:
    costs = '[lab]\nname = "<script>alert(1)</script>"\ncurrency = "EUR"\n'
    found = assess(read_costs(costs, "costs.toml"), YEAR, Measured(source="the lab"))
    text = page(found, costs='"><script>', sha256="0", simulated=True)
    assert "script" not in _Page(text).tags
    assert "simulated" in text


def test_csv_and_json_have_every_figure() -> None:
    found = sample()
    lines = list(csv.DictReader(io.StringIO(as_csv(found))))
    document = as_json(found, sha256="0", simulated=False)
    assert [line["id"] for line in lines] == [one["id"] for one in document["figures"]] == [figure.id for figure in found.sheet]
    for line, one, figure in zip(lines, document["figures"], found.sheet, strict=True):
        assert float(line["value"]) == one["value"] == pytest.approx(float(figure.quantity.value))
        assert bool(line["source"]) != bool(line["formula"])


def test_texts_of_the_cost_file_are_no_formulas_in_a_spreadsheet_and_numbers_stay_numbers() -> None:
    costs = (
        '[lab]\nname = "L"\ncurrency = "EUR"\n[[costs]]\nname = "=cmd|x"\nkind = "staff"\ncost = "5 EUR/year"\n'
        'years = [2026]\nsource = "@SUM(1)"\n[[prices]]\nname = "A"\non_demand = "3 EUR/GPU-hour"\n'
        'years = [2026]\nsource = "-2+3"\n'
    )
    lines = list(csv.DictReader(io.StringIO(as_csv(assess(read_costs(costs, "c"), YEAR, Measured(source="the lab"))))))
    assert not [cell for line in lines for key, cell in line.items() if key != "value" and cell[:1] in ("=", "+", "-", "@")]
    assert {line["source"] for line in lines} >= {"'@SUM(1)", "'-2+3"}
    assert min(float(line["value"]) for line in lines) == -5


def test_numbers_of_programs_have_no_exponents() -> None:
    assert [plain(Fraction(one)) for one in ("520000", "1/4", "0", "-1/3", "1e-9")] == [
        "520000",
        "0.25",
        "0",
        "-0.333333333333333",
        "0.000000001",
    ]


def test_only_days_that_are_over_count() -> None:
    today = date(2026, 11, 27)
    assert period_of(2026, None, today) == Period(date(2026, 1, 1), today)
    assert period_of(2025, None, today) == Period(date(2025, 1, 1), date(2026, 1, 1))
    assert period_of(2026, date(2026, 3, 1), today) == Period(date(2026, 3, 1), today)
    for year, since in ((2027, None), (2026, today), (2025, date(2026, 3, 1))):
        with pytest.raises(Invalid, match="nothing to report"):
            period_of(year, since, today)


def test_the_worked_example_of_the_page_comes_to_what_it_says() -> None:
    (text,) = re.findall(r"```toml\n(# costs.toml\n.*?)```", PAGE, re.DOTALL)
    known = Measured(held={"completed": Fraction(42_048)}, users={"ada": Fraction(42_048)}, source="the lab")
    found = assess(read_costs(text, "costs.toml"), YEAR, known)
    told = re.findall(r"^\| `([a-z0-9._]+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(told) == 9
    assert {id: show(found.sheet[id].quantity) for id, _ in told} == dict(told)
    assert {note.partition(" is entered")[0] for note in found.notes} >= {"No cooling", "No cost of space"}


def test_the_page_names_every_key_and_method_and_no_other() -> None:
    told = re.findall(r"^\| `([a-z]+)` \| `([a-z_]+)`( \*)? \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    keys = [
        (table, name, "" if name in required(kind) else " *", key.help)
        for table, kind in {**SINGLE, **LISTS}.items()
        for name, key in keys_of(kind).items()
    ]
    assert [(table, name, star) for table, name, star, _ in told] == [(table, name, star) for table, name, star, _ in keys]
    for (_, name, _, text), (*_, help) in zip(told, keys, strict=True):
        assert text.startswith(help), name
    for method in METHODS:
        assert f"* {method}\n" in PAGE


def test_the_pdf_has_the_words_of_the_page_and_names_are_text_there_too() -> None:
    made = pdf(sample_page())
    assert made.startswith(b"%PDF-")
    assert made == pdf(sample_page()), "the same page gives the same file"
    text = source(sample_page())
    for figure in sample().sheet:
        assert f'here("{figure.id}")' in text
    name = '#read("/etc/passwd") \\" $x$ \x00'
    costs = f'[lab]\nname = {json.dumps(name)}\ncurrency = "EUR"\n'
    found = assess(read_costs(costs, "costs.toml"), YEAR, Measured(source="the lab"))
    hostile = page(found, costs="c", sha256="0", simulated=True)
    assert pdf(hostile).startswith(b"%PDF-")
    (title,) = re.findall(r"heading\(level: 1, \{(.*?)\}\)\n?;?", source(hostile))[:1]
    assert title.startswith('"#read(')


def test_a_path_of_windows_is_in_the_pdf_as_it_was_entered() -> None:
    path = r"K:\finance\budget.xlsx, \u0041"
    costs = (
        '[lab]\nname = "L"\ncurrency = "EUR"\n[[costs]]\nname = "A"\nkind = "staff"\ncost = "5 EUR/year"\nyears = [2026]\n'
        f"source = {json.dumps(path)}\n"
    )
    made = source(page(assess(read_costs(costs, "c"), YEAR, Measured(source="the lab")), costs="c", sha256="0", simulated=False))
    texts = {text for text in re.findall(r'"[^"\n]*"', made) if "xlsx" in text}
    assert texts
    for text in texts:
        read = json.loads(typst.query(f"#metadata({text})<it>".encode(), "<it>", field="value", one=True))
        assert path in read


def test_without_typst_a_pdf_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(Unavailable, match="not installed") as refused:
        pdf(sample_page())
    assert "carrel-lab[report]" in refused.value.remedy

"""The cost file is read strictly: what is wrong is named with its place and a remedy."""

from __future__ import annotations

import tomllib
from datetime import date
from typing import Any

import jsonschema
import pytest
from cost_files import EXAMPLE, CostFile, cost_files, measured
from hypothesis import given

from carrel.core.domain.errors import Invalid
from carrel.core.worth import Period, assess, read_costs
from carrel.core.worth.declaring import keys_of
from carrel.core.worth.model import LISTS, SINGLE
from carrel.core.worth.schema import costs_schema

TEXT = EXAMPLE.read_text()
SCHEMA = jsonschema.Draft202012Validator(costs_schema())


def _faults(text: str) -> list[str]:
    return [fault.message for fault in SCHEMA.iter_errors(tomllib.loads(text))]


def test_the_example_is_right_and_has_every_table() -> None:
    model = read_costs(TEXT, "costs.toml")
    assert all(getattr(model, table) for table in (*LISTS, *SINGLE))
    SCHEMA.check_schema(costs_schema())
    assert _faults(TEXT) == []


def test_every_table_that_is_no_setting_asks_for_a_source() -> None:
    assert [name for name, table in {**LISTS, **SINGLE}.items() if "source" not in keys_of(table)] == ["lab"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus = 16", "gpu = 16", '[[hardware]] number 1 ("gpu01 and gpu02"): there is no key "gpu". Did you mean "gpus"?'),
        ("[[prices]]", "[[price]]", 'there is no table "price". Did you mean "prices"?'),
        ("[[electricity]]", "[electricity]", "Write [[electricity]]"),
        ('price = "520_000 EUR"\n', "", "has no price. price: What they cost. Write a number of EUR."),
        ('"520_000 EUR"', "520_000", "price is 520000, without a unit. Write a number of EUR, in quotes."),
        ('"520_000 EUR"', "520_000.50", 'price is "520_000.50", without a unit.'),
        ('"520_000 EUR"', '"520_000 kWh"', 'price is "520_000 kWh". Write a number of EUR.'),
        ('"520_000 EUR"', '"520_000 CHF"', "Add [[exchange]] with a rate in EUR/CHF for 2024."),
        ('"520_000 EUR"', '"520.000,00 EUR"', "a point before decimals"),
        ('"9.5 kW"', '"9.5 kWh"', "draw is"),
        ('hardware = "storage"', 'hardware = "storge"', 'Did you mean "storage"?'),
        ('life = "5 years"', 'life = "0 years"', "more than 0"),
        ('part = "40 %"', 'part = "140 %"', "100 % or less"),
        ('range = "30 %"', 'range = "100 %"', "less than 100 %"),
        ('kind = "staff"', 'kind = "stuff"', 'Did you mean "staff"?'),
        ("2024-07-01", '"2024-07-01"', "a date without quotes"),
        ("years = [2026]", 'years = ["2026"]', "the years it holds for"),
        ("years = [2026]", "years = []", "the years it holds for"),
        ("gpus = 16", "gpus = true", "gpus is true. Write a whole number"),
        ("gpus = 16", "gpus = -1", "gpus is -1"),
        ('source = "Invented contract of the campus"', 'source = " "', "Write a text"),
        ('source = "Invented contract of the campus"\n', "", "has no source"),
        ('users = ["ada", "bob", "chen", "eli", "fay"]', 'users = ["ada", 1]', "a list of texts"),
        ('doi = "10.5555/12345678"', 'doi = "see our page"', '"see our page", which is no DOI. Write such as 10.5555/12345678'),
        ("jobs = [1]", f"jobs = {'[' * 5000}{']' * 5000}", "is not valid TOML: lists in lists, too deep"),
        ("jobs = [1]", "jobs = [0]", "a list of numbers of jobs"),
        ('currency = "EUR"', 'currency = "euro"', "three letters"),
        ('rate = "0.90 EUR/USD"', 'rate = "0.90 USD/EUR"', "Say what one unit of the other currency is in EUR"),
        ('name = "storage"\ngpus', 'name = "gpu01 and gpu02"\ngpus', '[[hardware]] has "gpu01 and gpu02" twice'),
        ("[lab]", "[lab", "is not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_a_remedy(old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(Invalid) as raised:
        read_costs(TEXT.replace(old, new, 1), "costs.toml")
    assert says in str(raised.value)
    assert str(raised.value).startswith("costs.toml")
    assert raised.value.remedy or "TOML" in says


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            '[[electricity]]\nprice = "1 EUR/kWh"\nyears = [2025, 2026]\nsource = "s"\n',
            "[[electricity]] has entry twice for 2026.",
        ),
        ('[[prices]]\nname = "x"\nyears = [2026]\nsource = "s"\n', "no on_demand and no reserved"),
        (
            '[[people]]\nstatus = "x"\ndepartment = "y"\nusers = ["bob"]\nyears = [2026]\nsource = "s"\n',
            '[[people]] has "bob" twice for 2026.',
        ),
    ],
)
def test_what_contradicts_another_entry_is_refused(more: str, says: str) -> None:
    with pytest.raises(Invalid, match="twice|no on_demand") as raised:
        read_costs(f"{TEXT}\n{more}", "costs.toml")
    assert says in str(raised.value)


def test_without_a_lab_there_is_nothing() -> None:
    with pytest.raises(Invalid, match="does not say what it is about"):
        read_costs("", "costs.toml")


@given(cost_files())
def test_what_the_reader_takes_the_schema_takes(file: CostFile) -> None:
    read_costs(file.text, "costs.toml")
    assert _faults(file.text) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus = 16", "gpu = 16", "'gpu' was unexpected"),
        ('"9.5 kW"', '"many"', "'many'"),
        ('kind = "staff"', 'kind = "x"', "'x'"),
    ],
)
def test_the_schema_marks_mistakes(old: str, new: str, says: str) -> None:
    assert any(says in fault for fault in _faults(TEXT.replace(old, new, 1)))


def _assess(text: str, year: int = 2026, **more: Any) -> Any:
    return assess(
        read_costs(text, "costs.toml"), Period(date(year, 1, 1), date(year + 1, 1, 1)), measured(**({"used": 1000} | more))
    )


def test_power_without_the_price_of_electricity_is_refused() -> None:
    with pytest.raises(Invalid) as raised:
        _assess(
            TEXT.replace(
                '[[electricity]]\nprice = "0.24 EUR/kWh"\nyears = [2026]',
                '[[electricity]]\nprice = "0.24 EUR/kWh"\nyears = [2025]',
            )
        )
    assert "years = [2026]" in raised.value.remedy


def test_more_downtime_than_time_is_refused() -> None:
    with pytest.raises(Invalid, match="takes more than there was"):
        _assess(TEXT.replace("1_152 GPU-hours", "200_000 GPU-hours"))


def test_what_is_not_entered_is_said_and_not_guessed() -> None:
    found = _assess('[lab]\nname = "x"\ncurrency = "EUR"\n', used=0)
    assert found.sheet["cost"].quantity.value == 0
    assert found.sheet.get("utilisation") is None
    assert [one.source for one in found.questions if not one.answer] == [
        "Enter reported_to in [[casc]].",
        "Enter cloud_use in [[casc]].",
        "Enter [[prices]] of the year.",
        "Enter [[grants]] of the year.",
        "Enter national in [[casc]].",
        "Enter organisations in [[casc]].",
    ]
    said = " ".join(found.notes)
    for words in (
        "No GPU was in service",
        "No hardware",
        "No cost of staff",
        "No cost of space",
        "No price list",
        "[sensitivity]",
    ):
        assert words in said
    assert found.varied == []

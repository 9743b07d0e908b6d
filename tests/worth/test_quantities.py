"""Numbers with units: exact, and never mixed up."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.worth import Quantity, Unit, parse_quantity, show

UNITS = st.dictionaries(st.sampled_from(["EUR", "USD", "GPU", "hour", "year", "kWh", "GB"]), st.integers(-2, 2)).map(Unit.of)
QUANTITIES = st.builds(Quantity, st.fractions(min_value=-1000, max_value=1000), UNITS)


@given(QUANTITIES, QUANTITIES)
def test_division_undoes_multiplication(one: Quantity, other: Quantity) -> None:
    if other.value:
        assert one * other / other == one


@given(QUANTITIES, QUANTITIES)
def test_only_the_same_unit_is_added(one: Quantity, other: Quantity) -> None:
    if one.unit == other.unit:
        assert (one + other) - other == one
        return
    with pytest.raises(ValueError, match="cannot be added"):
        one + other


@given(
    st.integers(0, 10**9), st.integers(0, 9999), st.sampled_from(["EUR", "EUR/kWh", "GPU-hour", "USD/GB-year", "kW", "GB/year"])
)
def test_what_is_written_is_read_to_the_last_digit(whole: int, decimals: int, unit: str) -> None:
    found = parse_quantity(f"{whole:_}.{decimals:04} {unit}")
    assert found.value == Fraction(whole) + Fraction(decimals, 10_000)
    assert sorted(str(found.unit)) == sorted(unit)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("900 W", "0.9 kW"),
        ("12 months", "1 year"),
        ("0.02 USD/GB/month", "0.24 USD/GB/year"),
        ("0.24 USD/GB-year", "0.24 USD/year-GB"),
        ("3 TB", "3000 GB"),
        ("310_000 EUR", "310000.00EUR"),
        ("1 EUR/MWh", "0.001 EUR/kWh"),
        ("2.5 GPU-hours", "2.50 GPU-hour"),
    ],
)
def test_one_thing_in_two_units(text: str, same: str) -> None:
    assert parse_quantity(text) == parse_quantity(same)


def test_power_times_time_times_price_is_money() -> None:
    found = parse_quantity("5 kW") * parse_quantity("3 hours") * parse_quantity("0.28 EUR/kWh")
    assert (show(found), found.value) == ("4.20 EUR", Fraction(42, 10))


@pytest.mark.parametrize(
    "text", ["", "EUR", "12", "-3 EUR", "1,5 EUR", "1.000.000 EUR", "1e5 EUR", "5 EUR/", "5 eur", "5 EUR/huor", "9" * 61]
)
def test_what_is_no_quantity_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_quantity(text)
    assert raised.value.remedy


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert parse_quantity(text).value >= 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1234567.8 EUR", "1,234,568 EUR"),
        ("2.345 EUR/GPU-hour", "2.34 EUR/GPU-hour"),
        ("0.24 EUR/kWh", "0.24 EUR/kWh"),
        ("63.42 %", "63.4 %"),
        ("1 year", "1 year"),
        ("5 years", "5 years"),
        ("340.5 EUR", "340.5 EUR"),
    ],
)
def test_how_figures_are_shown(text: str, shown: str) -> None:
    assert show(parse_quantity(text)) == shown

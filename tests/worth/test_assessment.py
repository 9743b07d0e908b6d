"""What the GPUs were worth: sums, monotony, and formulas that are calculated again."""

from __future__ import annotations

import re
from datetime import date, timedelta
from fractions import Fraction

import pytest
from cost_files import EXAMPLE, CostFile, cost_files, measured
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.worth import Assessment, Measured, Period, Quantity, assess, parse_quantity, read_costs
from carrel.core.worth.sheet import Figure, Sheet


def _year(year: int) -> Period:
    return Period(date(year, 1, 1), date(year + 1, 1, 1))


def _assess(text: str, period: Period, used: Fraction | int = 1000, lent: Fraction | int = 0) -> Assessment:
    return assess(read_costs(text, "costs.toml"), period, measured(used, lent))


def _value(found: Assessment, id: str) -> Fraction:
    return found.sheet[id].quantity.value


def _again(figure: Figure, sheet: Sheet) -> Quantity:
    """The formula of a figure, read as a person reads it."""
    words = figure.formula.split(" ")
    assert tuple(words[::2]) == figure.inputs
    found = sheet[words[0]].quantity
    for sign, id in zip(words[1::2], words[2::2], strict=True):
        other = sheet[id].quantity
        found = {"+": found.__add__, "−": found.__sub__, "×": found.__mul__, "÷": found.__truediv__}[sign](other)
    return found


def _check_figures(found: Assessment) -> None:
    seen: set[str] = set()
    for figure in found.sheet:
        assert bool(figure.source) != bool(figure.formula), figure
        assert seen.issuperset(figure.inputs), figure
        seen.add(figure.id)
        if figure.inputs:
            assert _again(figure, found.sheet) == figure.quantity


@given(cost_files(), st.integers(0, 1000))
def test_each_figure_has_a_source_or_a_formula_that_gives_it(file: CostFile, lent: int) -> None:
    found = _assess(file.text, _year(file.year), file.used, lent)
    _check_figures(found)
    assert _value(found, "cost") == sum(figure.quantity.value for figure in found.kinds.values())
    assert _value(found, "hours.used") == file.used + lent


def test_an_account_of_few_people_is_not_told_with_its_grant() -> None:
    known = Measured(accounts={"vision": Fraction(7)}, small=frozenset({"vision"}), source="the lab")
    found = assess(read_costs(EXAMPLE.read_text(), "costs.toml"), _year(2026), known)
    assert found.sheet.get("grants.1.hours") is None
    assert any(note.startswith("EX-2025-17: GPU-hours are not told") for note in found.notes)


def test_each_figure_of_the_example_too() -> None:
    known = Measured(
        held={"completed": Fraction(60_000), "continued": Fraction(500), "failed": Fraction(5_000), "session": Fraction(100)},
        lent=Fraction(9_000),
        observed=Fraction(50_000),
        busy=Fraction(30_000),
        users={"ada": Fraction(50_000), "zoe": Fraction(24_600)},
        accounts={"vision": Fraction(50_000)},
        cited={1: None},
        source="the lab",
    )
    found = assess(read_costs(EXAMPLE.read_text(), "costs.toml"), _year(2026), known)
    _check_figures(found)
    assert _value(found, "hours.completed") == 69_500
    assert _value(found, "busy") == Fraction(3, 5)
    assert _value(found, "grants.1.hours") == 50_000
    assert _value(found, "grants.1.part") == Fraction(1, 3)
    (paper,) = (row for row in found.returns if row.table == "publications")
    assert paper.words[-1] == "job 1 (not known to the lab)"
    assert any(note.endswith("that the lab does not know: 1.") for note in found.notes)
    assert "1 of 2 people who used the lab are in no entry of [[people]]." in found.notes
    # By hand: depreciation, electricity and its cooling, staff and space.
    energy = Fraction(104, 10) * 8760 * Fraction(24, 100)
    assert _value(found, "cost") == 104_000 + 10_000 + energy * Fraction(135, 100) + 78_000 * Fraction(4, 10) + 9_000
    assert _value(found, "hours.offered") == 16 * 8760 - 1152
    dollars = Fraction(90, 100)
    data = dollars * (90_000 * Fraction(8, 100) + 40_000 * 12 * Fraction(2, 100))
    assert _value(found, "prices.1.on_demand.cost") == 74_600 * Fraction(36, 10) * dollars + data
    assert _value(found, "prices.1.reserved.cost") == 16 * 8760 * Fraction(22, 10) * dollars + data


@given(cost_files())
def test_depreciation_of_all_years_is_the_price(file: CostFile) -> None:
    """However the life lies in the calendar, and whatever its length."""
    price = parse_quantity(f"{file.numbers['price']} EUR").value
    # Power and the others hold for some years only; the machines are what is added up.
    bare = re.sub(r"(?s)\[(sensitivity|\[power|\[prices|\[data)\].*?(?=\n\[|\Z)", "", file.text)
    sums = [_assess(bare, _year(year)).kinds.get("hardware") for year in range(2019, 2036)]
    assert sum(each.quantity.value for each in sums if each is not None) == price


@given(cost_files(), st.integers(1, 364))
def test_costs_of_two_parts_of_a_year_are_those_of_the_year(file: CostFile, day: int) -> None:
    begin, middle, end = date(file.year, 1, 1), date(file.year, 1, 1) + timedelta(days=day), date(file.year + 1, 1, 1)
    first, second, whole = (_assess(file.text, Period(*days)) for days in ((begin, middle), (middle, end), (begin, end)))
    for id in ("cost", "hours.in_service"):
        assert _value(first, id) + _value(second, id) == _value(whole, id)


@given(cost_files(), st.sampled_from(["price", "draw", "electricity", "cooling", "staff"]))
def test_no_price_that_rises_makes_the_lab_cheaper(file: CostFile, name: str) -> None:
    before = _assess(file.text, _year(file.year), file.used)
    after = _assess(file.changed(**{name: float(str(file.numbers[name])) + 1}), _year(file.year), file.used)
    assert _value(after, "cost") >= _value(before, "cost")
    if before.sheet.get("prices.1.break_even") is not None:
        assert _value(after, "prices.1.break_even") >= _value(before, "prices.1.break_even")


@given(cost_files())
def test_at_the_break_even_the_cloud_costs_what_the_lab_costs(file: CostFile) -> None:
    found = _assess(file.text, _year(file.year), file.used)
    even = found.sheet.get("prices.1.break_even")
    if even is None or even.quantity.value < 0:
        return
    used = even.quantity.value * _value(found, "hours.offered")
    assert _value(_assess(file.text, _year(file.year), used), "prices.1.on_demand.difference") == 0


@given(cost_files())
def test_other_assumptions_are_on_both_sides_and_most_important_first(file: CostFile) -> None:
    found = _assess(file.text, _year(file.year), file.used)
    swings = [one.swing(found.target) for one in found.varied]
    assert swings == sorted(swings, reverse=True)
    for one in found.varied:
        for id, (low, high) in one.outcomes.items():
            # A shorter life costs more each year, and may be over: then it costs nothing.
            if one.id.endswith(".life"):
                continue
            middle = found.sheet[id].quantity.value
            assert min(low.value, high.value) <= middle <= max(low.value, high.value), (one.id, id)


@given(st.dates(date(2000, 1, 1), date(2030, 1, 1)), st.fractions(Fraction(1, 12), 20), st.integers(2000, 2050))
def test_a_year_has_at_most_one_year_of_a_life(bought: date, life: Fraction, year: int) -> None:
    part = _year(year).part_of_life(bought, life)
    assert 0 <= part <= min(Fraction(1), life)


def test_a_machine_that_is_retired_offers_nothing_more_and_still_loses_value() -> None:
    text = EXAMPLE.read_text().replace("bought = 2024-07-01", "bought = 2024-07-01\nretired = 2026-01-31", 1)
    found = _assess(text, _year(2026))
    assert _value(found, "hours.in_service") == 16 * 24 * 30
    assert _value(found, "hardware.1.cost") == 104_000
    assert _value(found, "power.1.energy") == Fraction(95, 10) * 24 * 30


def test_more_use_than_there_are_gpus_is_said() -> None:
    found = _assess(EXAMPLE.read_text(), _year(2026), 200_000)
    assert any("hardware is missing" in note for note in found.notes)
    none = _assess('[lab]\nname = "x"\ncurrency = "EUR"\n', _year(2026), 10)
    assert any("no GPU was in service" in note for note in none.notes)


def _groups(**people: str) -> Assessment:
    """Assess a year in which each of the named groups has these people, one letter each; `nobody` is in no group."""
    nobody = people.pop("nobody", "")
    costs = '[lab]\nname = "L"\ncurrency = "EUR"\n' + "".join(
        f'[[people]]\nstatus = "{name}"\ndepartment = "D"\nusers = {list(users)}\nyears = [2026]\nsource = "s"\n'
        for name, users in people.items()
    )
    everybody = "".join(people.values()) + nobody
    known = Measured(users=dict.fromkeys(everybody, Fraction(10)), source="the lab")
    return assess(read_costs(costs, "costs.toml"), _year(2026), known)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"staff": "abcde", "guests": "fghij"}, {"staff": 5, "guests": 5}),
        ({"staff": "abcde", "guests": "fg", "students": "hij"}, {"staff": 5, "others": 5}),
        ({"staff": "abcde", "guests": "fg", "nobody": "hij"}, {"staff": 5, "others": 5}),
        # Two would be what is left of the sum: the smallest group that is told goes with them.
        ({"staff": "abcdefgh", "guests": "ij", "students": "klmno"}, {"staff": 8, "others": 7}),
        ({"guests": "ab", "nobody": "c"}, {}),
    ],
)
def test_groups_of_fewer_than_five_people_are_told_with_others_only(groups: dict[str, str], told: dict[str, int]) -> None:
    found = _groups(**groups)
    rows = [row for row in found.returns if row.table == "people"]
    assert {row.words[0]: row.figures[0].quantity.value for row in rows} == told
    assert {row.words[0]: row.figures[1].quantity.value for row in rows} == {name: 10 * count for name, count in told.items()}
    small = any(len(users) < 5 for name, users in groups.items() if name != "nobody")
    assert any("fewer than 5 people" in note for note in found.notes) == small


def test_market_value_over_cost_has_hours_data_and_services() -> None:
    known = Measured(held={"completed": Fraction(60_000)}, source="the lab")
    found = assess(read_costs(EXAMPLE.read_text(), "costs.toml"), _year(2026), known)
    for cloud in found.clouds:
        if cloud.on_demand is not None:
            value = _value(found, cloud.on_demand.id) + 12_000
            assert _value(found, f"{cloud.id}.value_for_cost") == value / _value(found, "cost")

"""What the GPUs cost in the period, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.worth.entered import Entered
from carrel.core.worth.model import COST_KINDS, Hardware
from carrel.core.worth.quantities import Quantity, Unit
from carrel.core.worth.sheet import Figure

_YEAR = Unit((("year", 1),))
_HOUR = Unit((("hour", 1),))
_GPU = Unit((("GPU", 1),))


def add_costs(entered: Entered) -> Mapping[str, Figure]:
    """Add the cost of each entry, of each kind (which are returned) and of all to the sheet: ids "cost.staff" and "cost"."""
    parts: dict[str, list[Figure]] = {}
    for id, hardware in entered.of_year("hardware"):
        found = _depreciation(entered, id, hardware)
        if found is not None:
            parts.setdefault("hardware", []).append(found)
    _add_electricity(entered, parts)
    for id, cost in entered.of_year("costs"):
        parts.setdefault(cost.kind, []).append(_yearly(entered, id, cost))
    sheet = entered.sheet
    kinds = {
        kind: sheet.sum(f"cost.{kind}", f"Cost of {kind}", parts[kind], entered.money)
        for kind in ("hardware", *COST_KINDS)
        if kind in parts
    }
    sheet.sum("cost", "Cost of the period", list(kinds.values()), entered.money)
    return kinds


def period_years(entered: Entered) -> Figure:
    """The length of the period in years."""
    period = entered.period
    return entered.sheet.given(
        "period.years", "Length of the period", Quantity(period.years, _YEAR), f"The calendar: {period.begin} to {period.last}."
    )


def hours_in_service(entered: Entered, id: str, hardware: Hardware) -> Figure:
    """Hours of the period in which machines are in service."""
    hours = entered.period.hours(hardware.bought, hardware.retired)
    until = f" until before {hardware.retired}" if hardware.retired else ""
    source = f"The calendar: in service from {hardware.bought}{until}. {hardware.source}"
    return entered.sheet.given(f"{id}.hours", f"Hours of {hardware.name} in service", Quantity(Fraction(hours), _HOUR), source)


def gpus_of(entered: Entered, id: str, hardware: Hardware) -> Figure:
    """How many GPUs they have."""
    found = Quantity(Fraction(hardware.gpus), _GPU)
    return entered.sheet.given(f"{id}.gpus", f"GPUs of {hardware.name}", found, hardware.source)


def _depreciation(entered: Entered, id: str, hardware: Hardware) -> Figure | None:
    years = entered.period.part_of_life(hardware.bought, hardware.life.value)
    if not years:
        return None
    price = entered.figure(id, hardware, "price", f"Price of {hardware.name}")
    life = entered.figure(id, hardware, "life", f"Life of {hardware.name}")
    part = entered.sheet.given(
        f"{id}.years",
        f"Years of the life of {hardware.name} in the period",
        Quantity(years, _YEAR),
        f"The calendar: in service from {hardware.bought}, for its life. {hardware.source}",
    )
    return entered.sheet.product(f"{id}.cost", f"Depreciation of {hardware.name}", [price, part], [life])


def _add_electricity(entered: Entered, parts: dict[str, list[Figure]]) -> None:
    prices = list(entered.of_year("electricity"))
    overheads = list(entered.of_year("cooling"))
    machines = {hardware.name: (id, hardware) for id, hardware in entered.of_year("hardware")}
    for id, power in entered.of_year("power"):
        if not prices:
            year = entered.period.year
            raise Invalid(
                f"The power of {power.hardware} is known for {year}, and what a kWh cost is not.",
                remedy=f'Add [[electricity]] with price = "… {entered.model.lab.currency}/kWh" and years = [{year}].',
            )
        sheet, name = entered.sheet, power.hardware
        hours = hours_in_service(entered, *machines[name])
        draw = entered.figure(id, power, "draw", f"What {name} draws")
        energy = sheet.product(f"{id}.energy", f"Energy of {name}", [draw, hours])
        price = entered.figure(*prices[0], "price", "Price of a kWh")
        cost = sheet.product(f"{id}.cost", f"Electricity of {name}", [energy, price])
        parts.setdefault("power", []).append(cost)
        if overheads:
            overhead = entered.figure(*overheads[0], "overhead", "Cooling, of what the machines draw")
            parts.setdefault("cooling", []).append(sheet.product(f"{id}.cooling", f"Cooling of {name}", [cost, overhead]))


def _yearly(entered: Entered, id: str, cost: Any) -> Figure:
    factors = [entered.figure(id, cost, "cost", f"{cost.name}, for a year")]
    if cost.part is not None:
        factors.append(entered.figure(id, cost, "part", f"{cost.name}: part for the GPUs"))
    return entered.sheet.product(f"{id}.paid", cost.name, [*factors, period_years(entered)])

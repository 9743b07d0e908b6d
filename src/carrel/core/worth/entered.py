"""Entries of the cost file as figures of a sheet, in the currency of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.core.worth.declaring import keys_of
from carrel.core.worth.model import LISTS, CostModel, rate_years
from carrel.core.worth.period import Period
from carrel.core.worth.quantities import Quantity, Unit
from carrel.core.worth.sheet import Figure, Sheet


@dataclass(frozen=True, slots=True)
class Entered:
    """Puts numbers of the model into the sheet when something is calculated from them."""

    model: CostModel
    period: Period
    sheet: Sheet

    @property
    def money(self) -> Unit:
        """The currency of the report."""
        return Unit(((self.model.lab.currency, 1),))

    def of_year(self, table: str) -> Iterator[tuple[str, Any]]:
        """Entries of a table that hold for the year, each with the beginning of its ids."""
        for number, entry in enumerate(getattr(self.model, table), start=1):
            if self.period.year in getattr(entry, "years", (self.period.year,)):
                yield f"{table}.{number}", entry

    def figure(self, id: str, entry: Any, name: str, said: str) -> Figure:
        """The number under a key that has one: as it was entered, or as money of the report."""
        value: Quantity = getattr(entry, name)
        source = entry.life_source if name == "life" else entry.source
        found = self.sheet.given(f"{id}.{name}", said, value, source)
        for currency in value.unit.currencies:
            if currency != self.model.lab.currency:
                rate = self._rate(currency, entry)
                known = self.sheet.get(f"{id}.{name}.converted")
                found = known or self.sheet.product(
                    f"{id}.{name}.converted", f"{said}, in {self.model.lab.currency}", [found, rate]
                )
        return found

    def _rate(self, currency: str, entry: Any) -> Figure:
        years = rate_years(entry)
        year = self.period.year if self.period.year in years else years[0]
        wanted = self.money / Unit(((currency, 1),))
        for number, one in enumerate(self.model.exchange, start=1):
            if year in one.years and one.rate.unit == wanted:
                return self.sheet.given(
                    f"exchange.{number}.rate", f"{currency} in {self.model.lab.currency}", one.rate, one.source
                )
        # The reader has refused a file without it.
        raise LookupError(f"no rate of {currency} in {year}")


def assumptions(model: CostModel, year: int) -> Iterator[tuple[str, int, str, Quantity]]:
    """Numbers that may be off: table, place in it from 0, key, and how far."""
    common = None if model.sensitivity is None else model.sensitivity.range
    for table in LISTS:
        entries: Sequence[Any] = getattr(model, table)
        for place, entry in enumerate(entries):
            how_far = getattr(entry, "range", None) or common
            holds = table == "exchange" or year in getattr(entry, "years", (year,))
            for name, key in keys_of(entry).items():
                if key.varies and holds and how_far is not None and getattr(entry, name) is not None:
                    yield table, place, name, how_far

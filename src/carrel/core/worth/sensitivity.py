"""What comes of other assumptions: each one alone, down and up by the range that the site has entered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from carrel.core.worth.entered import assumptions
from carrel.core.worth.model import CostModel
from carrel.core.worth.quantities import Quantity
from carrel.core.worth.sheet import Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """One assumption."""

    #: Its figure, "hardware.1.price".
    id: str
    name: str
    range: Quantity
    low: Quantity
    high: Quantity
    #: What figures come to with the low value and with the high one, by their ids.
    outcomes: Mapping[str, tuple[Quantity, Quantity]]

    def swing(self, target: str) -> Fraction:
        """How far apart a figure is at both ends."""
        low, high = self.outcomes[target]
        return abs(high.value - low.value)


def vary(
    model: CostModel, year: int, targets: Sequence[str], sheet: Sheet, calculate: Callable[[CostModel], Sheet]
) -> Sequence[Varied]:  # fmt: skip
    """Each assumption that changes one of the targets, the one that changes the first of them most at the beginning.

    `sheet` has the figures as they were entered; `calculate` makes another for a changed model.
    """
    found = list(_varied(model, year, targets, sheet, calculate))
    return sorted(found, key=lambda one: [-one.swing(target) for target in targets])


def _varied(
    model: CostModel, year: int, targets: Sequence[str], sheet: Sheet, calculate: Callable[[CostModel], Sheet]
) -> Iterator[Varied]:  # fmt: skip
    for table, place, name, how_far in assumptions(model, year):
        id = f"{table}.{place + 1}.{name}"
        base = sheet.get(id)
        if base is None:
            continue
        ends = [_bounded(name, base.quantity * Quantity(1 + sign * how_far.value)) for sign in (-1, 1)]
        low, high = (calculate(_changed(model, table, place, name, end)) for end in ends)
        outcomes = {target: (low[target].quantity, high[target].quantity) for target in targets}
        if any(one != other for one, other in outcomes.values()):
            yield Varied(id=id, name=base.name, range=how_far, low=ends[0], high=ends[1], outcomes=outcomes)


def _bounded(name: str, quantity: Quantity) -> Quantity:
    return Quantity(Fraction(1)) if name == "part" and quantity.value > 1 else quantity


def _changed(model: CostModel, table: str, place: int, name: str, value: Quantity) -> CostModel:
    entries = list(getattr(model, table))
    entries[place] = replace(entries[place], **{name: value})
    changed: dict[str, Any] = {table: tuple(entries)}
    return replace(model, **changed)

"""Every figure of a report, with the place that it comes from, or with its formula and the figures that went into it.

A figure that is calculated gets its value from the same call that writes its formula down, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from carrel.core.worth.quantities import Quantity, Unit, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number."""

    #: Unique in its sheet, such as "hardware.1.price".
    id: str
    name: str
    quantity: Quantity
    #: Of a calculated one, with the ids of others; "" for what was entered or measured.
    formula: str = ""
    #: Ids of the figures in the formula.
    inputs: tuple[str, ...] = ()
    #: Of what was entered or measured: where it comes from; "" for what was calculated.
    source: str = ""


class Sheet:
    """The figures in the order in which they came to be: none comes before what it is made of."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def __getitem__(self, id: str) -> Figure:
        return self._figures[id]

    def get(self, id: str) -> Figure | None:
        """The figure, or None where it could not be calculated."""
        return self._figures.get(id)

    def given(self, id: str, name: str, quantity: Quantity, source: str) -> Figure:
        """A figure that was entered or measured. One that is there already is given back."""
        if not source:
            raise ValueError(f"{id} has no source")
        return self._figures.get(id) or self._add(Figure(id=id, name=name, quantity=quantity, source=source))

    def product(self, id: str, name: str, factors: Sequence[Figure], over: Sequence[Figure] = ()) -> Figure:
        """What the factors come to, divided by all of `over`, none of which is 0."""
        found = factors[0].quantity
        for each in factors[1:]:
            found *= each.quantity
        for each in over:
            found /= each.quantity
        formula = " × ".join(each.id for each in factors) + "".join(f" ÷ {each.id}" for each in over)
        return self._calculated(id, name, found, formula, (*factors, *over))

    def sum(self, id: str, name: str, parts: Sequence[Figure], unit: Unit) -> Figure:
        """All parts together."""
        formula = " + ".join(each.id for each in parts) or "nothing was entered"
        return self._calculated(id, name, total((each.quantity for each in parts), unit), formula, parts)

    def difference(self, id: str, name: str, whole: Figure, *less: Figure) -> Figure:
        """What is left of it."""
        found = whole.quantity
        for each in less:
            found -= each.quantity
        return self._calculated(id, name, found, " − ".join(each.id for each in (whole, *less)), (whole, *less))

    def _calculated(self, id: str, name: str, quantity: Quantity, formula: str, of: Sequence[Figure]) -> Figure:
        inputs = tuple(each.id for each in of)
        return self._add(Figure(id=id, name=name, quantity=quantity, formula=formula, inputs=inputs))

    def _add(self, figure: Figure) -> Figure:
        if figure.id in self._figures:
            raise ValueError(f"{figure.id} is there already")
        self._figures[figure.id] = figure
        return figure

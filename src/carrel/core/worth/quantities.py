"""Numbers with their units, exact: "0.28 EUR/kWh" times "5 kW" times "3 hours" is "4.2 EUR", and only EUR can be added to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from carrel.core.domain.errors import Invalid

_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z%][A-Za-z%/ -]*)")
_CURRENCY = re.compile(r"[A-Z]{3}")
_LONGEST = 60
#: What a word of a unit is: how much of it, and of what to which power.
_WORDS: Mapping[str, tuple[Fraction, Mapping[str, int]]] = {
    "GPU": (Fraction(1), {"GPU": 1}),
    "GPUs": (Fraction(1), {"GPU": 1}),
    "hour": (Fraction(1), {"hour": 1}),
    "hours": (Fraction(1), {"hour": 1}),
    "year": (Fraction(1), {"year": 1}),
    "years": (Fraction(1), {"year": 1}),
    "month": (Fraction(1, 12), {"year": 1}),
    "months": (Fraction(1, 12), {"year": 1}),
    "kWh": (Fraction(1), {"kWh": 1}),
    "MWh": (Fraction(1000), {"kWh": 1}),
    "kW": (Fraction(1), {"kWh": 1, "hour": -1}),
    "W": (Fraction(1, 1000), {"kWh": 1, "hour": -1}),
    "GB": (Fraction(1), {"GB": 1}),
    "TB": (Fraction(1000), {"GB": 1}),
    "%": (Fraction(1, 100), {}),
}
#: What stands for any currency in the units that a key takes.
MONEY = "¤"


@dataclass(frozen=True, slots=True)
class Unit:
    """Powers of what is measured, each other than 0, by name. Without any it is a plain number: a count, or a share."""

    powers: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, powers: Mapping[str, int]) -> Unit:
        """The unit with these powers."""
        return cls(tuple(sorted((name, power) for name, power in powers.items() if power)))

    def __mul__(self, other: Unit) -> Unit:
        powers = dict(self.powers)
        for name, power in other.powers:
            powers[name] = powers.get(name, 0) + power
        return Unit.of(powers)

    def __truediv__(self, other: Unit) -> Unit:
        return self * Unit(tuple((name, -power) for name, power in other.powers))

    def __str__(self) -> str:
        if dict(self.powers) == {"kWh": 1, "hour": -1}:
            return "kW"
        above, below = ([name for name, power in self.powers for _ in range(sign * power)] for sign in (1, -1))
        return "-".join(above) + ("/" if below else "") + "-".join(below)

    @property
    def currencies(self) -> tuple[str, ...]:
        """Those that are in it."""
        return tuple(name for name, _ in self.powers if _CURRENCY.fullmatch(name) and name not in _WORDS)

    def like(self) -> str:
        """The same with "¤" in the place of currencies."""
        return str(Unit.of({MONEY if name in self.currencies else name: power for name, power in self.powers}))


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a unit."""

    value: Fraction
    unit: Unit = Unit()

    def __mul__(self, other: Quantity) -> Quantity:
        return Quantity(self.value * other.value, self.unit * other.unit)

    def __truediv__(self, other: Quantity) -> Quantity:
        return Quantity(self.value / other.value, self.unit / other.unit)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.value + self._same(other).value, self.unit)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.value - self._same(other).value, self.unit)

    def _same(self, other: Quantity) -> Quantity:
        if self.unit != other.unit:
            raise ValueError(f"{self.unit or 'a plain number'} and {other.unit or 'a plain number'} cannot be added")
        return other


def total(quantities: Iterable[Quantity], unit: Unit) -> Quantity:
    """The sum; of none it is 0 of the unit."""
    found = Quantity(Fraction(0), unit)
    for each in quantities:
        found += each
    return found


def parse_unit(text: str) -> tuple[Fraction, Unit]:
    """The unit that a text such as "EUR/GPU-hour" names, and how much of it; raise `Invalid` where it names none."""
    factor, unit = Fraction(1), Unit()
    for number, group in enumerate(text.split("/")):
        for word in group.strip().split("-"):
            many, powers = _WORDS.get(word, (Fraction(1), {word: 1} if _CURRENCY.fullmatch(word) else {}))
            if word not in _WORDS and not powers:
                raise Invalid(
                    f'"{text}" is no unit: "{word}" is not known.',
                    remedy=f"Known are {', '.join(name for name in _WORDS if name.rstrip('s') == name)}, and currencies as EUR.",
                )
            factor, unit = (factor / many, unit / Unit.of(powers)) if number else (factor * many, unit * Unit.of(powers))
    return factor, unit


def parse_quantity(text: str) -> Quantity:
    """What "310_000 EUR" or "0.28 EUR/kWh" says; raise `Invalid` where it says nothing."""
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise Invalid(
            f'"{text[:_LONGEST]}" is not a number with a unit.',
            remedy='Write such as "310_000 EUR", "0.28 EUR/kWh" or "20 %": a point before decimals, no commas, nothing negative.',
        )
    factor, unit = parse_unit(match["unit"].strip())
    return Quantity(Fraction(match["number"].replace("_", "")) * factor, unit)

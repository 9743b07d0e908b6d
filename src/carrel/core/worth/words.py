"""Figures as people read them."""

from __future__ import annotations

from fractions import Fraction

from carrel.core.worth.quantities import Quantity

_PLURALS = {"person": "people", "GPU": "GPUs", "GPU-hour": "GPU-hours", "hour": "hours", "year": "years"}


def number(value: Fraction, decimals: int) -> str:
    """ "12,345.60", rounded half to even."""
    return f"{float(round(value, decimals)):,.{decimals}f}"


def show(quantity: Quantity) -> str:
    """ "12,346 EUR", "1.234 EUR/GPU-hour", "63.4 %", "1 person"."""
    value, unit = quantity.value, str(quantity.unit)
    if not unit:
        return f"{number(100 * value, 1)} %"
    whole = value.denominator == 1
    size = abs(value)
    decimals = 0 if whole or size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 4
    text = number(value, decimals)
    # What is small is written as finely as it was entered.
    text = text.rstrip("0").rstrip(".") if decimals == 4 else text
    return f"{text} {unit if value == 1 else _PLURALS.get(unit, unit)}"

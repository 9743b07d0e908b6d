"""A report as data: one document for programs, and one line for each figure."""

from __future__ import annotations

import io
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from carrel.cli.screen import print_csv
from carrel.core.worth import Assessment, Figure, Quantity

_DIGITS = Context(prec=15)


def as_json(found: Assessment, *, sha256: str, simulated: bool) -> dict[str, Any]:
    """The report; numbers are rounded to 15 digits."""
    return {
        "lab": found.model.lab.name,
        "simulated": simulated,
        "begin": found.period.begin.isoformat(),
        "last": found.period.last.isoformat(),
        "currency": found.model.lab.currency,
        "costs_sha256": sha256,
        "figures": [_figure(figure) for figure in found.sheet],
        "sensitivity": [
            {
                "id": one.id,
                "name": one.name,
                "range": _number(one.range),
                "low": _number(one.low),
                "high": _number(one.high),
                "outcomes": {id: [_number(end) for end in ends] for id, ends in one.outcomes.items()},
            }
            for one in found.varied
        ],
        "returns": [
            {"table": row.table, "words": list(row.words), "figures": [one.id for one in row.figures], "source": row.source}
            for row in found.returns
        ],
        "questions": [{"text": one.text, "answer": one.answer or None, "source": one.source} for one in found.questions],
        "notes": list(found.notes),
    }


def as_csv(found: Assessment) -> str:
    """One line for each figure."""
    text = io.StringIO()
    rows = ((one.id, one.name, plain(one.quantity.value), str(one.quantity.unit), one.formula, one.source) for one in found.sheet)
    print_csv(("id", "name", "value", "unit", "formula", "source"), rows, file=text)
    return text.getvalue()


def plain(value: Fraction) -> str:
    """A number with its decimals, 15 digits at most, and nothing between them."""
    found = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{found.normalize(_DIGITS):f}"


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "id": figure.id,
        "name": figure.name,
        "value": _number(figure.quantity),
        "unit": str(figure.quantity.unit),
        "formula": figure.formula,
        "inputs": list(figure.inputs),
        "source": figure.source,
    }


def _number(quantity: Quantity) -> float:
    return float(plain(quantity.value))

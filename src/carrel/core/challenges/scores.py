"""Reading what a scoring program wrote: the columns of the challenge, rounded, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from carrel.core.domain.challenge import Column
from carrel.core.domain.errors import Invalid

#: Where the scoring program writes, and how many bytes are read of it.
SCORES = "outputs/scores.json"
LARGEST = 64 * 1024


def read_scores(data: bytes, columns: Sequence[Column]) -> Mapping[str, float]:
    """Return the score of each column, rounded to its precision: what further digits say leaves the lab in no way.

    Raises `Invalid` for anything that is not a JSON object with a finite number, in its range, for each column.
    """
    try:
        found = json.loads(data) if len(data) <= LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"{SCORES} is not a JSON object of at most {LARGEST // 1024} KiB.", remedy="Write numbers by column.")
    scores: dict[str, float] = {}
    for column in columns:
        value = finite(found.get(column.column))
        if value is None:
            raise Invalid(f'{SCORES} has no number for "{column.column}".', remedy="Write a finite number for each column.")
        if column.range is not None and not column.range[0] <= value <= column.range[1]:
            raise Invalid(f'{SCORES} has a "{column.column}" out of its range.', remedy="Write a wider range into the board.")
        scores[column.column] = round(value, column.precision) + 0.0  # no -0.0
    return scores


def finite(value: object) -> float | None:
    """A value of JSON as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON has whole numbers of any size
        return None

"""Intervals of scores, and places that do not differ, by resamples of the test data. Pure.

Sources: B. Efron, R. J. Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13, for percentile intervals; L.
Maier-Hein et al., "Why rankings of biomedical image analysis competitions should be interpreted with care" (Nature
Communications 9, 2018), for ranks that other test data would turn; M. Wiesenfarth et al., "Methods and open-source toolkit for
analyzing and visualizing challenge results" (Scientific Reports 11, 2021; challengeR), for comparing by paired resamples.
Nothing is corrected for many comparisons.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

from carrel.core.challenges.scores import finite
from carrel.core.domain.challenge import Column
from carrel.core.domain.errors import Invalid

#: Where a scoring program writes its scores on resamples, how many bytes are read of it, and how many resamples.
REPLICATES = "outputs/replicates.json"
LARGEST = 2 * 1024 * 1024
_FEWEST, _MOST = 20, 2000

Replicates = Mapping[str, Sequence[float]]


def read_replicates(data: bytes, columns: Sequence[Column]) -> Replicates:
    """Return the scores on resamples by column. Raises `Invalid` unless the column that decides has them."""
    try:
        found = json.loads(data) if len(data) <= LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"{REPLICATES} is not a JSON object of at most {LARGEST // 1024} KiB.", remedy="Write lists by column.")
    return {
        column.column: _numbers(column.column, found.get(column.column))
        for column in columns
        if column is columns[0] or column.column in found
    }


def _numbers(name: str, found: object) -> Sequence[float]:
    if not isinstance(found, list) or not _FEWEST <= len(found) <= _MOST:
        raise Invalid(
            f'{REPLICATES} has no list of {_FEWEST} to {_MOST} numbers for "{name}".', remedy="Write one for each resample."
        )
    numbers = [finite(value) for value in found]
    if None in numbers:
        raise Invalid(f'{REPLICATES} has something else than finite numbers for "{name}".', remedy="Write one for each resample.")
    return array("d", numbers)  # type: ignore[arg-type]


def intervals(replicates: Replicates, columns: Sequence[Column], level: float) -> Mapping[str, tuple[float, float]]:
    """Return the percentile interval of each column at `level`, rounded to the column's precision as its score is."""
    return {
        column.column: (round(low, column.precision) + 0.0, round(high, column.precision) + 0.0)
        for column in columns
        if column.column in replicates
        for low, high in [_interval(replicates[column.column], level)]
    }


def neighbours(places: Sequence[Sequence[float] | None], *, larger: bool, level: float) -> Sequence[bool | None]:
    """Return of each place whether it differs from the one above it; None where that cannot be said.

    They are paired: both were scored on the same resamples. They do not differ where the interval of their difference holds 0.
    """
    return [None, *(_differ(above, below, larger, level) for above, below in pairwise(places))]


def _differ(above: Sequence[float] | None, below: Sequence[float] | None, larger: bool, level: float) -> bool | None:
    if above is None or below is None or len(above) != len(below):
        return None
    turned = sum((b >= a) if larger else (b <= a) for a, b in zip(above, below, strict=True))
    return turned / len(above) <= (1 - level) / 2


def _interval(values: Sequence[float], level: float) -> tuple[float, float]:
    ordered, cut = sorted(values), (1 - level) / 2 * (len(values) - 1)
    return ordered[math.floor(cut)], ordered[math.ceil(len(ordered) - 1 - cut)]

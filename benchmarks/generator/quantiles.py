"""A distribution as a few of its values: measured from what was recorded, and drawn from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import expm1, log1p
from random import Random

from carrel.core.domain.errors import Invalid

#: Where distributions are measured: closer together in the upper tail, which carries most of the GPU time.
PROBABILITIES = (
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of values that are not negative, as its values at `PROBABILITIES`.

    Between two of them the inverse distribution function is a straight line in log(1 + value).
    """

    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(PROBABILITIES):
            raise Invalid(
                f"There are {len(self.values)} quantiles.", remedy=f"Give {len(PROBABILITIES)}, one for each probability."
            )
        if self.values[0] < 0 or any(low > high for low, high in pairwise(self.values)):
            raise Invalid("The quantiles are negative or not in order.", remedy="Give values that never fall, from 0 or more.")

    def at(self, probability: float) -> float:
        """Return the value that is not exceeded with this probability."""
        place = min(max(bisect_right(PROBABILITIES, probability) - 1, 0), len(PROBABILITIES) - 2)
        left, right = PROBABILITIES[place], PROBABILITIES[place + 1]
        low, high = log1p(self.values[place]), log1p(self.values[place + 1])
        return expm1(low + (high - low) * (probability - left) / (right - left))

    def draw(self, random: Random) -> float:
        """Return one value."""
        return self.at(random.random())


def measure_quantiles(values: Iterable[float]) -> Quantiles:
    """Measure `values` to three digits after the point, linear between neighbours; all 0 where there is nothing to measure."""
    ordered = sorted(values) or [0.0]
    found = []
    for probability in PROBABILITIES:
        place = probability * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        found.append(round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 3))
    return Quantiles(tuple(found))

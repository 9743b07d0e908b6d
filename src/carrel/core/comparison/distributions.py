"""Whether two samples of a metric differ by more than chance does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, fsum
from statistics import fmean

#: Ways to deal the values that are gone through: those of two samples of ten.
MOST_WAYS = comb(20, 10)


def permutation_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the part of all ways to deal the values into two samples of these sizes whose means are as far apart, or farther.

    This is the p-value of the exact two-sided permutation test of the difference of means (E. J. G. Pitman, "Significance tests
    which may be applied to samples from any populations", 1937). Needs no shape of the distribution. Raises `ValueError` for an
    empty sample and for more than `MOST_WAYS` ways.
    """
    values, size = [*first, *second], len(first)
    if not first or not second or comb(len(values), size) > MOST_WAYS:
        raise ValueError(f"{len(first)} and {len(second)} values")
    whole = fsum(values)
    # Of a sum alone the distance of the means follows; rounding must not hide ties.
    found = abs(fmean(first) - fmean(second)) * (1 - 1e-12)
    ways = far = 0
    for dealt in combinations(values, size):
        ways += 1
        mine = fsum(dealt)
        far += abs(mine / size - (whole - mine) / len(second)) >= found
    return far / ways

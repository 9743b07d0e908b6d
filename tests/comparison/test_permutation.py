"""Two samples, dealt in all ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison.distributions import permutation_test

pytestmark = pytest.mark.quick

VALUES = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=5)


def test_the_example_of_a_textbook_by_hand() -> None:
    # Means of all 6 ways to deal 1, 2, 8, 9 in pairs: two of them are 7 apart.
    assert permutation_test([1, 2], [8, 9]) == 2 / 6
    assert permutation_test([1, 9], [2, 8]) == 1.0


@given(VALUES, VALUES)
def test_it_is_the_same_both_ways_round_and_never_says_that_nothing_is_possible(one: list[float], other: list[float]) -> None:
    found = permutation_test(one, other)
    assert 0 < found <= 1
    assert found == pytest.approx(permutation_test(other, one))
    assert found == pytest.approx(permutation_test([value + 7 for value in one], [value + 7 for value in other]))


def test_too_many_and_none_are_refused() -> None:
    for one, other in (([], [1.0]), ([1.0] * 11, [2.0] * 11)):
        with pytest.raises(ValueError, match="values"):
            permutation_test(one, other)

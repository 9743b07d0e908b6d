"""Choosing cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.notebooks.promote.selection import read_selection, write_selection

pytestmark = pytest.mark.quick


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(60, 80))
def test_what_is_written_is_read(numbers: set[int], count: int) -> None:
    text = write_selection(numbers)
    assert read_selection(text, count) == tuple(sorted(numbers))
    assert write_selection(read_selection(text, count)) == text


@given(st.text(alphabet="0123456789-, x", max_size=12), st.integers(1, 99))
def test_a_selection_is_valid_or_refused(text: str, count: int) -> None:
    refused: Invalid | None = None
    numbers: tuple[int, ...] = ()
    try:
        numbers = read_selection(text, count)
    except Invalid as error:
        refused = error
    if refused is not None:
        assert text in refused.message
        assert refused.remedy
    else:
        assert numbers == tuple(sorted(set(numbers)))
        assert 1 <= numbers[0] <= numbers[-1] <= count


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3-5,7", (3, 4, 5, 7)),
        ("8-", (8, 9)),
        ("-2", (1, 2)),
        (" 2 , 1-1 ", (1, 2)),
        ("4,4,3-4", (3, 4)),
        ("9", (9,)),
        ("1 - 2", (1, 2)),
    ],
)
def test_selections(text: str, numbers: tuple[int, ...]) -> None:
    assert read_selection(text, 9) == numbers


@pytest.mark.parametrize("text", ["", "0", "5-3", "10", "3-10", "1,,2", "-", "a", "1-2-3", "1.5", "99999999999", "0-2"])
def test_what_names_no_cells_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_selection(text, 9)
    assert caught.value.remedy

"""Numbers in a JSON document, by RFC 6901."""

from __future__ import annotations

from typing import Any

import pytest

from carrel.core.comparison.pointers import number_at, numbers_in

DOCUMENT: dict[str, Any] = {"a/b": 1, "m~n": {"x": 2.5}, "history": [{"loss": 9}, {"loss": 3}], "name": "x", "done": True}


def test_every_number_that_is_listed_is_found_there() -> None:
    pointers = list(numbers_in(DOCUMENT))
    assert pointers == ["/a~1b", "/m~0n/x", "/history/1/loss"]
    assert [number_at(DOCUMENT, one) for one in pointers] == [1, 2.5, 3]


@pytest.mark.parametrize("pointer", ["", "/none", "/history/x", "/history/2/loss", "/history/-1/loss", "/name", "/m~0n"])
def test_where_there_is_no_number_there_is_none(pointer: str) -> None:
    assert number_at(DOCUMENT, pointer) is None


def test_numbers_that_are_not_finite_or_too_deep_are_none() -> None:
    assert number_at({"x": float("nan")}, "/x") is None
    deep: Any = 1
    for _ in range(50):
        deep = {"x": deep}
    assert list(numbers_in(deep)) == []

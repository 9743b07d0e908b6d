"""Names of several nodes in one word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.nodelist import check_nodelist, in_nodelist


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("gpu1", ["gpu1"], ["gpu01", "gpu10", "xgpu1", "GPU1"]),
        ("gpu[01-03,7]", ["gpu01", "gpu03", "gpu7"], ["gpu1", "gpu04", "gpu07", "gpu", "gpu003"]),
        ("gpu[8-11]", ["gpu8", "gpu11"], ["gpu08", "gpu12"]),
        ("r[1-2]n[01-02].lab", ["r1n01.lab", "r2n02.lab"], ["r1n1.lab", "r3n01.lab", "r1n01xlab"]),
        ("*", ["gpu1", "a.b", "two\nlines"], []),
        ("gpu*", ["gpu", "gpu-7"], ["cpu7"]),
    ],
)
def test_a_pattern_names_these_nodes_and_no_others(pattern: str, names: list[str], others: list[str]) -> None:
    assert [in_nodelist(name, ["elsewhere", pattern]) for name in names] == [True] * len(names)
    assert [in_nodelist(name, ["elsewhere", pattern]) for name in others] == [False] * len(others)


@pytest.mark.parametrize("pattern", ["", "gpu[", "gpu]", "gpu[]", "gpu[3-1]", "gpu[a-b]", "gpu[1-]", "a b", "a,b", "gpu[1--2]"])
def test_what_names_no_nodes_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="names no nodes"):
        check_nodelist([pattern])


@given(st.integers(0, 9999), st.integers(0, 9999), st.integers(0, 9999), st.integers(1, 5))
def test_a_range_holds_what_lies_between_its_ends(first: int, last: int, number: int, digits: int) -> None:
    first, last = sorted((first, last))
    width = len(f"{first:0{digits}}")
    found = in_nodelist(f"n{number:0{width}}", [f"n[{first:0{width}}-{last:0{width}}]"])
    assert found == (first <= number <= last)

"""What parameters of a sweep may be: written, read, and written again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.distribution import Distribution, DistributionKind, as_text, looks_like_one, read_distribution
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick

FLOATS = st.floats(min_value=-1e12, max_value=1e12)
POSITIVE = st.floats(min_value=1e-12, max_value=1e12)
INTS = st.integers(-(2**50), 2**50)


@given(st.sampled_from(["uniform", "loguniform"]), st.data())
def test_numbers_come_back(kind: str, data: st.DataObject) -> None:
    numbers = POSITIVE if kind == "loguniform" else FLOATS
    low, high = sorted((data.draw(numbers), data.draw(numbers)))
    found = read_distribution("p", f"{kind}({low!r},{high!r})")
    assert (found.low, found.high, found.step, found.size) == (low, high, None, None)
    assert read_distribution("p", str(found)) == found


@given(INTS, INTS, st.integers(1, 1000))
def test_whole_numbers_come_back_and_steps_end_at_a_value(one: int, other: int, step: int) -> None:
    low, high = sorted((one, other))
    found = read_distribution("p", f"int( {low} , {high} , step = {step} )")
    assert found.low == low
    assert high - step < found.high <= high
    assert (found.high - found.low) % step == 0
    assert found.value(0) == low
    assert read_distribution("p", str(found)) == found
    plain = read_distribution("p", f"int({low}, {high})")
    assert plain.size == high - low + 1
    assert plain.value(plain.size - 1) == high


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
        min_size=1,
        max_size=8,
        unique=True,
    )
)
def test_choices_come_back_whatever_is_in_them(choices: list[str]) -> None:
    meant = Distribution(kind=DistributionKind.CATEGORICAL, choices=tuple(choices))
    assert read_distribution("p", str(meant)) == meant
    assert [meant.value(index) for index in range(meant.size or 0)] == choices


def _read(text: str) -> Distribution | Invalid:
    try:
        return read_distribution("p", text)
    except Invalid as error:
        return error


@given(st.text(max_size=60))
def test_anything_else_is_an_error_with_words(text: str) -> None:
    for written in (text, f"uniform({text})", f"categorical({text})", f"logint({text})"):
        found = _read(written)
        if isinstance(found, Invalid):
            assert found.message.startswith("Parameter p: ")
            assert found.remedy
        else:
            assert read_distribution("p", str(found)) == found


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_is_passed_on_as_it_is(value: float) -> None:
    assert float(as_text(value)) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("uniform(1)", "takes a smallest and a largest value, and got 1"),
        ("uniform(1, 2, 3)", "and got 3"),
        ("uniform(2, 1)", "the smallest value 2 is larger than the largest, 1"),
        ("uniform(a, 1)", '"a" is not a number'),
        ("uniform(nan, 1)", '"nan" is not a number'),
        ("uniform(0, inf)", '"inf" is not a number'),
        ("loguniform(0, 1)", "begins at 0, and needs a value above 0"),
        ("loguniform(1, 2, step=1)", "has no step"),
        ("uniform(0, 1, step=0)", "the step 0 is not above 0"),
        ("uniform(0, 1, step=1e-300)", "is too small"),
        ("int(0.5, 2)", '"0.5" is not a whole number'),
        ("int(1, 99999999999999999999)", "is not a whole number up to"),
        ("categorical()", "lacks a value"),
        ("categorical(a,)", "lacks a value"),
        ("categorical(a, a)", '"a" is there twice'),
        ('categorical("a)', "cannot be read"),
        ("choice(a, b)", "is not a distribution"),
        ("int(1, 8", "is not a distribution"),
        ("unifrom(0, 1)", "Did you mean uniform(0.0, 0.5)"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_distribution("p", text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("uniform(0, 1)", True),
        ("unifrom(0,1)", True),
        ("uniform", False),
        ("f(x)", True),
        ("choice(1,2)", True),
        ("f(x", False),
        ("loguniform(1e-5, 1e-2", True),
        ("int(x) + 1", False),
        ("1 (or 2)", False),
        ("0.1", False),
        ("int(", False),
    ],
)
def test_what_looks_like_one(text: str, is_one: bool) -> None:
    assert looks_like_one(text) is is_one


def test_steps_have_no_noise() -> None:
    found = read_distribution("p", "uniform(0, 1, step=0.1)")
    assert [found.value(index) for index in range(found.size or 0)] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]

"""What ``--array`` says, read as Slurm reads it, but for what Slurm takes without saying so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.array import LARGEST_INDEX, MOST_ELEMENTS, ArrayElement, read_array
from carrel.core.domain.errors import Invalid

#: First, last and step of a part; a step of None is not written.
PARTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 90), st.one_of(st.none(), st.integers(1, 30))), min_size=1, max_size=5
)


@given(PARTS, st.one_of(st.none(), st.integers(1, 5000)), st.sampled_from(["", " "]))
def test_what_is_written_is_read(parts: list[tuple[int, int, int | None]], limit: int | None, blank: str) -> None:
    texts, indices, step = [], set(), 1
    for first, more, every in parts:
        last = first + more
        if more == 0 and every is None:
            texts.append(f"{first}")
            indices.add(first)
            continue
        texts.append(f"{first}-{last}" + ("" if every is None else f":{every}"))
        indices |= {index for index in range(first, last + 1) if (index - first) % (every or 1) == 0}
        step = every or step
    spec = read_array(f",{blank}".join(texts) + ("" if limit is None else f"%{limit}"))
    assert spec.indices == tuple(sorted(indices))
    assert (spec.at_most, spec.step) == (limit, step)


# The expected values are what Slurm 22.05 has set in jobs of such arrays.
@pytest.mark.parametrize(
    ("text", "count", "least", "most", "step"),
    [
        ("0-9", 10, 0, 9, 1),
        ("5", 1, 5, 5, 1),
        ("0-9:3", 4, 0, 9, 3),
        ("0,3,7-15:2%4", 7, 0, 15, 2),
        ("1,1,2", 2, 1, 2, 1),
        ("3,1", 2, 1, 3, 1),
        ("01-03", 3, 1, 3, 1),
        ("1-3:5", 1, 1, 1, 5),
        ("0-2,10-20:5", 6, 0, 20, 5),
        ("1000", 1, 1000, 1000, 1),
    ],
)
def test_a_command_finds_the_variables_that_slurm_sets(text: str, count: int, least: int, most: int, step: int) -> None:
    element = ArrayElement(array_id=12, index=least, array=text)
    assert element.name == f"12_{least}"
    told = {name.removeprefix("SLURM_ARRAY_"): value for name, value in element.variables().items() if name.startswith("SLURM_")}
    assert told == {
        "JOB_ID": "12", "TASK_ID": str(least), "TASK_COUNT": str(count), "TASK_MIN": str(least), "TASK_MAX": str(most),
        "TASK_STEP": str(step),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", '"" is neither'),
        ("5-3", "5-3 ends before it begins"),
        ("1-5:0", "A step is 1 or more"),
        ("0-3%0", "1 or more"),
        ("0-3%", "1 or more"),
        ("0-4%2%3", "1 or more"),
        ("-1", '"-1" is neither'),
        ("1-", '"1-" is neither'),
        ("1,,2", '"" is neither'),
        ("1-3,", '"" is neither'),
        ("1:2", '"1:2" is neither'),
        ("+1", '"+1" is neither'),
        ("0x3", '"0x3" is neither'),
        ("٣", "is neither"),
        (f"0-{MOST_ELEMENTS}", f"at most {MOST_ELEMENTS} elements"),
        ("0-600,1000-1600", f"at most {MOST_ELEMENTS} elements"),
        (f"{LARGEST_INDEX + 1}", f"The largest index is {LARGEST_INDEX}"),
        ("0-999999999", "The largest index"),
        ("9" * 400, "is neither"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=re.escape(why)) as found:
        read_array(text)
    assert len(str(found.value)) < 400


@given(st.text(alphabet="0123456789-,:% a_*", max_size=12))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        spec = read_array(text)
    except Invalid:
        return
    assert 0 < len(spec.indices) <= MOST_ELEMENTS

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.job import JobState
from carrel.lab.portal import words

pytestmark = pytest.mark.quick

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_every_state_is_explained_as_on_the_page_of_states() -> None:
    assert set(words.STATES) == {state.value for state in JobState}
    page = (Path(__file__).parents[2] / "docs" / "states.md").read_text()
    for state, (meaning, _, _) in words.STATES.items():
        assert f"| `{state}` | {meaning}" in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "just now"),
        (59, "59 s ago"),
        (90, "1 min ago"),
        (7300, "2 h ago"),
        (-1900, "in 31 min"),
        (90000, "1 d ago"),
        (10**6, "2026-02-17"),
    ],
)
def test_times(seconds: int, text: str) -> None:
    assert words.ago(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[1;32mb\x1b[0mc", "abc"),
        ("10%\r50%\r100%\nnext", "100%\nnext"),
        ("windows\r\nlines\r\n", "windows\nlines\n"),
        ("title\x1b]0;x\x07!", "title!"),
    ],
)
def test_a_log_looks_as_a_terminal_would_have_left_it(raw: str, shown: str) -> None:
    assert words.plain(raw) == shown


@given(st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")), st.integers(0, 80))
def test_a_tail_ends_where_it_says_and_splits_no_character(data: bytes, cut: int) -> None:
    text, end = words.log_tail(data[:cut], 0)
    assert end <= min(cut, len(data))
    assert "\ufffd" not in text
    data[end:].decode()


def test_a_tail_from_the_middle_begins_at_a_line() -> None:
    assert words.log_tail(b"lf a line\nwhole\nrest", 100) == ("whole\nrest", 120)

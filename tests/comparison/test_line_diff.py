from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison.line_diff import MOST_EDITS, MOST_LINES, counts, diff_lines, line_changes, mix_lines

LINES = st.lists(st.sampled_from("abcd"), max_size=40)


def apply(old: list[str], hunks: tuple[str, ...]) -> list[str]:
    """What `patch` does."""
    done, position = [], 0
    for hunk in hunks:
        head, *lines = hunk.split("\n")
        start, length, _, _ = (int(number) for number in re.findall(r"\d+", head))
        begin = start - 1 if length else start
        done += old[position:begin]
        assert [line[1:] for line in lines if line[0] in " -"] == old[begin : begin + length]
        done += [line[1:] for line in lines if line[0] in " +"]
        position = begin + length
    return done + old[position:]


@given(LINES, LINES)
def test_hunks_lead_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    hunks = diff_lines("\n".join(old), "\n".join(new))
    assert hunks is not None
    assert apply(old, hunks) == new
    assert bool(hunks) == (old != new)
    back = diff_lines("\n".join(new), "\n".join(old))
    assert back is not None
    assert counts(back) == counts(hunks)[::-1]


def test_texts_that_differ_in_too_much_are_not_compared() -> None:
    old, new = "\n".join(f"a{n}" for n in range(MOST_EDITS)), "\n".join(f"b{n}" for n in range(MOST_EDITS))
    assert diff_lines(old, new) is None
    assert diff_lines("a\n" * (MOST_LINES + 1), "a\n") is None
    (hunk,) = diff_lines("a\n" * MOST_LINES, "a\n" * (MOST_LINES - 1) + "b\n") or ()
    assert hunk.startswith(f"@@ -{MOST_LINES - 3},4 +{MOST_LINES - 3},4 @@")


@given(LINES, LINES, st.sampled_from(["\n", ""]), st.data())
def test_lines_are_taken_one_change_at_a_time(old: list[str], new: list[str], end: str, data: st.DataObject) -> None:
    mine, theirs = ("\n".join(lines) + (end if lines else "") for lines in (old, new))
    changes = line_changes(mine, theirs)
    assert changes is not None
    assert bool(changes) == (mine != theirs)
    numbers = range(1, len(changes) + 1)
    assert mix_lines(mine, theirs, ()) == mine
    assert mix_lines(mine, theirs, numbers) == theirs
    for change in changes:
        assert "".join(theirs.splitlines(keepends=True)[change.at - 1 :]).startswith("".join(change.new))
    taken = data.draw(st.lists(st.sampled_from(numbers), unique=True)) if changes else []
    mixed = mix_lines(mine, theirs, taken)
    assert mixed is not None
    left = line_changes(mixed, theirs)
    assert left is not None
    # What was taken is there, and what was not is not.
    assert sum(len(change.new) + len(change.old) for change in left) <= sum(
        len(change.new) + len(change.old) + 2 for number, change in enumerate(changes, start=1) if number not in taken
    )

"""The table of attempts to get out is whole: each kind in each place, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.containment.attacks import ATTACKS, KINDS
from carrel.testing.escapes import FEWEST, read_table

pytestmark = pytest.mark.quick
TABLE = read_table(Path(__file__).with_name("escapes.txt"))


def test_each_kind_is_attempted_in_each_place_or_left_out_with_a_reason() -> None:
    assert set(TABLE.places) == {"task", "notebook", "terminal", "build", "staging", "image", "cluster"}
    for place, kinds in TABLE.places.items():
        assert tuple(kinds) == KINDS, place
        assert all(number is None or number > 0 for number in kinds.values()), place
        assert sum(number or 0 for number in kinds.values()) >= FEWEST, place
    assert all(reason for reason in TABLE.reasons.values())
    assert {kind for kind in KINDS if f'attempt("{kind}"' in ATTACKS or kind in ATTACKS} | {
        "token and secret",
        "another's spool",
        "another's log",
    } == set(KINDS)


@pytest.mark.parametrize(
    ("tried", "through", "words"),
    [
        ({}, {"mounts: mount": "mounted"}, "mounted"),
        ({"mounts": 0}, {}, "mounts is attempted 0 times"),
        ({"fork bomb": 0, "kernel": 1}, {}, "attempted"),
    ],
)
def test_what_gets_through_or_is_forgotten_is_a_failure(tried: dict[str, int], through: dict[str, str], words: str) -> None:
    import json

    whole = {kind: number for kind, number in TABLE.places["task"].items() if number}
    TABLE.judge("task", f"{json.dumps(whole)}\n{{}}")
    with pytest.raises(AssertionError, match=words):
        TABLE.judge("task", f"{json.dumps({**whole, **tried})}\n{json.dumps(through)}")
    with pytest.raises(AssertionError, match="left out"):
        TABLE.judge("build", f"{json.dumps({**whole, 'network': 6})}\n{{}}")

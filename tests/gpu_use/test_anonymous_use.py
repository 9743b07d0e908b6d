"""Rows of a report that tell of no single person."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.gpu_use import LEAST_PEOPLE, AnonymousSums, AttemptFacts, Grouping, Range, UseSums

JOB = AttemptFacts(
    owner="ada", account="physics", qos="normal", kind="task", gpus=1, submitted_at=0.0, job_ended_at=100.0, last=1, number=1,
    first=True, node="bench", leased_at=0.0, started_at=0.0, ended_at=100.0, state="COMPLETED", lease_seconds=0.0,
    suspended_seconds=0.0, suspended_at=None,
)  # fmt: skip


def anonymous(jobs: list[tuple[str, str]]) -> AnonymousSums:
    """Jobs by owner and account."""
    sums: dict[str, UseSums] = {}
    for owner, account in jobs:
        sums.setdefault(owner, UseSums(Grouping.ACCOUNT, Range(0, 1000), 1000)).add([JOB._replace(owner=owner, account=account)])
    return AnonymousSums(sums)


def of(account: str, people: int, first: int = 0) -> list[tuple[str, str]]:
    return [(f"user{number}", account) for number in range(first, first + people)]


@pytest.mark.parametrize(
    ("jobs", "rows"),
    [
        ([*of("a", 6), *of("b", 5)], {"a": 6, "b": 5}),
        ([*of("a", 6), *of("b", 3), *of("c", 2, 10)], {"a": 6, "others": 5}),
        # Three people of two accounts are three people: the next larger account goes with them.
        ([*of("a", 7), *of("b", 6, 20), *of("c", 3), *of("d", 3)], {"a": 7, "others": 12}),
        ([*of("a", 4)], {}),
        ([], {}),
    ],
)
def test_small_rows_are_told_together(jobs: list[tuple[str, str]], rows: dict[str, int]) -> None:
    assert {name: use.jobs for name, use in anonymous(jobs).rows.items()} == rows


@given(st.lists(st.tuples(st.sampled_from([f"user{n}" for n in range(12)]), st.sampled_from("abcdef")), max_size=60))
def test_every_row_is_of_five_people_and_the_sum_is_that_of_the_rows(jobs: list[tuple[str, str]]) -> None:
    found = anonymous(jobs)
    named = {name for name in found.rows if name != "others"}
    for name in found.rows:
        those = {owner for owner, account in jobs if (account in named) == (name in named) and name in (account, "others")}
        assert len(those) >= LEAST_PEOPLE
    assert found.total.jobs == sum(use.jobs for use in found.rows.values())
    assert found.total.jobs in (0, len(jobs))
    assert bool(found.rows) == (len({owner for owner, _ in jobs}) >= LEAST_PEOPLE)

"""The search for a cause: whatever runs come to, what it says is what was seen; and one cause needs few runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.why import FAILED, FIRST, SECOND, Answer, Found, Variant, Weighted, most_runs, search

#: What a run with these changes comes to.
Oracle = Callable[[frozenset[str]], str]


def play(changes: list[Weighted], oracle: Oracle, *, second: str = SECOND) -> tuple[Found, dict[Variant, str]]:
    """Run what is wanted until there is an answer."""
    results: dict[Variant, str] = {}
    for _ in range(10_000):
        stands = search(changes, results)
        if stands.found is not None:
            return stands.found, results
        assert stands.wanted
        assert not set(stands.wanted) & set(results)
        results |= {variant: second if variant.second else oracle(variant.changes) for variant in stands.wanted}
    raise AssertionError("The search never ends.")


def made(count: int, weights: Iterable[float] = ()) -> list[Weighted]:
    given = [*weights, *[1.0] * count]
    return [Weighted(f"c{number}", given[number]) for number in range(count)]


def from_causes(causes: frozenset[str]) -> Oracle:
    """Each cause changes results by itself; together they bring the second attempt's."""

    def oracle(changes: frozenset[str]) -> str:
        had = changes & causes
        return FIRST if not had else SECOND if had == causes else "+".join(sorted(had))

    return oracle


@st.composite
def causes_among(draw: st.DrawFn) -> tuple[list[Weighted], frozenset[str]]:
    weights = draw(st.lists(st.sampled_from([100.0, 10.0, 1.0]), min_size=1, max_size=24))
    changes = made(len(weights), sorted(weights, reverse=True))
    keys = [change.key for change in changes]
    return changes, frozenset(draw(st.lists(st.sampled_from(keys), min_size=1, max_size=4)))


@given(causes_among())
def test_exactly_the_causes_are_found(case: tuple[list[Weighted], frozenset[str]]) -> None:
    changes, causes = case
    found, _ = play(changes, from_causes(causes))
    assert (found.answer, frozenset(found.changes)) == (Answer.EXPLAINED, causes)
    assert found.nothing_else is (None if len(causes) == len(changes) else True)


@given(st.integers(1, 64), st.data())
def test_one_cause_needs_no_more_runs_than_were_announced(count: int, data: st.DataObject) -> None:
    changes = made(count)
    cause = data.draw(st.sampled_from(changes)).key
    _, results = play(changes, from_causes(frozenset({cause})))
    assert len(results) <= most_runs(changes) <= 8 + math.ceil(math.log2(count))


def test_what_is_far_likelier_than_all_others_is_tried_alone() -> None:
    changes = made(40, [100.0])
    _, results = play(changes, from_causes(frozenset({"c0"})))
    assert Variant(frozenset({"c0"})) in results
    assert len(results) == 8  # thrice as it was, all, the likely one thrice, all others


@given(causes_among(), st.data())
def test_the_parts_of_a_change_that_matter_are_found(case: tuple[list[Weighted], frozenset[str]], data: st.DataObject) -> None:
    changes, causes = case
    parts = tuple(f"{changes[0].key}#{number}" for number in range(1, data.draw(st.integers(2, 9)) + 1))
    chosen = frozenset(data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3)))
    changes[0] = Weighted(changes[0].key, changes[0].weight, parts)
    whole = causes - {changes[0].key} | chosen

    def oracle(changed: frozenset[str]) -> str:
        split = changed | (frozenset(parts) if changes[0].key in changed else frozenset())
        return from_causes(whole)(split)

    found, _ = play(changes, oracle)
    # Where all parts are needed, the change itself and its parts are the same.
    names = frozenset(key for one in found.changes for key in (parts if one == changes[0].key else (one,)))
    assert names == whole


@given(causes_among(), st.frozensets(st.frozensets(st.integers(0, 23), max_size=4), max_size=6))
def test_what_is_said_to_explain_it_was_run(
    case: tuple[list[Weighted], frozenset[str]], broken: frozenset[frozenset[int]]
) -> None:
    """Some combinations do not run at all, in no order that anybody could foresee."""
    changes, causes = case
    bad = {frozenset(f"c{number}" for number in numbers) for numbers in broken if numbers}

    def oracle(changed: frozenset[str]) -> str:
        return FAILED if any(one and one <= changed and len(changed) % 2 for one in bad) else from_causes(causes)(changed)

    found, results = play(changes, oracle)
    assert all(results[variant] == (SECOND if variant.second else oracle(variant.changes)) for variant in results)
    if found.answer is Answer.EXPLAINED:
        assert results[Variant(frozenset(found.changes))] == SECOND
        assert causes <= frozenset(found.changes)
    else:
        assert found.answer in (Answer.FAILED, Answer.IN_PART, Answer.NOT_DETERMINISTIC)


@given(st.data())
def test_whatever_runs_come_to_it_ends_and_claims_nothing_that_was_not_seen(data: st.DataObject) -> None:
    """Results that follow no rule at all, as those of a program that is not deterministic."""
    changes = made(data.draw(st.integers(0, 6)))
    seen: dict[frozenset[str], str] = {}

    def oracle(changed: frozenset[str]) -> str:
        if changed not in seen:
            seen[changed] = data.draw(st.sampled_from([FIRST, SECOND, FAILED, "other 1", "other 2"]))
        return seen[changed]

    found, results = play(changes, oracle, second=data.draw(st.sampled_from([FIRST, SECOND, FAILED, "other 3"])))
    if found.answer is Answer.EXPLAINED:
        assert results[Variant(frozenset(found.changes))] == SECOND
        assert results[Variant()] == results[Variant(repetition=1)] == FIRST
    if found.answer is Answer.ELSEWHERE and changes:
        assert results[Variant(frozenset(change.key for change in changes))] == FIRST


@given(causes_among(), st.randoms(use_true_random=False))
def test_results_may_come_one_by_one_and_the_search_goes_on_where_it_stood(
    case: tuple[list[Weighted], frozenset[str]], random: object
) -> None:
    changes, causes = case
    oracle = from_causes(causes)
    at_once, all_results = play(changes, oracle)
    results: dict[Variant, str] = {}
    while (stands := search(changes, results)).found is None:
        one = random.choice(stands.wanted)  # type: ignore[attr-defined]
        results[one] = oracle(one.changes)
    assert (stands.found, results) == (at_once, all_results)


def test_runs_that_differ_although_nothing_was_changed_are_chance() -> None:
    changes = made(3)
    found = search(changes, {Variant(): FIRST, Variant(repetition=1): "other 1"}).found
    assert found == Found(answer=Answer.NOT_DETERMINISTIC, by=Variant(repetition=1))
    found = search(changes, {Variant(): "other 1", Variant(repetition=1): "other 2"}).found
    assert found.answer is Answer.NOT_DETERMINISTIC
    found = search(changes, {Variant(): "other 1", Variant(repetition=1): "other 1"}).found
    assert found == Found(answer=Answer.NOT_REPEATED, by=Variant())


def test_a_second_attempt_that_does_not_come_to_its_own_results_again_is_chance_too() -> None:
    found, _ = play(made(3), lambda changed: "other 1" if changed else FIRST, second="other 2")
    assert found == Found(answer=Answer.NOT_DETERMINISTIC, by=Variant(second=True))


def test_a_program_of_two_results_that_agrees_by_chance_is_asked_again() -> None:
    changes = made(1)
    tossed = {Variant(): FIRST, Variant(repetition=1): FIRST, Variant(frozenset({"c0"})): SECOND}
    twice = [Variant(frozenset({"c0"}), repetition=number) for number in (1, 2)]
    nothing = Variant(repetition=2)
    assert search(changes, tossed).wanted == (*twice, nothing)
    same = tossed | dict.fromkeys(twice, SECOND) | {nothing: FIRST}
    assert search(changes, same).found == Found(answer=Answer.EXPLAINED, changes=("c0",), by=Variant(frozenset({"c0"})))
    for again, other in ((twice[0], FIRST), (twice[1], FIRST), (nothing, SECOND)):
        assert search(changes, same | {again: other}).found == Found(answer=Answer.NOT_DETERMINISTIC, by=again)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_of_a_coin_a_cause_is_named_in_two_of_a_hundred_searches_at_most(count: int) -> None:
    """The probability is exact: all ways in which runs can fall are gone through."""

    def named(results: dict[Variant, str]) -> float:
        stands = search(made(count), results)
        if stands.found is not None:
            return float(stands.found.answer is Answer.EXPLAINED)
        one = stands.wanted[0]
        return (named(results | {one: FIRST}) + named(results | {one: SECOND})) / 2

    assert 0 < named({}) <= 0.02


def test_a_cause_beside_two_that_undo_each_other_is_named_alone() -> None:
    def oracle(changed: frozenset[str]) -> str:
        undone = len(changed & {"c0", "c2"}) == 1
        return "other" if undone else SECOND if "c1" in changed else FIRST

    found, _ = play(made(3), oracle)
    assert (found.answer, found.changes, found.nothing_else) == (Answer.EXPLAINED, ("c1",), True)


def test_what_cannot_be_changed_is_left_where_all_that_can_changes_nothing() -> None:
    found, results = play(made(3), lambda _changed: FIRST)
    assert found.answer is Answer.ELSEWHERE
    assert len(results) == 4  # twice as it was, all, and the second again
    found, _ = play([], lambda _changed: FIRST)
    assert found.answer is Answer.ELSEWHERE


def test_a_part_of_the_cause_is_found_where_the_rest_cannot_be_changed() -> None:
    found, _ = play(made(5), lambda changed: "other 1" if "c3" in changed else FIRST)
    assert (found.answer, found.changes) == (Answer.IN_PART, ("c3",))


def test_changes_that_do_not_run_together_are_tried_one_by_one() -> None:
    def oracle(changed: frozenset[str]) -> str:
        return FIRST if not changed else FAILED if len(changed) > 1 else SECOND if changed == {"c2"} else FIRST

    found, _ = play(made(4), oracle)
    assert (found.answer, found.changes) == (Answer.EXPLAINED, ("c2",))

"""Fair share: who goes first, by hand-computed examples and by what must hold for any tree."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.account import Account, AccountUsage, Standing
from carrel.core.policy.fairshare import accrued, faded, standings
from support.examples import examples

FAST = settings(max_examples=examples(60), deadline=None)
WEEK = 7 * 24 * 3600.0


def used(account: str, user: str, seconds: float = 0.0) -> AccountUsage:
    return AccountUsage(account=account, user=user, seconds=seconds)


def factors(found: list[Standing] | tuple[Standing, ...]) -> dict[str, float]:
    return {standing.user: round(standing.factor, 3) for standing in found}


def test_who_has_used_nothing_yet_stands_as_everybody_else() -> None:
    found = standings({}, [used("physics", "ada"), used("biology", "cyd"), used("biology", "dan")])
    assert factors(found) == {"ada": 1.0, "cyd": 1.0, "dan": 1.0}
    assert {standing.user: standing.share for standing in found} == {"ada": 0.5, "cyd": 0.25, "dan": 0.25}


def test_an_account_that_has_used_less_of_its_share_goes_first_with_all_its_users() -> None:
    accounts = {"physics": Account(name="physics", shares=3), "biology": Account(name="biology", shares=1)}
    # Physics has used 2/3 with 3/4 of the shares, biology 1/3 with 1/4.
    usage = [used("physics", "ada", 190), used("physics", "bob", 10), used("biology", "cyd", 100), used("biology", "dan", 0)]
    assert factors(standings(accounts, usage)) == {"bob": 0.967, "ada": 0.634, "dan": 0.5, "cyd": 0.125}


def test_users_have_shares_inside_their_account() -> None:
    accounts = {"physics": Account(name="physics", users={"ada": 3, "bob": 1, "eve": 0})}
    usage = [used("physics", "ada", 20), used("physics", "bob", 10), used("physics", "eve", 0)]
    assert factors(standings(accounts, usage)) == {"ada": 0.54, "bob": 0.397, "eve": 0.0}
    assert accounts["physics"].admits("bob")
    assert not accounts["physics"].admits("cyd")


def test_accounts_inside_accounts_are_compared_beside_each_other() -> None:
    accounts = {
        "science": Account(name="science"),
        "optics": Account(name="optics", parent="science"),
        "lasers": Account(name="lasers", parent="science"),
        "arts": Account(name="arts"),
    }
    usage = [used("optics", "ada", 10), used("lasers", "bob", 30), used("arts", "cyd", 41)]
    found = standings(accounts, usage)
    # Science has used a little less than arts, and has two users of three.
    assert factors(found) == {"ada": 0.805, "bob": 0.569, "cyd": 0.165}
    assert [standing.share for standing in found] == [0.25, 0.25, 0.5]


def test_an_account_that_nobody_has_used_has_its_share_all_the_same() -> None:
    accounts = {"physics": Account(name="physics"), "biology": Account(name="biology", shares=3)}
    (standing,) = standings(accounts, [used("physics", "ada", 5)])
    assert (standing.share, standing.used, standing.factor) == (0.25, 1.0, 1.0)
    assert standings(accounts, []) == ()


def test_equals_have_equal_factors() -> None:
    usage = [used("physics", "ada", 5), used("physics", "bob", 5), used("biology", "cyd", 5), used("biology", "dan", 5)]
    assert factors(standings({}, usage)) == dict.fromkeys(("ada", "bob", "cyd", "dan"), 0.5)
    assert standings({}, []) == ()


def test_users_who_have_used_little_are_alike_and_one_who_has_used_much_is_far_behind() -> None:
    for account in ("lab", None):
        usage = [
            used(account or "hog", "hog", 960),
            *(used(account or f"of-{number}", f"user-{number}", number) for number in range(10)),
        ]
        found = factors(standings({}, usage))
        assert found.pop("hog") < 0.01
        assert all(factor > 0.93 for factor in found.values())


def test_use_fades_with_its_half_life() -> None:
    assert faded(100.0, WEEK, WEEK) == 50.0
    assert faded(100.0, 0.0, WEEK) == 100.0
    assert accrued(2.0, 0.0, 1.0, WEEK) == pytest.approx(2.0, rel=1e-5)
    # What is held for ever costs as much as its last 1.44 half-lives in full.
    assert accrued(1.0, -1e9, 0.0, WEEK) == pytest.approx(WEEK / log(2))
    assert accrued(1.0, 5.0, 5.0, WEEK) == accrued(1.0, 6.0, 5.0, WEEK) == 0.0


@FAST
@given(st.floats(0.1, 10), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(10, 1e6))
def test_it_does_not_matter_in_how_many_pieces_a_charge_is_made(rate: float, one: float, other: float, half_life: float) -> None:
    whole = accrued(rate, 0.0, one + other, half_life)
    pieces = faded(accrued(rate, 0.0, one, half_life), other, half_life) + accrued(rate, one, one + other, half_life)
    assert pieces == pytest.approx(whole, rel=1e-6, abs=1e-6)


NAMES = ("a", "b", "c", "d")


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, Account], list[AccountUsage]]:
    accounts = {
        name: Account(
            name=name,
            parent=draw(st.sampled_from(("", *NAMES[:place]))),
            shares=draw(st.integers(0, 3)),
            users=draw(st.dictionaries(st.sampled_from(("x", "y")), st.integers(0, 3), max_size=2)),
        )
        for place, name in enumerate(NAMES)
    }
    pairs = draw(st.sets(st.tuples(st.sampled_from((*NAMES, "unknown")), st.sampled_from(("x", "y", "z"))), max_size=8))
    return accounts, [used(account, user, draw(st.sampled_from([0, 1, 10, 10, 500]))) for account, user in sorted(pairs)]


@FAST
@given(trees())
def test_everybody_has_one_place(tree: tuple[dict[str, Account], list[AccountUsage]]) -> None:
    accounts, usage = tree
    found = standings(accounts, usage)
    assert sorted((standing.account, standing.user) for standing in found) == [(item.account, item.user) for item in usage]
    order = [standing.factor for standing in found]
    assert order == sorted(order, reverse=True)
    assert all(0 <= factor <= 1 for factor in order)
    assert sum(standing.used for standing in found) == pytest.approx(1.0 if any(item.seconds for item in usage) else 0.0)
    assert standings(dict(reversed(accounts.items())), list(reversed(usage))) == found


@FAST
@given(trees())
def test_users_of_an_account_that_has_used_less_stand_before_those_of_one_beside_it(
    tree: tuple[dict[str, Account], list[AccountUsage]],
) -> None:
    flat = {name: replace(account, parent="", shares=1 + account.shares, users={}) for name, account in tree[0].items()}
    found = [one for one in standings(flat, tree[1]) if one.account in flat]
    level = {name: sum(one.seconds for one in found if one.account == name) / flat[name].shares for name in flat}
    assert all(
        one.factor >= other.factor for one in found for other in found if level[one.account] < level[other.account] * (1 - 1e-9)
    )


@FAST
@given(trees(), st.integers(1, 1000), st.data())
def test_using_more_never_helps(tree: tuple[dict[str, Account], list[AccountUsage]], more: int, data: st.DataObject) -> None:
    accounts, usage = tree
    if not usage:
        return
    place = data.draw(st.integers(0, len(usage) - 1))
    mine = usage[place]
    worse = [*usage[:place], used(mine.account, mine.user, mine.seconds + more), *usage[place + 1 :]]

    def ahead(of: list[AccountUsage]) -> int:
        """How many go before me."""
        found = standings(accounts, of)
        me = next(standing for standing in found if (standing.account, standing.user) == (mine.account, mine.user))
        return sum(standing.factor > me.factor for standing in found)

    assert ahead(worse) >= ahead(usage)

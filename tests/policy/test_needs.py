"""The tree of what waits: whatever comes and goes, each part knows the least that is needed in it and who may be first."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import NOWHERE
from carrel.core.policy.needs import Headroom, Key, Need, Needs, Node, fits, moved


class Somebody:
    """Who needs something."""

    def __init__(self, need: Need, foremost: Key) -> None:
        self.need = need
        self.foremost = foremost
        self.leaf: Node[Somebody] | None = None


def a_need(rng: Random, most: int) -> Need:
    seconds = rng.randrange(most)
    return (rng.randrange(3), rng.randrange(most), rng.randrange(most), seconds, seconds + rng.choice((0, 10)))


def parts(node: Node[Somebody]) -> Iterator[Node[Somebody]]:
    yield node
    for part in node.parts or ():
        yield from parts(part)


def depth(node: Node[Somebody]) -> int:
    return 1 + max((depth(part) for part in node.parts or ()), default=0)


def first_that_fits(node: Node[Somebody], free: list[Headroom], now: float) -> Key | None:
    """What a cycle looks for, without its heap."""
    if not fits(node.need, free, now):
        return None
    if node.parts is None:
        return min((one.foremost for one in node.items if fits(one.need, free, now)), default=None)
    return min((key for part in node.parts if (key := first_that_fits(part, free, now)) is not None), default=None)


def empty() -> Needs[Somebody]:
    return Needs(Resources(), NOWHERE)


@given(st.integers(0, 2**40), st.sampled_from([2, 5, 1000]))
def test_it_finds_whoever_fits_whatever_has_come_and_gone(seed: int, most: int) -> None:
    rng, tree, there = Random(seed), empty(), list[Somebody]()
    latest = 0.0
    for _ in range(rng.randrange(1, 300)):
        match rng.randrange(5):
            case 0 if there:
                tree.remove(there.pop(rng.randrange(len(there))))
            case 1 if there:
                one = rng.choice(there)
                one.foremost = (one.foremost[0] - rng.random(), rng.randrange(10**6))
                moved(one)
            case _:
                latest += rng.uniform(-1, 0.5)  # many come who go before all others
                there.append(Somebody(a_need(rng, most), (latest, rng.randrange(10**6))))
                tree.add(there[-1])
    assert set(tree.root.all()) == set(there)
    for part in parts(tree.root):
        inside = list(part.all())
        assert not inside or part.need == tuple(min(one.need[axis] for one in inside) for axis in range(5))
        assert all(part.foremost <= one.foremost for one in inside)
    free = [(rng.randrange(3), rng.randrange(most), rng.randrange(most), 100 + rng.randrange(most), inf) for _ in range(2)]
    expected = min((one.foremost for one in there if fits(one.need, free, 100.0)), default=None)
    assert first_that_fits(tree.root, free, 100.0) == expected


def test_it_does_not_get_deep_where_everybody_needs_more_than_the_one_before() -> None:
    tree, there = empty(), list[Somebody]()
    for number in range(4000):
        there.append(Somebody((0, number, number, number, number), (0.0, number)))
        tree.add(there[-1])
        if len(there) > 1000:
            tree.remove(there.pop(0))
    assert depth(tree.root) <= 20


def test_those_who_need_the_same_stay_together() -> None:
    tree = empty()
    for number in range(100):
        tree.add(Somebody((1, 1, 1, 1, 1), (0.0, number)))
    assert len(list(tree.root.all())) == 100
    assert depth(tree.root) == 1


def test_a_moment_counts_from_now() -> None:
    assert fits((1, 1, 1, 10, 20), [(1, 1, 1, 110.0, 120.0)], 100.0)
    assert not fits((1, 1, 1, 10, 20), [(1, 1, 1, 110.0, 120.0)], 100.5)
    assert not fits((1, 1, 1, 10, 20), [(1, 1, 1, inf, 119.0)], 100.0)

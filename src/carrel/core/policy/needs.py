"""What waits, by what it needs: a k-d tree, in which the first job in line is found that fits in some room.

Each node knows the least that anybody below it needs of everything, so whole subtrees for which there is no room are passed over;
and the first place in line that somebody below it may have, so the others are looked at in the order of the queue. (J. Bentley,
"Multidimensional Binary Search Trees Used for Associative Searching", Communications of the ACM 18, 1975.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes

#: GPUs, cpus and memory on each node; seconds that it is expected to run, and seconds after which it is gone at the latest.
Need = tuple[int, int, int, float, int]
#: GPUs, cpus and memory that are free; the moments by which a job must be over, as it is expected to run and by its walltime.
Headroom = tuple[int, int, int, float, float]
#: Seconds and id of a job: the smallest is first in line.
Key = tuple[float, int]

#: So many are kept together before they are separated.
LEAF = 16
#: Places in a `Prerequisite` by which they are separated. The walltime mostly says the same as the expected time.
_AXES = 4
#: Behind everybody.
NOBODY: Key = (inf, 0)
#: More than there is.
_TOO_MUCH = 2**62
_NOTHING: Need = (_TOO_MUCH, _TOO_MUCH, _TOO_MUCH, inf, _TOO_MUCH)

#: Tells apart what stands at the same place in line.
numbers = count()


class Needing(Protocol):
    """What is found by what it needs."""

    need: Need
    #: Where it is in the tree; the tree sets it.
    leaf: Node[Any] | None

    @property
    def foremost(self) -> Key:
        """Its place in line, or one before that."""
        ...


T = TypeVar("T", bound=Needing)


class Node(Generic[T]):
    """A part of a tree: some that need something, or two parts."""

    __slots__ = ("at", "axis", "built", "foremost", "grown", "items", "need", "number", "parent", "parts", "tree")

    def __init__(self, tree: Needs[T], parent: Node[T] | None = None) -> None:
        self.tree = tree
        self.number = next(numbers)
        self.parent = parent
        #: Of each, what is needed least by anybody in here.
        self.need = _NOTHING
        #: Nobody in here stands before this place in line.
        self.foremost = NOBODY
        self.items: list[T] = []
        #: Who needs less than `at` of what is at `axis`, and the others; None where there are `items`.
        self.parts: tuple[Node[T], Node[T]] | None = None
        self.axis, self.at = 0, 0.0
        #: How many were in here when this part was made, and how many have come since.
        self.built, self.grown = 0, 0

    @property
    def inside(self) -> Sequence[Node[T]] | Sequence[T]:
        """What is in here."""
        return self.parts or self.items

    def all(self) -> Iterator[T]:
        """Return everybody in here."""
        if self.parts is None:
            yield from self.items
        else:
            for part in self.parts:
                yield from part.all()

    def fill(self, items: list[T], depth: int) -> None:
        """Hold these from now on."""
        self.built, self.grown = len(items), 0
        self.need = _least(one.need for one in items)
        self.items, self.parts = items, None
        if len(items) > LEAF:
            self._divide(items, depth)
        if self.parts is None:
            for one in items:
                one.leaf = self
        self.foremost = min((one.foremost for one in self.inside), default=NOBODY)

    def _divide(self, items: list[T], depth: int) -> None:
        for step in range(_AXES):
            self.axis = axis = (depth + step) % _AXES
            values = sorted(one.need[axis] for one in items)
            # The median, or the next larger one where nobody needs less than that.
            self.at = next((value for value in values[len(values) // 2 :] if value > values[0]), -inf)
            if self.at > values[0]:
                break
        else:
            return  # they all need the same
        self.parts = Node(self.tree, self), Node(self.tree, self)
        self.parts[0].fill([one for one in items if one.need[axis] < self.at], depth + 1)
        self.parts[1].fill([one for one in items if one.need[axis] >= self.at], depth + 1)
        self.items = []

    def replace_by(self, other: Node[T]) -> None:
        """Hold what another part holds, which is not there any more."""
        self.need, self.foremost, self.axis, self.at = other.need, other.foremost, other.axis, other.at
        self.items, self.parts, self.built, self.grown = other.items, other.parts, other.built, other.grown
        for part in self.parts or ():
            part.parent = self
        for one in self.items:
            one.leaf = self


class Needs(Generic[T]):
    """All that wait for GPUs of one kind (or for none), on as many nodes, on the same allowed nodes."""

    __slots__ = ("allowed_nodes", "root", "wanted")

    def __init__(self, wanted: Resources, allowed_nodes: AllowedNodes) -> None:
        #: A job's, which speak for all but for how much they ask for.
        self.wanted = wanted
        self.allowed_nodes = allowed_nodes
        self.root: Node[T] = Node(self)

    def add(self, one: T) -> None:
        """`one` is in line."""
        node, need, key, depth = self.root, one.need, one.foremost, 0
        overgrown: tuple[Node[T], int] | None = None
        while True:
            node.need = _lesser(node.need, need)
            node.foremost = min(node.foremost, key)
            node.grown += 1
            if overgrown is None and node.grown > max(node.built, LEAF):
                overgrown = node, depth
            if node.parts is None:
                break
            node, depth = node.parts[need[node.axis] >= node.at], depth + 1
        node.items.append(one)
        one.leaf = node
        if overgrown is not None:  # a part that has doubled is made anew, so that none gets deep
            overgrown[0].fill(list(overgrown[0].all()), overgrown[1])

    def remove(self, one: T) -> None:
        """`one` is not in line any more."""
        node, one.leaf = one.leaf, None
        if node is None:
            return
        node.items.remove(one)
        parent = node.parent
        if not node.items and parent is not None and parent.parts is not None:
            parent.replace_by(parent.parts[parent.parts[0] is node])
            node = parent.parent
        while node is not None:
            need = _least(one.need for one in node.inside)
            if need == node.need:
                break
            node.need, node = need, node.parent


def moved(one: T) -> None:
    """`one`, which is in a tree, may stand further ahead in line than before."""
    node, key = one.leaf, one.foremost
    while node is not None and key < node.foremost:
        node.foremost, node = key, node.parent


def fits(need: Need, free: Iterable[Headroom], now: float) -> bool:
    """True when something that is free is enough for what begins `now`."""
    gpus, cpus, memory, seconds, longest = need
    over_by, gone_by = now + seconds, now + longest
    for one in free:  # noqa: SIM110 - `any` would make a generator each time
        if gpus <= one[0] and cpus <= one[1] and memory <= one[2] and over_by <= one[3] and gone_by <= one[4]:
            return True
    return False


def _least(needs: Iterable[Need]) -> Need:
    found = _NOTHING
    for need in needs:
        found = _lesser(found, need)
    return found


def _lesser(one: Need, other: Need) -> Need:
    gpus, cpus, memory, seconds, longest = one
    return (
        gpus if gpus < other[0] else other[0],
        cpus if cpus < other[1] else other[1],
        memory if memory < other[2] else other[2],
        seconds if seconds < other[3] else other[3],
        longest if longest < other[4] else other[4],
    )

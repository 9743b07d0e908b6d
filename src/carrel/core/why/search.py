"""What to try next, and when the cause is known: delta debugging, with the likely first.

After A. Zeller, "Yesterday, my program worked. Today, it does not. Why?" (1999): the changes are halved, and the half that brings
the second attempt's results is halved again; where neither does, each half is searched while the other is there. Halves are
by weight, so that one change that is far more likely than all others is tried alone, as in a search tree by D. Huffman.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

#: What a run came to: the results of the first attempt, those of the second, or none that count. Other texts are results that
#: are neither; equal texts are equal results.
FIRST, SECOND, FAILED = "first", "second", "failed"


@dataclass(frozen=True, slots=True)
class Variant:
    """One run: the first attempt with these changes, or (`second`) the second one as it was."""

    changes: frozenset[str] = frozenset()
    #: The same again.
    repetition: int = 0
    second: bool = False


@dataclass(frozen=True, slots=True)
class Weighted:
    """A change that can be made, how likely it is (a weight), and the parts in which it can be made, in their order."""

    key: str
    weight: float = 1.0
    parts: tuple[str, ...] = ()


class Answer(StrEnum):
    """How a search ended."""

    #: These changes bring the second attempt's results, and none of them can be left out.
    EXPLAINED = "explained"
    #: All changes together bring other results than the first attempt's, and not the second's: `changes` are those that do.
    IN_PART = "in part"
    #: All changes together change nothing: the cause is what cannot be changed, or is in no record.
    ELSEWHERE = "elsewhere"
    #: Equal runs have different results.
    NOT_DETERMINISTIC = "not deterministic"
    #: The first attempt, run again, does not come to its own results, but always to the same others.
    NOT_REPEATED = "not repeated"
    #: Runs failed, so nothing can be said.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The answer."""

    answer: Answer
    #: In their order; a part in the place of a change where a part is enough.
    changes: tuple[str, ...] = ()
    #: Without them, everything else of the second attempt gives the first attempt's results. None: not tried.
    nothing_else: bool | None = None
    #: The run by which it is known.
    by: Variant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where it stands."""

    #: None: `wanted` have to be run first.
    found: Found | None = None
    wanted: tuple[Variant, ...] = ()


class _Wanted(Exception):
    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = tuple(variants)


@dataclass(slots=True)
class _Runs:
    results: Mapping[Variant, str]

    def of(self, *variants: Variant) -> tuple[str, ...]:
        missing = [variant for variant in variants if variant not in self.results]
        if missing:
            raise _Wanted(missing)
        return tuple(self.results[variant] for variant in variants)

    def with_changes(self, changes: frozenset[str]) -> str:
        return self.of(Variant(changes))[0]


def search(changes: Sequence[Weighted], results: Mapping[Variant, str]) -> Search:
    """Return what to run next, or the answer. `changes` have their likeliest first; `results` are those known so far.

    The same arguments always give the same, and a result more never takes back what was wanted before.
    """
    runs = _Runs(results)
    try:
        found = _find(list(changes), runs)
    except _Wanted as wanted:
        return Search(wanted=wanted.variants)
    return Search(found=found)


def most_runs(changes: Sequence[Weighted]) -> int:
    """Return how many runs one cause needs at most, where all changes are known to bring the second attempt's results."""
    deepest = max((_depth(list(changes), one.key) + _bits(len(one.parts)) for one in changes), default=0)
    # Twice as it was, and all; at the end the cause alone, the same twice again, once more as it was, and all but it.
    return 6 + deepest + (2 if len(changes) > 1 else 0)


def _bits(count: int) -> int:
    return 1 + math.ceil(math.log2(count)) if count else 0


def _depth(changes: list[Weighted], key: str) -> int:
    depth = 0
    while len(changes) > 1:
        one, two = _halves(changes)
        changes = one if any(change.key == key for change in one) else two
        depth += 1
    return depth


def _find(changes: list[Weighted], runs: _Runs) -> Found:
    nothing, again = Variant(), Variant(repetition=1)
    results = runs.of(nothing, again)
    if FAILED in results:
        return Found(answer=Answer.FAILED, by=nothing if results[0] == FAILED else again)
    if results[0] != results[1]:
        return Found(answer=Answer.NOT_DETERMINISTIC, by=again if results[1] != FIRST else nothing)
    if results[0] != FIRST:
        return Found(answer=Answer.NOT_REPEATED, by=nothing)
    everything = frozenset(change.key for change in changes)
    whole = runs.with_changes(everything) if everything else FIRST
    if whole == SECOND:
        return _explain(changes, SECOND, Answer.EXPLAINED, runs)
    if whole == FAILED:
        return _alone(changes, runs)
    if (unrepeated := _unrepeated(everything, whole, runs)) is not None:
        return unrepeated
    if whole == FIRST:
        return Found(answer=Answer.ELSEWHERE, by=Variant(everything))
    return _explain(changes, whole, Answer.IN_PART, runs)


def _unrepeated(everything: frozenset[str], whole: str, runs: _Runs) -> Found | None:
    """Does the second attempt come to its own results again, and do equal changes have equal results?"""
    second, again = Variant(second=True), Variant(everything, repetition=1)
    wanted = (second, again) if whole != FIRST else (second,)
    results = runs.of(*wanted)
    if results[0] not in (SECOND, FAILED):
        return Found(answer=Answer.NOT_DETERMINISTIC, by=second)
    if whole != FIRST and results[1] != whole:
        return Found(answer=Answer.NOT_DETERMINISTIC, by=again)
    return None


def _alone(changes: list[Weighted], runs: _Runs) -> Found:
    """All changes together do not run: each is tried by itself, the likeliest first."""
    for change in changes:
        if runs.with_changes(frozenset({change.key})) == SECOND:
            parts = _parts(frozenset(), change, SECOND, runs)
            return _confirmed(Found(answer=Answer.EXPLAINED, changes=parts), SECOND, frozenset(), runs)
    return Found(answer=Answer.FAILED, by=Variant(frozenset(change.key for change in changes)))


def _explain(changes: list[Weighted], goal: str, answer: Answer, runs: _Runs) -> Found:
    everything = frozenset(change.key for change in changes)
    smallest = _smallest(changes, frozenset(), goal, runs)
    if runs.with_changes(frozenset(change.key for change in smallest)) != goal:
        smallest = _one_by_one(changes, goal, runs)  # changes work together in another way than halving takes them to
    found: list[str] = []
    for number, change in enumerate(smallest):
        others = frozenset(found) | frozenset(one.key for one in smallest[number + 1 :])
        found += _parts(others, change, goal, runs)
    if len(found) > 2:
        # Of causes that undo each other none can be left out, and another one may still be enough.
        results = runs.of(*(Variant(frozenset({key})) for key in found))
        enough = [
            (key, change) for key, change, result in zip(found, _owners(found, smallest), results, strict=True) if result == goal
        ]
        found, smallest = ([enough[0][0]], [enough[0][1]]) if enough else (found, smallest)
    rest = everything - {change.key for change in smallest}
    return _confirmed(Found(answer=answer, changes=tuple(found)), goal, rest, runs)


def _owners(keys: Sequence[str], changes: Sequence[Weighted]) -> list[Weighted]:
    """The change of each, which is the one itself or has it as a part."""
    return [next(change for change in changes if key == change.key or key in change.parts) for key in keys]


def _confirmed(found: Found, goal: str, rest: frozenset[str], runs: _Runs) -> Found:
    """Run what was found twice more, the first attempt once more, and everything else: of few results, runs agree by chance.

    A program that tosses a coin between two results passes with a probability of 1/64: three runs have one, three the other.
    """
    by = Variant(frozenset(found.changes))
    expected = {replace(by, repetition=1): goal, replace(by, repetition=2): goal, Variant(repetition=2): FIRST}
    results = runs.of(*expected, *([Variant(rest)] if rest else ()))
    for (variant, wanted), result in zip(expected.items(), results, strict=False):
        if result != wanted:
            return Found(answer=Answer.NOT_DETERMINISTIC, by=variant)
    return replace(found, by=by, nothing_else=results[-1] == FIRST if rest else None)


def _parts(others: frozenset[str], change: Weighted, goal: str, runs: _Runs) -> tuple[str, ...]:
    """Which parts of a change are enough, with `others`."""
    if not change.parts:
        return (change.key,)
    parts = [Weighted(part) for part in change.parts]
    if runs.with_changes(others | frozenset(change.parts)) != goal:
        return (change.key,)  # it is more than its parts
    smallest = frozenset(part.key for part in _smallest(parts, others, goal, runs))
    if runs.with_changes(others | smallest) != goal:
        return (change.key,)
    return tuple(part for part in change.parts if part in smallest)


def _smallest(changes: list[Weighted], with_these: frozenset[str], goal: str, runs: _Runs) -> list[Weighted]:
    """Those of `changes` that bring the goal together with `with_these`, if all of them do."""
    if len(changes) == 1:
        return changes
    one, two = _halves(changes)
    before = runs.results.get(Variant(with_these), FIRST if not with_these else FAILED)
    first = runs.with_changes(with_these | _keys(one))
    if first == goal:
        return _smallest(one, with_these, goal, runs)
    if first == before != FAILED:  # this half does nothing, so the other one does
        return _smallest(two, with_these, goal, runs)
    second = runs.with_changes(with_these | _keys(two))
    if second == goal:
        return _smallest(two, with_these, goal, runs)
    left = _smallest(one, with_these | _keys(two), goal, runs)
    return left + _smallest(two, with_these | _keys(left), goal, runs)


def _one_by_one(changes: list[Weighted], goal: str, runs: _Runs) -> list[Weighted]:
    """Leave out what can be left out, the least likely first."""
    left = list(changes)
    for change in reversed(changes):
        without = [one for one in left if one is not change]
        if without and runs.with_changes(_keys(without)) == goal:
            left = without
    return left


def _halves(changes: list[Weighted]) -> tuple[list[Weighted], list[Weighted]]:
    """The first ones, up to half of the weight, and the others."""
    half, weight = sum(change.weight for change in changes) / 2, 0.0
    for number, change in enumerate(changes[:-1], start=1):
        weight += change.weight
        if weight >= half:
            return changes[:number], changes[number:]
    return changes[:-1], changes[-1:]


def _keys(changes: Sequence[Weighted]) -> frozenset[str]:
    return frozenset(change.key for change in changes)

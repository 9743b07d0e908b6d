"""What differs between attempts, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from carrel.core.comparison.causes import Context, Judgement, judge
from carrel.core.comparison.command_text import mix_commands
from carrel.core.comparison.facts import Change, Known, Side, Value
from carrel.core.comparison.line_diff import counts, diff_lines
from carrel.core.comparison.reach import Reach, reach_of
from carrel.core.comparison.settings import setting_of
from carrel.core.domain.comparison import Cause, Kind

#: Files whose lines are compared.
MOST_FILES = 40
#: Things of a kind that are not known, up to which each is named.
_NAMED = 8
_CAUSES, _KINDS = list(Cause), list(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs for certain: at least two of the attempts are known to have it otherwise."""

    #: Its place in the list, from 1.
    rank: int
    kind: Kind
    #: Which parameter, file, package …
    path: str
    #: Both for people: "parameter lr".
    what: str
    #: What each attempt had, in their order.
    values: tuple[Value, ...]
    cause: Cause
    #: Why it stands there, in words.
    evidence: str
    #: Of a file: how it differs from that of the first attempt.
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """What cannot be compared, because some records lack it. It may be equal or not."""

    kinds: tuple[Kind, ...]
    #: "": everything of these kinds.
    path: str
    #: Of which attempts.
    labels: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer."""

    differences: tuple[Difference, ...]
    not_known: tuple[NotKnown, ...]
    #: In one sentence each: do results differ, and what to look at first.
    summary: tuple[str, ...]


def compare(sides: Sequence[Side]) -> Comparison:
    """Compare two attempts or more. The order of `sides` changes nothing but the order of values and what hunks start from."""
    sides = _with_files(sides)
    found = [(kind, path, values) for kind in Kind for path, values in _differing(kind, sides)]
    differ = {kind: frozenset(path for of, path, _ in found if of is kind) for kind in Kind}
    found = [one for one in found if not _told_elsewhere(one[0], one[1], sides, differ)]
    changes = _changes([path for kind, path, _ in found if kind is Kind.CODE and path], sides)
    context = Context(sides=sides, reaches=_reaches(sides, differ), differ=differ, changes=changes)
    judged = [(judge(kind, path, values, context), kind, path, values) for kind, path, values in found]
    result = Judgement(Cause.RESULT, "")
    judged += [(result, Kind.METRIC, name, _values(Kind.METRIC, name, sides)) for name in _parted(sides, differ)]
    steps = {name: _parting(name, sides) for _, kind, name, _ in judged if kind is Kind.METRIC}
    judged = [_with_step(one, steps) for one in judged]
    judged.sort(key=lambda one: (_CAUSES.index(one[0].cause), one[1] is Kind.ATTEMPT, _KINDS.index(one[1]), one[0].order, one[2]))
    differences = tuple(
        Difference(
            rank=rank, kind=kind, path=path, what=what_of(kind, path), values=values, cause=said.cause, evidence=said.evidence,
            changes=tuple(changes.get(path, ())) if kind is Kind.CODE else (),
        )
        for rank, (said, kind, path, values) in enumerate(judged, start=1)
    )  # fmt: skip
    lacking = tuple(_not_known(sides))
    return Comparison(differences=differences, not_known=lacking, summary=tuple(_summary(differences, lacking, sides)))


def _with_files(sides: Sequence[Side]) -> Sequence[Side]:
    """The same, with a digest beside the versions of packages that have none of their files in common: they are others."""
    others = {
        name
        for one, other in combinations(sides, 2)
        for name in one.package_files.keys() & other.package_files.keys()
        if one.package_files[name] and other.package_files[name] and not one.package_files[name] & other.package_files[name]
    }

    def named(side: Side) -> Side:
        section = side.section(Kind.PACKAGE)
        files = {name: min(side.package_files[name])[:19] for name in others if side.package_files.get(name)}
        values = {name: f"{text} ({files[name]})" if name in files else text for name, text in section.values.items()}
        return replace(side, sections={**side.sections, Kind.PACKAGE: replace(section, values=values)})

    versions = {name: {side.value(Kind.PACKAGE, name) for side in sides} for name in others}
    others = {name for name, found in versions.items() if len(found) == 1}
    return [named(side) for side in sides] if others else sides


def _values(kind: Kind, path: str, sides: Sequence[Side]) -> tuple[Value, ...]:
    return tuple(side.value(kind, path) for side in sides)


def _differing(kind: Kind, sides: Sequence[Side]) -> Iterator[tuple[str, tuple[Value, ...]]]:
    for path in sorted({path for side in sides for path in side.section(kind).values}):
        values = _values(kind, path, sides)
        if len({value for value in values if value.known is not Known.UNKNOWN}) > 1:
            yield path, values


def _told_elsewhere(kind: Kind, path: str, sides: Sequence[Side], differ: Mapping[Kind, frozenset[str]]) -> bool:
    """True for a whole whose parts are listed."""
    if kind is Kind.CODE and path == "":
        return len(differ[Kind.CODE]) > 1 and not any(side.code.missing for side in sides)
    if kind is Kind.ENVIRONMENT and path == "lock":
        known = all(not side.section(Kind.PACKAGE).missing for side in sides)
        return (known and bool(differ[Kind.PACKAGE])) or "image" in differ[Kind.ENVIRONMENT]
    if kind is Kind.COMMAND and path == "command line":
        return all(_same_but_parameters(*two) for two in combinations(sides, 2))
    if kind is Kind.INPUT:
        return any(other.startswith(f"{path}/") for other in differ[Kind.INPUT])
    # Another type, or none, is another GPU in any case.
    return kind is Kind.PLACEMENT and path in differ[Kind.GPU]


def _same_but_parameters(one: Side, other: Side) -> bool:
    """True when the commands differ only where values of parameters stand, which are listed by themselves."""
    values, others = one.section(Kind.PARAMETER).values, other.section(Kind.PARAMETER).values
    pairs = {name: (value, others[name]) for name, value in values.items() if others.get(name, value) != value}
    return not mix_commands(one.command, other.command, pairs, (), rest=False)[1]


# ---- code


def _reaches(sides: Sequence[Side], differ: Mapping[Kind, frozenset[str]]) -> list[Reach]:
    """What commands reach matters only where code, packages or variables differ."""
    return [reach_of(side) for side in sides] if any(differ[kind] for kind in (Kind.CODE, Kind.PACKAGE, Kind.VARIABLE)) else []


def _changes(paths: Sequence[str], sides: Sequence[Side]) -> dict[str, Sequence[Change]]:
    first = sides[0]
    found: dict[str, Sequence[Change]] = {}
    for number, path in enumerate(paths):
        others = [side for side in sides[1:] if _comparable(side, first, path)]
        found[path] = [_change(path, first, side, shown=number < MOST_FILES) for side in others]
    return found


def _comparable(side: Side, first: Side, path: str) -> bool:
    mine, theirs = side.value(Kind.CODE, path), first.value(Kind.CODE, path)
    return mine != theirs and Known.UNKNOWN not in (mine.known, theirs.known)


def _change(path: str, first: Side, side: Side, *, shown: bool) -> Change:
    if not shown:
        note = f"Only of {MOST_FILES} files lines are compared."
        return Change(label=side.label, added=0, removed=0, hunks=(), note=note)
    texts = [one.code.read(path) if path in one.code.files else "" for one in (first, side)]
    old, new = texts
    hunks = None if old is None or new is None else diff_lines(old, new)
    if hunks is None:
        why = "It is no text, or too long." if None in texts else "Too much of it differs to be shown."
        return Change(label=side.label, added=0, removed=0, hunks=(), note=why)
    added, removed = counts(hunks)
    note = "" if hunks else "Its lines are the same: its kind, its rights or its line ends differ."
    return Change(label=side.label, added=added, removed=removed, hunks=hunks, note=note)


# ---- curves


def _parted(sides: Sequence[Side], differ: Mapping[Kind, frozenset[str]]) -> list[str]:
    """Metrics whose last values are equal and whose curves are not."""
    names = {name for side in sides for name in side.curves} - differ[Kind.METRIC]
    return sorted(name for name in names if _parting(name, sides)[0] is not None)


def _parting(name: str, sides: Sequence[Side]) -> tuple[int | None, int]:
    """The first step at which the curves that are known differ, or None; and at how many steps all have a value."""
    curves = [side.curves[name] for side in sides if name in side.curves]
    if len(curves) < 2:
        return None, 0
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    parted = (step for step in common if any(not _same(curves[0][step], curve[step]) for curve in curves[1:]))
    return next(parted, None), len(common)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


_Judged = tuple[Judgement, Kind, str, tuple[Value, ...]]


def _with_step(one: _Judged, steps: Mapping[str, tuple[int | None, int]]) -> _Judged:
    said, kind, path, values = one
    if kind is not Kind.METRIC:
        return one
    step, common = steps[path]
    if step is not None:
        return replace(said, evidence=f"The curves part at step {step}.", order=0), kind, path, values
    if common:
        return replace(said, evidence=f"Equal at all {common} steps that they share; one goes on.", order=1), kind, path, values
    return one


# ---- what is not known


def _not_known(sides: Sequence[Side]) -> Iterator[NotKnown]:
    found: dict[tuple[str, str, tuple[str, ...]], list[Kind]] = {}
    for kind in Kind:
        reasons: dict[tuple[str, str], list[str]] = {}
        for side in sides:
            for path, why in _lacking(kind, side, sides):
                reasons.setdefault((path, why), []).append(side.label)
        for (path, why), lacking in sorted(reasons.items()):
            found.setdefault((path, why, tuple(lacking)), []).append(kind)
    for (path, why, labels), kinds in found.items():
        yield NotKnown(kinds=tuple(kinds), path=path, labels=labels, why=why)


def _lacking(kind: Kind, side: Side, sides: Sequence[Side]) -> Iterator[tuple[str, str]]:
    """What is not known of a side, by path, and why."""
    section = side.section(kind)
    yield from section.unknown.items()
    if not section.missing:
        return
    if kind is Kind.CODE and len({other.value(kind, "") for other in sides}) == 1:
        return  # the whole is equal, so nothing of it differs
    if not section.values or kind is Kind.CODE:
        yield "", section.missing
        return
    others = {path for other in sides for path in other.section(kind).values}
    lacks = sorted(others - section.values.keys() - section.unknown.keys())
    yield from ((path, section.missing) for path in (lacks if len(lacks) <= _NAMED else [""]))


# ---- in words


def _summary(differences: Sequence[Difference], lacking: Sequence[NotKnown], sides: Sequence[Side]) -> Iterator[str]:
    results = [one for one in differences if one.kind in (Kind.METRIC, Kind.OUTPUT)]
    known = any(sum(bool(side.section(kind).values) for side in sides) > 1 for kind in (Kind.METRIC, Kind.OUTPUT))
    if results:
        names = ", ".join(one.what for one in results[:3])
        more = f" and {len(results) - 3} more" if len(results) > 3 else ""
        yield f"Results differ: {names}{more}."
    elif known:
        yield "No result differs that is known of them."
    else:
        yield "Too few results are known to compare them."
    causes = [one for one in differences if one.cause is not Cause.RESULT]
    first = causes[0] if causes else None
    if first is None or first.cause is Cause.UNLIKELY:
        said = "Nothing that is likely to change results is known to differ."
        yield said + (" Some things are not known, and may differ." if lacking else "")
    else:
        yield f"First to look at: {first.what}. {first.evidence}"


def what_of(kind: Kind, path: str) -> str:
    """Return what a fact is about, in words: "parameter lr"."""
    if kind is Kind.SETTING:
        return setting_of(path).what
    if kind is Kind.VARIABLE:
        return f"environment variable {path}"
    return path if path.startswith(kind.value) else f"{kind.value} {path}".strip()

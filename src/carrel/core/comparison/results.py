"""Whether attempts came to the same results: to the last bit, within a tolerance, or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from carrel.core.comparison.facts import UNTRACKED, Curve, Known, Side
from carrel.core.domain.comparison import Agreement, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDifference:
    """A result that one attempt has otherwise than the first."""

    kind: Kind
    #: The path of an output, the name of a metric.
    path: str
    #: Of the attempt.
    label: str
    #: Of a metric: the first step at which it is further away than allowed; None: it has none, or other steps.
    step: int | None
    #: What the first attempt has there, and this one.
    expected: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The answer."""

    agreement: Agreement
    #: How many were compared.
    outputs: int
    metrics: int
    #: The largest distance of a metric's value from that of the first attempt, by the larger of both; 0: all are equal.
    distance: float
    #: In the order of steps; what has none comes last.
    differences: tuple[ResultDifference, ...]
    #: Why something is not known, in a sentence each.
    not_known: tuple[str, ...]


def agree(sides: Sequence[Side], *, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> Results:
    """Return whether the results of the others are those of the first attempt.

    `tolerance` is for metrics: how far a value may be from the first attempt's, by the larger of both. `ignore` are patterns
    (fnmatch) of outputs and metrics that do not count.
    """
    first, others = sides[0], sides[1:]
    outputs = [path for path in _paths(Kind.OUTPUT, sides) if not counts_not(path, ignore)]
    metrics = [name for name in _paths(Kind.METRIC, sides) if not counts_not(name, ignore)]
    found = [one for side in others for path in outputs for one in _of_output(path, first, side)]
    farthest = 0.0
    for side in others:
        for name in metrics:
            distance, differences = _of_metric(name, first, side, tolerance)
            farthest = max(farthest, distance)
            found += differences
    found.sort(key=lambda one: (one.step is None, one.step or 0, one.kind is Kind.OUTPUT, one.path))
    lacking = tuple(dict.fromkeys(_lacking(sides)))
    if found:
        agreement = Agreement.DIFFERENT
    elif lacking or not (outputs or metrics):
        agreement = Agreement.UNKNOWN
    else:
        agreement = Agreement.WITHIN_TOLERANCE if farthest else Agreement.IDENTICAL
    return Results(
        agreement=agreement,
        outputs=len(outputs),
        metrics=len(metrics),
        distance=farthest,
        differences=tuple(found),
        not_known=lacking,
    )


def _paths(kind: Kind, sides: Sequence[Side]) -> list[str]:
    return sorted({path for side in sides for path in side.section(kind).values})


def counts_not(path: str, patterns: Sequence[str]) -> bool:
    """True for an output or a metric that one of the patterns leaves out."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _of_output(path: str, first: Side, side: Side) -> Iterator[ResultDifference]:
    expected, found = first.value(Kind.OUTPUT, path), side.value(Kind.OUTPUT, path)
    if expected != found and Known.UNKNOWN not in (expected.known, found.known):
        yield ResultDifference(
            kind=Kind.OUTPUT, path=path, label=side.label, step=None, expected=expected.text or "none", found=found.text or "none"
        )


def _of_metric(name: str, first: Side, side: Side, tolerance: float) -> tuple[float, list[ResultDifference]]:
    """The largest distance, and the first value that is too far away."""
    mine, theirs = _curve(name, first), _curve(name, side)
    if mine is None or theirs is None:
        return 0.0, []
    farthest = 0.0
    for step in sorted(mine.keys() | theirs.keys(), key=lambda step: (step is None, step or 0)):
        if step not in mine or step not in theirs:
            expected, found = (str(curve.get(step, "none")) for curve in (mine, theirs))
            return farthest, [_metric(name, side, step, expected, found)]
        away = distance(mine[step], theirs[step])
        if away > tolerance:
            return max(farthest, away), [_metric(name, side, step, repr(mine[step]), repr(theirs[step]))]
        farthest = max(farthest, away)
    return farthest, []


def _metric(name: str, side: Side, step: int | None, expected: str, found: str) -> ResultDifference:
    return ResultDifference(kind=Kind.METRIC, path=name, label=side.label, step=step, expected=expected, found=found)


def _curve(name: str, side: Side) -> Mapping[int | None, float] | None:
    """Its values by step; the last one alone, under no step, where the steps were not read; None: not known."""
    curve: Curve | None = side.curves.get(name)
    if curve is not None:
        return {step: value for step, value in curve.items()}  # noqa: C416 - with None beside the steps
    value = side.value(Kind.METRIC, name)
    if value.known is Known.UNKNOWN:
        return None
    return {} if value.known is Known.ABSENT else {None: float(value.text)}


def distance(one: float, other: float) -> float:
    """How far two values are apart, by the larger of both: 0 for equal ones, infinite where one alone is a number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if math.isfinite(one) and math.isfinite(other) else math.inf


def _lacking(sides: Sequence[Side]) -> Iterator[str]:
    """Metrics of a lab without a tracking server are no lack: nobody has any."""
    some = bool(_paths(Kind.METRIC, sides))
    for side in sides:
        for kind in (Kind.OUTPUT, Kind.METRIC):
            section = side.section(kind)
            for why in dict.fromkeys([section.missing, *section.unknown.values()]):
                if why and (some or why != UNTRACKED):
                    yield f"Not all {kind.value}s of job {side.label} are known: {why}"

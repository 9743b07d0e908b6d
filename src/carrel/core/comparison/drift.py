"""How an attempt stands beside the one that is the baseline of its project: results first, then what they ran with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from carrel.core.comparison.compare import Difference, compare
from carrel.core.comparison.facts import Known, Side, Value
from carrel.core.comparison.results import agree, counts_not
from carrel.core.domain.baseline import MOST_NAMED, Drift, Moved
from carrel.core.domain.comparison import Cause, Kind

_MAY_MATTER = (Cause.LIKELY, Cause.POSSIBLE)


def drift_of(baseline: Side, side: Side, *, tolerance: float = 0.0, ignore: Sequence[str] = ()) -> Drift:
    """Return how `side` stands beside the baseline; `tolerance` and `ignore` as `agree` has them."""
    results = agree([baseline, side], tolerance=tolerance, ignore=ignore)
    differences = compare([baseline, side]).differences
    outputs = [one.path for one in results.differences if one.kind is Kind.OUTPUT]
    return Drift(
        agreement=results.agreement,
        tolerance=tolerance,
        outputs=results.outputs,
        metrics=results.metrics,
        step=min((one.step for one in results.differences if one.step is not None), default=None),
        moved_metrics=tuple(_metrics(baseline, side, ignore))[:MOST_NAMED],
        moved_outputs=tuple(outputs[:MOST_NAMED]),
        python=side.value(Kind.ENVIRONMENT, "python").text if side.section(Kind.ENVIRONMENT).values.get("python") else "",
        machine=_machine(side),
        packages=tuple(_moved(one, one.path) for one in differences if one.kind is Kind.PACKAGE)[:MOST_NAMED],
        others=tuple(_moved(one, one.what) for one in differences if _is_told(one))[:MOST_NAMED],
        not_known=results.not_known,
    )


def _is_told(one: Difference) -> bool:
    if one.kind in (Kind.PACKAGE, Kind.METRIC, Kind.OUTPUT):
        return False
    where = one.kind in (Kind.GPU, Kind.MACHINE) or (one.kind is Kind.PLACEMENT and one.path == "node")
    return where or one.cause in _MAY_MATTER


def _moved(one: Difference, what: str) -> Moved:
    before, after = (_text(value) for value in one.values)
    return Moved(what=what, before=before, after=after)


def _text(value: Value) -> str:
    return value.text if value.known is Known.VALUE else "none" if value.known is Known.ABSENT else "not known"


def _metrics(baseline: Side, side: Side, ignore: Sequence[str]) -> Iterator[Moved]:
    names = sorted({name for one in (baseline, side) for name in one.section(Kind.METRIC).values})
    for name in names:
        before, after = baseline.value(Kind.METRIC, name), side.value(Kind.METRIC, name)
        if before == after or Known.UNKNOWN in (before.known, after.known) or counts_not(name, ignore):
            continue
        yield Moved(what=name, before=_text(before), after=_text(after), relative=_relative(before, after))


def _relative(before: Value, after: Value) -> float | None:
    if Known.ABSENT in (before.known, after.known):
        return None
    old, new = float(before.text), float(after.text)
    change = (new - old) / abs(old) if old and math.isfinite(old) else math.nan
    return change if math.isfinite(change) else None


def _machine(side: Side) -> str:
    """Type of its GPUs with the driver, or the processor."""
    gpus, facts = side.section(Kind.GPU).values, side.section(Kind.MACHINE).values
    if not gpus:
        return facts.get("cpu", "")
    types = sorted(set(gpus.values()))
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    driver = f", driver {facts['gpu_driver']}" if "gpu_driver" in facts else ""
    return f"{count}{' and '.join(types)}{driver}"

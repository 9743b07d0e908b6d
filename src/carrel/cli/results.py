"""Whether results are those of another job, on a terminal: for all commands that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.options import option
from carrel.cli.screen import clean, paint
from carrel.cli.words import short_digest
from carrel.core.domain.units import format_count

if TYPE_CHECKING:
    from carrel.core.comparison import Results
    from carrel.wire.v1 import ResultsView

Tolerance = Annotated[
    float, typer.Option("--tolerance", metavar="X", min=0.0, max=1.0, help="How far a metric may be away, such as 1e-6.")
]
Ignore = Annotated[list[str] | None, option("--ignore", "PATTERN", "What does not count, such as '*.log'; may be repeated.")]
#: Differences that are printed.
_SHOWN = 20


def compared_text(found: ResultsView | Results) -> str:
    """What was compared; of metrics nothing where none are known, since the program may have told some in another way."""
    counted = ((found.outputs, "output"), (found.metrics, "metric"))
    return " and ".join(format_count(count, what) for count, what in counted if count) or "no results"


def answer_lines(found: ResultsView | Results, *, of: str, original: str, tolerance: float, unknown: str) -> Iterator[str]:
    """Whether the results `of` somebody are those of the `original`, and how they differ; `unknown`: why nobody can say."""
    compared = compared_text(found)
    match found.agreement.value:
        case "identical":
            yield paint(f"Bit-identical to {original}: {compared} of {of}.", "green")
        case "within tolerance":
            yield paint(f"Within the tolerance: {compared} of {of}.", "green")
            yield f"Outputs are equal. A metric is away by up to {found.distance:.2g} of its value ({tolerance:g} allowed)."
        case "different":
            steps = [one.step for one in found.differences if one.step is not None]
            since = f" from step {min(steps)} on" if steps else ""
            yield paint(f"Different{since}: not all results are those of {original} ({compared}).", "red")
        case _:
            yield paint(f"Unknown: too little is known of the results.{f' {unknown}' if unknown else ''}", "yellow")
    for one in found.differences[:_SHOWN]:
        job = f"job {one.job}: " if hasattr(one, "job") else ""
        step = "" if one.step is None else f" at step {one.step}"
        yield clean(f"  {job}{one.kind.value} {one.path}{step}: {short_digest(one.found)}, not {short_digest(one.expected)}")
    if len(found.differences) > _SHOWN:
        yield f"  and {len(found.differences) - _SHOWN} more (--json has all)"
    yield from map(clean, found.not_known)

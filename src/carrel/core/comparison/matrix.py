"""The cases of a matrix: one job under several seeds, each run again in another way, and how far the results move.

The usual cases are those by which the Neuronix cluster asks whether an experiment can be repeated: the same processor, a
processor beside a GPU, and another order of the data ("Issues in the Reproducibility of Deep Learning Results", NSF PAR
10199663). How far seeds move a metric is the measure for the others: Bouthillier and others, "Accounting for Variance in Machine
Learning Benchmarks", MLSys 2021.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from carrel.core.comparison.results import distance
from carrel.core.domain.comparison import Agreement
from carrel.core.domain.errors import Invalid
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec

_CPUS = re.compile(r"cpus=([1-9][0-9]{0,3})")
#: Runs of which the others differ in one thing.
SEED = "seed"
AGAIN, DEVICE, ORDER = "again", "device", "order"
USUAL = (AGAIN, DEVICE, ORDER)


@dataclass(frozen=True, slots=True)
class MatrixRun:
    """One run: under a seed, in the way of a case."""

    case: str
    seed: int


def check_cases(cases: Sequence[str]) -> tuple[str, ...]:
    """Return the cases, each once. Raises `Invalid` for one that there is not."""
    for case in cases:
        if case not in USUAL and not _CPUS.fullmatch(case):
            raise Invalid(f'"{case[:40]}" is no case.', remedy=f"There are: {', '.join(USUAL)}, and cpus=N.")
    return tuple(dict.fromkeys(cases))


def runs_of(cases: Sequence[str], seeds: Sequence[int]) -> Sequence[MatrixRun]:
    """Return all runs. Another order is that of the next seed, which has a run of its own for the last."""
    further = [seeds[-1] + 1] if ORDER in cases else []
    return [MatrixRun(SEED, seed) for seed in (*seeds, *further)] + [MatrixRun(case, seed) for case in cases for seed in seeds]


def title_of(case: str, gpus: int) -> str:
    """The case in words; `gpus` are those of the job."""
    if match := _CPUS.fullmatch(case):
        return f"{match[1]} processor{'s' if match[1] != '1' else ''}"
    device = "without a GPU" if gpus else "with a GPU"
    return {SEED: "another seed", AGAIN: "the same again", DEVICE: device, ORDER: "another order of samples"}[case]


def run_task(task: TaskSpec, resources: Resources, run: MatrixRun, *, order_of: int | None) -> tuple[TaskSpec, Resources]:
    """Return what is submitted for a run; `order_of` is the job of the next seed, once it is there."""
    made = replace(
        task, deterministic_seed=run.seed, order="record" if run.case != ORDER else str(order_of), sweep=None, trial=None,
        step=None, tracking=None, rerun_of=None,
    )  # fmt: skip
    if match := _CPUS.fullmatch(run.case):
        return made, replace(resources, cpus=int(match[1]))
    if run.case == DEVICE:
        return made, replace(resources, gpus=0 if resources.gpus else 1, gpu_type=None, gpu_memory=0)
    return made, resources


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """What came of a case. Values are of the metric at its end."""

    case: str
    title: str
    #: Runs that are COMPLETED, and how many there are.
    done: int
    runs: int
    #: Of those that could be compared with the run of the same seed, how many have its results to the last bit.
    identical: int
    compared: int
    #: By seed; None: not known.
    values: tuple[float | None, ...]
    mean: float | None
    #: Sample standard deviation over seeds; None with fewer than two values.
    deviation: float | None
    #: How far a value is from that of the same seed, by the larger of both, at the most; of another seed, the two farthest.
    farthest: float | None
    #: Why there is nothing to say, or "".
    message: str = ""


def row(
    case: str,
    title: str,
    values: Sequence[float | None],
    base: Sequence[float | None],
    agreements: Sequence[Agreement | None],
    *,
    done: int,
    message: str = "",
) -> MatrixRow:
    """Return the row of a case; `values` and `base` by seed, `agreements` with the run of the same seed."""
    known = [value for value in values if value is not None]
    pairs = [(one, other) for one, other in zip(values, base, strict=True) if one is not None and other is not None]
    if case == SEED:
        pairs = [(min(known), max(known))] if len(known) > 1 else []
    told = [one for one in agreements if one not in (None, Agreement.UNKNOWN)]
    return MatrixRow(
        case=case,
        title=title,
        done=done,
        runs=len(values),
        identical=sum(one is Agreement.IDENTICAL for one in told),
        compared=len(told),
        values=tuple(values),
        mean=fmean(known) if known else None,
        deviation=stdev(known) if len(known) > 1 else None,
        farthest=max((distance(one, other) for one, other in pairs), default=None),
        message=message,
    )

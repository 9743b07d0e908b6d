"""What is reported: one trace under several policies, and weeks of notebooks in several modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.simulate import measures
from carrel.simulate.baselines import Piece
from carrel.simulate.notebooks.result import ModeResult, Waits
from carrel.simulate.outcome import Outcome
from carrel.simulate.together.result import Together
from carrel.simulate.trace import Trace

#: Whose waits are reported of notebooks: those of the cells that had to ask, and so are all waits that GPUs are counted for.
NOTEBOOK_WAITS = Waits.REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRow:
    """One mode, and how many GPUs it takes until requests hardly wait."""

    #: With as many GPUs as the modes are compared on.
    result: ModeResult
    #: GPUs with which 95 of 100 requests do not wait; None when it was not looked for.
    gpus_without_waits: int | None = None
    #: GPUs with which 95 of 100 requests wait for a minute at most; None when it was not looked for.
    gpus_for_a_minute: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that a report is made of."""

    title: str
    #: What was simulated; a trace without jobs where only notebooks are compared.
    trace: Trace
    cluster_gpus: int
    #: One a policy, in the order of the report.
    outcomes: Sequence[Outcome] = ()
    #: One a mode, in the order of the report.
    notebooks: Sequence[NotebookRow] = ()
    #: One a mode of notebooks and tasks on the same GPUs, in the order of the report; the first is what others are compared with.
    together: Sequence[Together] = ()
    #: What else a reader has to know to do it again: seed, options, version. Names and values, in the order of the report.
    facts: Mapping[str, str] = field(default_factory=dict)
    #: By policy: in which pieces its jobs ran. Without, use over time is estimated where jobs were stopped on the way.
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    #: Seconds from submission to end of each job on an equal part of the GPUs for its user (`equal_part`); None: not known.
    alone: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        _refuse_twice("policy", (outcome.policy for outcome in self.outcomes))
        _refuse_twice("notebook mode", (row.result.mode for row in self.notebooks))
        _refuse_twice("mode", (one.mode for one in self.together))
        policies = [outcome.policy for outcome in self.outcomes]
        for policy in self.pieces:
            if policy not in policies:
                raise Invalid(
                    f"There are pieces of {policy!r} and no outcome.",
                    remedy=f"Give pieces of: {', '.join(policies) or 'nothing'}.",
                )
        if not self.outcomes and not self.notebooks and not self.together:
            raise Invalid("There is nothing to report.", remedy="Give one outcome or one mode, or more.")

    def measures(self) -> Sequence[measures.Measures]:
        """What each outcome is judged by, in their order."""
        return [
            measures.measure(outcome, self.trace, pieces=self.pieces.get(outcome.policy), alone=self.alone)
            for outcome in self.outcomes
        ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain data with the units in the names: all that the report has in numbers."""
    return {
        "title": comparison.title,
        "trace": {
            "name": comparison.trace.name,
            "jobs": len(comparison.trace.jobs),
            "notes": list(comparison.trace.notes),
        },
        "gpus": comparison.cluster_gpus,
        "facts": dict(comparison.facts),
        "policies": [
            {**measures.as_json(one), "refusals": _refusals(outcome)}
            for one, outcome in zip(comparison.measures(), comparison.outcomes, strict=True)
        ],
        "notebooks": [_row_as_json(row) for row in comparison.notebooks],
        "together": [_together_as_json(one, comparison.together[0]) for one in comparison.together],
    }


def _refusals(outcome: Outcome) -> list[dict[str, Any]]:
    """Why jobs could never start, the most frequent reason first."""
    return [{"reason": why, "jobs": many} for why, many in Counter(why for _, why in outcome.refused).most_common()]


def _row_as_json(row: NotebookRow) -> dict[str, Any]:
    result = row.result
    waits = measures.spread(result.waits(NOTEBOOK_WAITS))
    return {
        "mode": result.mode,
        "gpus": result.gpus,
        "gpus_for_p95_wait_of_0_seconds": row.gpus_without_waits,
        "gpus_for_p95_wait_of_60_seconds": row.gpus_for_a_minute,
        "request_wait_seconds": None if waits is None else measures.spread_as_json(waits),
        "gpu_hours_of_cells": result.gpu_hours_of_cells,
        "gpu_hours_held": result.gpu_hours_held,
        "acquisitions": result.acquisitions,
        "fresh_starts": result.fresh_starts,
        "warm_starts": result.warm_starts,
        "cold_starts": result.cold_starts,
        "lost_states": result.lost_states,
        "evictions": result.evictions,
        "pauses": result.pauses,
        "swap_seconds": result.swap_seconds,
        "paused_seconds": result.paused_seconds,
    }


def _together_as_json(one: Together, first: Together) -> dict[str, Any]:
    waits = measures.spread([cell.wait for cell in one.cells])
    return {
        "mode": one.mode,
        "gpus": one.gpus,
        "seconds": one.seconds,
        "busy": one.busy,
        "gpu_hours_of_cells": one.cell_hours,
        "gpu_hours_of_tasks": one.task_hours,
        "gpu_hours_recovered": one.recovered(first),
        "gpu_hours_of_moves": one.move_hours,
        "cell_wait_seconds": None if waits is None else measures.spread_as_json(waits),
        "cells": len(one.cells),
        "cells_over": one.cells_over,
        "cell_slowdown": one.cell_slowdown,
        "cell_slowdown_by_time": one.cell_stretch,
        "cell_pauses": one.cell_pauses,
        "tasks": len(one.tasks),
        "tasks_over": one.tasks_over,
        "task_slowdown": one.task_slowdown,
        "task_slowdown_by_time": one.task_stretch,
        "task_pauses": one.task_pauses,
        "task_pauses_each": one.pauses_each,
    }


def _refuse_twice(noun: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise Invalid(f"There are {count} outcomes of the {noun} {name!r}.", remedy="Give each a name of its own.")

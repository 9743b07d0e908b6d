"""Other rules for recorded jobs, simulated in a process of its own: it can take neither the lab's time nor its memory."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.measures import percentile, utilisation
from carrel.simulate.study import MOVE_TIME
from carrel.simulate.trace import Outcome, Run, Trace

#: Seconds that both simulations together may take, and bytes of memory.
TIME_LIMIT, MEMORY_LIMIT = 60, 2 * 1024**3


def compare(trace: Trace, nodes: tuple[Node, ...], before: LabRules, after: LabRules) -> dict[str, Any]:
    """By class of service and by user: jobs, and the measures of them under both rules."""
    notes: list[str] = []
    outcomes = [
        simulate_lab(rules, trace, nodes, policy=name, note=notes.append, move=MOVE_TIME)
        for name, rules in (("now", before), ("then", after))
    ]
    jobs = {job.id: job for job in trace.jobs}
    return {
        "notes": notes,
        "all": _rows(outcomes, lambda _number: "all"),
        "qos": _rows(outcomes, lambda number: jobs[number].qos or before.default_qos),
        "users": _rows(outcomes, lambda number: jobs[number].user),
    }


def _rows(outcomes: Sequence[Outcome], name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """A row for each name, those with most jobs first."""
    now, then = (_measured(outcome, name_of) for outcome in outcomes)
    rows = [{"name": name, "now": one, "then": then[name]} for name, one in now.items()]
    return sorted(rows, key=lambda row: (-row["now"]["jobs"] - row["now"]["refused"], row["name"]))


def _measured(outcome: Outcome, name_of: Callable[[int], str]) -> dict[str, dict[str, Any]]:
    runs: dict[str, list[Run]] = {}
    refused: dict[str, int] = {}
    for run in outcome.runs:
        runs.setdefault(name_of(run.id), []).append(run)
    for number, _why in outcome.refused:
        refused[name_of(number)] = refused.get(name_of(number), 0) + 1
    begin = min((run.submitted for run in outcome.runs), default=0.0)
    end = max((run.end for run in outcome.runs), default=0.0)
    return {name: _measures(outcome, runs.get(name, []), refused.get(name, 0), begin, end) for name in {**runs, **refused}}


def _measures(outcome: Outcome, runs: Sequence[Run], refused: int, begin: float, end: float) -> dict[str, Any]:
    waits = [run.wait for run in runs]
    own = Outcome(policy=outcome.policy, trace=outcome.trace, gpus=outcome.gpus, runs=runs)
    return {
        "jobs": len(runs),
        "refused": refused,
        "mean_wait_seconds": sum(waits) / len(waits) if waits else None,
        "p95_wait_seconds": percentile(waits, 0.95) if waits else None,
        "utilisation": utilisation(own, begin, end),
    }


def main() -> None:
    """Read what is asked for as the lab has pickled it, and print what comes out as JSON."""
    signal.alarm(TIME_LIMIT + 5)  # also when the lab was killed
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        json.dump(compare(*pickle.load(sys.stdin.buffer)), sys.stdout)
    except Invalid as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

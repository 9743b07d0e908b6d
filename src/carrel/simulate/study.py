"""What `carrel simulate` does: work under the lab's own rules beside EASY, before and after a change, or notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from carrel.core.domain.lease import Residency
from carrel.core.domain.node import Node
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.core.domain.units import format_count
from carrel.simulate.composed import LayoutMeasures
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.lab import simulate_lab
from carrel.simulate.measures import Measures, Spread, measure, spread
from carrel.simulate.notebooks.by_policy import check, gpus_needed, simulate
from carrel.simulate.notebooks.cells import NotebookSession
from carrel.simulate.trace import Outcome, Trace

CARREL, EASY = "carrel", "easy"
#: The lab's own scheduler with nothing in it but the order of submission and EASY backfill.
EASY_RULES = LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0)
#: Seconds for which a job that was stopped has its GPUs before it goes on, where nothing else is said: 80 GB of state go to host
#: memory and come back by the driver's checkpoint.
MOVE_TIME = 60.0
#: Told what is simulated now, and the share of everything that is done.
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookMeasures:
    """How it went for notebooks, by the names of the JSON. Waits are those of cells, without the moving of state."""

    mode: str
    #: GPUs that there were.
    gpus: int
    #: With so many GPUs 95 of 100 cells get theirs at once, or within a minute.
    gpus_for_p95_wait_of_0_seconds: int
    gpus_for_p95_wait_of_60_seconds: int
    request_wait_seconds: Spread | None
    gpu_hours_of_cells: float
    gpu_hours_held: float
    acquisitions: int
    fresh_starts: int
    warm_starts: int
    cold_starts: int
    evictions: int
    pauses: int
    swap_seconds: float
    paused_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything that is reported."""

    title: str
    trace: Trace
    gpus: int
    #: One a policy.
    policies: Sequence[Measures] = ()
    #: By policy: jobs that could never start, with the reason.
    refused: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict)
    notebooks: Sequence[NotebookMeasures] = ()
    layouts: Sequence[LayoutMeasures] = ()
    #: What else a reader has to know to do it again.
    facts: Mapping[str, str] = field(default_factory=dict)


def compare_policies(
    trace: Trace,
    nodes: tuple[Node, ...],
    rules: LabRules,
    *,
    facts: Mapping[str, str],
    progress: Progress,
    move: float = MOVE_TIME,
) -> Comparison:
    """Run `trace` under EASY and under the lab's `rules`; who was stopped has its GPUs for `move` seconds before it goes on."""
    gpus = sum(len(node.devices) for node in nodes)
    title = f"{trace.name}, on {format_count(gpus, 'GPU')}"
    return _compare(title, trace, {EASY: (nodes, EASY_RULES), CARREL: (nodes, rules)}, facts, progress, move)


def compare_change(
    trace: Trace,
    before: tuple[tuple[Node, ...], LabRules],
    after: tuple[tuple[Node, ...], LabRules],
    change: str,
    *,
    facts: Mapping[str, str],
    progress: Progress,
    move: float = MOVE_TIME,
) -> Comparison:
    """Run `trace` under the lab's own policy twice, with these nodes and rules; `change` says what is different."""
    gpus = sum(len(node.devices) for node in before[0])
    title = f"What if {change}: {trace.name}, on {format_count(gpus, 'GPU')}"
    return _compare(title, trace, {f"{CARREL} now": before, f"{CARREL} with {change}": after}, facts, progress, move)


def _compare(
    title: str,
    trace: Trace,
    runs: Mapping[str, tuple[tuple[Node, ...], LabRules]],
    facts: Mapping[str, str],
    progress: Progress,
    move: float,
) -> Comparison:
    notes, outcomes = list(trace.notes), list[Outcome]()
    for number, (label, (nodes, rules)) in enumerate(runs.items()):
        told = _part(progress, label, number, len(runs))
        outcomes.append(simulate_lab(rules, trace, nodes, policy=label, progress=told, note=notes.append, move=move))
    # The same part for all, or a change of the machines would change what is fair.
    alone = completions_alone(trace, outcomes[0].gpus)
    return Comparison(
        title=title,
        trace=replace(trace, notes=notes),
        gpus=outcomes[0].gpus,
        policies=[measure(outcome, trace, alone=alone) for outcome in outcomes],
        refused={outcome.policy: outcome.refused for outcome in outcomes},
        facts=facts,
    )


def compare_notebooks(
    trace: Trace,
    sessions: Sequence[NotebookSession],
    *,
    homes_move: bool,
    facts: Mapping[str, str],
    progress: Progress,
    gpus: int | None = None,
) -> Comparison:
    """Run notebooks on `gpus` GPUs that the broker's own policy lends, and count how many they need.

    Without `gpus` on the fewest with which 95 of 100 cells wait for a minute at most. With `homes_move` a state in host memory
    comes back on any GPU. Raises `Invalid` when there are no sessions, and when one needs more than `gpus`.
    """
    if gpus is not None:
        check(sessions, gpus)
    told = _part(progress, CARREL, 0, 1)
    told(0.0)
    none = gpus_needed(sessions, p95_wait=0.0, homes_move=homes_move)
    told(0.5)
    minute = gpus_needed(sessions, p95_wait=60.0, homes_move=homes_move, near=none)
    count = minute if gpus is None else gpus
    week = simulate(sessions, count, homes_move=homes_move)
    told(1.0)
    where = "any GPU" if homes_move else "the GPUs that it left, and no others"
    note = f"A state in host memory comes back on {where}."
    found = Counter(cell.found for cell in week.cells)
    row = NotebookMeasures(
        mode=CARREL,
        gpus=count,
        gpus_for_p95_wait_of_0_seconds=none,
        gpus_for_p95_wait_of_60_seconds=minute,
        request_wait_seconds=spread([cell.wait for cell in week.cells]),
        gpu_hours_of_cells=sum(session.gpus * sum(session.computes) for session in sessions) / 3600,
        gpu_hours_held=sum(held.gpus * (held.end - held.start) for held in week.held) / 3600,
        acquisitions=len(week.held),
        fresh_starts=found[Residency.NONE],
        warm_starts=found[Residency.RESIDENT],
        cold_starts=found[Residency.SUSPENDED],
        evictions=week.evictions,
        pauses=week.pauses,
        swap_seconds=sum(cell.swap for cell in week.cells),
        paused_seconds=sum(cell.paused for cell in week.cells),
    )
    return Comparison(
        title=f"Notebooks of {trace.name}, on {format_count(count, 'GPU')}",
        trace=replace(trace, notes=(*trace.notes, note)),
        gpus=count,
        notebooks=[row],
        facts={**facts, "Sessions": f"{len(sessions):,}"},
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """Plain data with the units in the names. The most frequent reasons why jobs could never start come first."""
    return {
        "title": found.title,
        "trace": {"name": found.trace.name, "jobs": len(found.trace.jobs), "notes": list(found.trace.notes)},
        "gpus": found.gpus,
        "facts": dict(found.facts),
        "policies": [{**asdict(one), "refusals": _refusals(found.refused[one.policy])} for one in found.policies],
        "notebooks": [asdict(one) for one in found.notebooks],
        "layouts": [asdict(one) for one in found.layouts],
    }


def as_rows(found: Comparison) -> Sequence[Mapping[str, object]]:
    """A row for each policy, or for the notebooks, with the names of the JSON; users and reasons are left out."""
    return [
        {
            name: value
            for key, each in asdict(one).items()
            if key != "users"
            for name, value in (
                [(f"{key}_{part.name}", None if each is None else each[part.name]) for part in fields(Spread)]
                if key in _SPREADS
                else [(key, each)]
            )
        }
        for one in found.policies or found.notebooks or found.layouts
    ]


_SPREADS = ("wait_seconds", "completion_seconds", "bounded_slowdown", "request_wait_seconds")


def _refusals(refused: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"reason": why, "jobs": many} for why, many in Counter(why for _, why in refused).most_common()]


def _part(progress: Progress, what: str, number: int, of: int) -> Callable[[float], None]:
    """Tell of one part as of a part of the whole."""
    return lambda done: progress(what, (number + done) / of)

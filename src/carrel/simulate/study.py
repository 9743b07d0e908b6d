"""What `carrel simulate` does: one trace under several policies, before and after a change, or notebooks in several modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carrel.core.domain.node import Node
from carrel.core.domain.rules import LabRules
from carrel.simulate.baselines import Piece
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.lab import simulate_lab
from carrel.simulate.notebooks.fit import WEEK
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.notebooks.modes import (
    EAGER,
    LAZY,
    RESERVATION,
    PolicyMode,
    PoolMode,
    Waits,
    check,
    cull,
    gpus_needed,
    simulate,
)
from carrel.simulate.notebooks.modes import (
    Mode as NotebookMode,
)
from carrel.simulate.outcome import Outcome
from carrel.simulate.policies import CARREL, MOVE_TIME, run_policy
from carrel.simulate.report import Comparison, NotebookRow, words
from carrel.simulate.together.mode import MODES as TOGETHER
from carrel.simulate.together.mode import Lent, Mode, States
from carrel.simulate.together.study import simulate_together
from carrel.simulate.trace import Trace

#: Told what is simulated now, and the share of everything that is done.
Progress = Callable[[str, float], None]
#: Modes of notebooks that are compared.
MODES: Sequence[PoolMode] = (RESERVATION, cull(30), cull(120), EAGER, LAZY)


def _silent(_what: str, _done: float) -> None:
    """Nobody looks."""


def compare_policies(
    trace: Trace,
    nodes: tuple[Node, ...],
    rules: LabRules,
    policies: Sequence[str],
    *,
    facts: Mapping[str, str],
    progress: Progress = _silent,
    move: float = MOVE_TIME,
) -> Comparison:
    """Run `trace` under each of `policies`; who was stopped has its GPUs for `move` seconds before it goes on.

    Raises `Invalid` for a policy that there is not.
    """
    outcomes, pieces, notes = [], {}, list(trace.notes)
    for number, policy in enumerate(policies):
        ran: list[Piece] = []
        told = _part(progress, policy, number, len(policies))
        outcome = run_policy(policy, trace, nodes, rules, progress=told, pieces=ran.append, note=notes.append, move=move)
        outcomes.append(outcome)
        if ran:
            pieces[policy] = ran
    gpus = sum(len(node.devices) for node in nodes)
    title = f"{trace.name}, on {words.count(gpus, 'GPU')}"
    trace = replace(trace, notes=notes)
    alone = completions_alone(trace, gpus)
    return Comparison(title=title, trace=trace, cluster_gpus=gpus, outcomes=outcomes, pieces=pieces, facts=facts, alone=alone)


def compare_change(
    trace: Trace,
    before: tuple[tuple[Node, ...], LabRules],
    after: tuple[tuple[Node, ...], LabRules],
    change: str,
    *,
    facts: Mapping[str, str],
    progress: Progress = _silent,
    move: float = MOVE_TIME,
) -> Comparison:
    """Run `trace` under the lab's own policy twice, with these nodes and rules; `change` says what is different."""
    outcomes: list[Outcome] = []
    notes = list(trace.notes)
    for number, ((nodes, rules), label) in enumerate(((before, f"{CARREL} now"), (after, f"{CARREL} with {change}"))):
        told = _part(progress, label, number, 2)
        outcomes.append(simulate_lab(rules, trace, nodes, policy=label, progress=told, note=notes.append, move=move))
    title = f"What if {change}: {trace.name}, on {words.count(outcomes[0].gpus, 'GPU')}"
    trace = replace(trace, notes=notes)
    # The same part for both, or a change of the machines would change what is fair.
    alone = completions_alone(trace, outcomes[0].gpus)
    return Comparison(title=title, trace=trace, cluster_gpus=outcomes[0].gpus, outcomes=outcomes, facts=facts, alone=alone)


def compare_notebooks(
    trace: Trace,
    sessions: Sequence[NotebookSession],
    *,
    facts: Mapping[str, str],
    gpus: int | None = None,
    modes: Sequence[PoolMode] = MODES,
    broker: PolicyMode | None = None,
    progress: Progress = _silent,
) -> Comparison:
    """Run notebooks in each mode on `gpus` GPUs, and count how many each mode needs; last as the `broker` of a node lends.

    Without `gpus` on the fewest with which some mode keeps 95 of 100 requests at a minute or less. Raises `Invalid` when there
    are no sessions, and when one needs more than `gpus`.
    """
    if gpus is not None:
        check(sessions, gpus)
    needs: list[tuple[int, int]] = []
    everything: Sequence[NotebookMode] = modes if broker is None else (*modes, broker)
    for number, mode in enumerate(everything):
        told = _part(progress, mode.name, number, len(everything))
        told(0.0)
        # What few GPUs do to the broker takes long to simulate: it needs about as many as the best of the others.
        near = min(needs) if isinstance(mode, PolicyMode) and needs else (None, None)
        none = gpus_needed(sessions, mode, p95_wait=0.0, near=near[0])
        told(0.5)
        needs.append((none, gpus_needed(sessions, mode, p95_wait=60.0, near=near[1])))
        told(1.0)
    count = min(minute for _, minute in needs) if gpus is None else gpus
    rows = [
        NotebookRow(result=simulate(sessions, mode, count), gpus_without_waits=none, gpus_for_a_minute=minute)
        for mode, (none, minute) in zip(everything, needs, strict=True)
    ]
    told_facts = {
        **facts,
        "Sessions": f"{len(sessions):,}",
        "Waits": f"of {Waits.REQUESTS.value}: cells that had to ask for GPUs",
    }
    return Comparison(
        title=f"Notebooks of {trace.name}, on {words.count(count, 'GPU')}",
        trace=replace(trace, jobs=()),
        cluster_gpus=count,
        notebooks=rows,
        facts=told_facts,
    )


def compare_together(
    trace: Trace,
    sessions: Sequence[NotebookSession],
    tasks: Trace,
    *,
    facts: Mapping[str, str],
    gpus: int | None = None,
    states: States | None = None,
    modes: Sequence[Mode] = TOGETHER,
    seconds: float = WEEK,
    seed: int = 1,
    progress: Progress = _silent,
) -> Comparison:
    """Run notebooks with `tasks` behind them for so many `seconds`, in each mode; the tasks come again and again.

    Without `gpus` on the fewest on which reservations let 95 of 100 sessions open without a wait while there are no tasks.
    Raises `Invalid` when there are no sessions or no tasks that fit, and when a session needs more than `gpus`.
    """
    if gpus is None:
        progress("GPUs for the notebooks", 0.0)
        gpus = gpus_needed(sessions, RESERVATION, p95_wait=0.0)
    found = []
    for number, mode in enumerate(modes):
        _part(progress, mode.name, number, len(modes))(0.0)
        found.append(simulate_together(sessions, tasks.jobs, mode, gpus, states=states, seed=seed, until=seconds, again=True))
    rules = next((mode.rules for mode in modes if isinstance(mode, Lent) and mode.tasks_lend), None)
    told = {**facts, "Tasks": tasks.name, "Sessions": f"{len(sessions):,}", "Simulated": words.duration(seconds)}
    if rules is not None:
        told |= {"Homes of states": "move"} if any(isinstance(mode, Lent) and mode.homes_move for mode in modes) else {}
        told |= {"Turn of a task": f"{rules.task_turn:g} s", "Share of a task": f"{rules.task_share:g}"}
    return Comparison(
        title=f"Notebooks of {trace.name}, and tasks of {tasks.name} behind them, on {words.count(gpus, 'GPU')}",
        trace=replace(trace, jobs=()),
        cluster_gpus=gpus,
        together=found,
        facts=told,
    )


def _part(progress: Progress, what: str, number: int, of: int) -> Callable[[float], None]:
    """Tell of one part as of a part of the whole."""
    return lambda done: progress(what, (number + done) / of)

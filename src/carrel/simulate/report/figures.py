"""Which plots a report has, and what is said below each."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.simulate.measures import Measures, utilisation_over_time
from carrel.simulate.report import markup, plots, words
from carrel.simulate.report.comparison import NOTEBOOK_WAITS, Comparison, NotebookRow
from carrel.simulate.report.plots import Bar, Dots, Strip
from carrel.simulate.report.users import SHOWN, UserRow
from carrel.simulate.together.result import Together
from carrel.simulate.usage import is_estimate


def of_policies(comparison: Comparison, measures: Sequence[Measures], users: Sequence[UserRow]) -> Sequence[str]:
    """The plots of the policies."""
    outcomes = comparison.outcomes
    if not any(outcome.runs for outcome in outcomes):
        return []
    shown = [
        _distribution("Waits", "wait", [(one.policy, [run.wait for run in one.runs]) for one in outcomes], of="jobs"),
        _distribution("JCT", "jct", [(one.policy, [run.completion for run in one.runs]) for one in outcomes], of="jobs"),
        _hours(measures),
    ]
    # What is tall comes last, so that two in a row are about equally high.
    if any(one.preemptions for one in measures):
        shown.append(_stops(measures))
    shown.append(_use(comparison, measures))
    if len(users) > 1:
        shown.append(_users(measures, users))
    return shown


def left_out(measures: Sequence[Measures], users: Sequence[UserRow]) -> Sequence[str]:
    """Why plots are missing, in sentences."""
    sentences = []
    if not any(one.jobs for one in measures):
        sentences.append("No job ran, so there is nothing to draw.")
    elif not any(one.preemptions for one in measures):
        sentences.append("No job was stopped before its end.")
    if len(users) == 1:
        sentences.append("All jobs are of one user, so there is no fairness among users to speak of.")
    return sentences


def of_notebooks(rows: Sequence[NotebookRow]) -> Sequence[str]:
    """The plots of the notebook modes."""
    shown = [_needed(rows)] if any(row.gpus_for_a_minute is not None for row in rows) else []
    waits = [(row.result.mode, row.result.waits(NOTEBOOK_WAITS)) for row in rows]
    shown += [_held(rows), _distribution("Waits of requests", "cells", waits, of="requests")]
    if any(row.result.lost_states or row.result.evictions for row in rows):
        shown.append(_states(rows))
    return shown


def of_together(modes: Sequence[Together]) -> Sequence[str]:
    """Who computed in each mode of notebooks and tasks, and how long cells waited."""
    bars = [
        Bar(name=one.mode, parts=(one.cell_hours, one.task_hours), label=words.hours(one.cell_hours + one.task_hours))
        for one in modes
    ]
    picture = plots.bars(bars, key="computed", title="GPU-hours in which somebody computed", axis_name="GPU-hours")
    waits = [(one.mode, [cell.wait for cell in one.cells]) for one in modes]
    return [
        markup.figure("GPU-hours in which somebody computed", picture, "Cells; pale: tasks."),
        _distribution("Waits of cells", "cell-waits", waits, of="cells"),
    ]


def _distribution(heading: str, key: str, series: Sequence[tuple[str, Sequence[float]]], *, of: str) -> str:
    axis = "from submission to end" if key == "jct" else "time in line"
    picture = plots.distributions(series, key=key, title=f"Distribution: {heading}", axis_name=axis)
    note = f"Share of the {of} with at most this {'JCT' if key == 'jct' else 'wait'}: the further up and left, the better."
    return markup.figure(heading, picture, note, markup.legend([name for name, _ in series]))


def _use(comparison: Comparison, measures: Sequence[Measures]) -> str:
    strips = []
    for outcome, one in zip(comparison.outcomes, measures, strict=True):
        pieces = comparison.pieces.get(outcome.policy)
        guess = " (estimated)" if is_estimate(outcome.runs, pieces) else ""
        label = f"{words.share(one.utilisation)} in use"
        strips.append(Strip(name=outcome.policy + guess, label=label, points=utilisation_over_time(outcome, pieces=pieces)))
    last = max(run.submitted for outcome in comparison.outcomes for run in outcome.runs)
    title = "GPUs in use over time"
    note = "The broken line is the last submission."
    if any("(estimated)" in strip.name for strip in strips):
        note += (
            " Estimated: of jobs that were stopped on the way only the sum is known, and it is taken to be spread evenly from"
            " their start to their end."
        )
    return markup.figure(title, plots.strips(strips, key="use", title=title, marked=last), note)


def _hours(measures: Sequence[Measures]) -> str:
    bars = [
        Bar(
            name=one.policy,
            parts=(one.gpu_hours - (one.gpu_hours_lost or 0), one.gpu_hours_lost or 0),
            label=words.hours(one.gpu_hours) + (f", lost {words.hours(one.gpu_hours_lost)}" if _has_lost(one) else ""),
        )
        for one in measures
    ]
    note = (
        "Pale: ran beyond what the jobs needed, because work was lost."
        if any(_has_lost(one) for one in measures)
        else "No work was lost."
    )
    return markup.figure("GPU-hours", plots.bars(bars, key="hours", title="GPU-hours", axis_name="GPU-hours"), note)


def _has_lost(measures: Measures) -> bool:
    return (measures.gpu_hours_lost or 0) >= 0.005


def _stops(measures: Sequence[Measures]) -> str:
    bars = [Bar(name=one.policy, parts=(one.preemptions,), label=words.number(one.preemptions)) for one in measures]
    picture = plots.bars(bars, key="stops", title="Jobs stopped before their end", axis_name="times")
    return markup.figure("Jobs stopped before their end", picture, "Each time counts.")


def _users(measures: Sequence[Measures], users: Sequence[UserRow]) -> str:
    rows = [Dots(name=row.name, values=[None if of is None else of.mean_wait for of in row.measures]) for row in users]
    names = [one.policy for one in measures]
    title = "Mean wait by user"
    note = "Most GPU-hours first."
    if users[-1].users > 1 or len(users) > SHOWN:
        note += f" The {SHOWN} users with the most are shown, the others in one row together."
    picture = plots.dots(rows, names, key="users", title=title, axis_name="mean wait")
    return markup.figure(title, picture, note, markup.legend(names, dots=True))


def _needed(rows: Sequence[NotebookRow]) -> str:
    bars = []
    for row in rows:
        minute, none = row.gpus_for_a_minute, row.gpus_without_waits
        more = max(0, none - minute) if none is not None and minute is not None else 0
        label = f"{words.number(minute)} / {words.number(none)}" if more else words.number(minute)
        bars.append(Bar(name=row.result.mode, parts=(minute or 0, more), label=label))
    note = "For 95 of 100 requests to wait a minute at most; pale: not at all."
    return markup.figure("GPUs needed", plots.bars(bars, key="needed", title="GPUs needed", axis_name="GPUs"), note)


def _held(rows: Sequence[NotebookRow]) -> str:
    bars = []
    for row in rows:
        held, computing = row.result.gpu_hours_held, min(row.result.gpu_hours_of_cells, row.result.gpu_hours_held)
        bars.append(Bar(name=row.result.mode, parts=(computing, held - computing), label=words.hours(held)))
    picture = plots.bars(bars, key="held", title="GPU-hours held by notebooks", axis_name="GPU-hours")
    return markup.figure("GPU-hours held", picture, "Pale: no cell computed, but nobody else could have the GPUs.")


def _states(rows: Sequence[NotebookRow]) -> str:
    bars = []
    for row in rows:
        lost, moved = row.result.lost_states, row.result.evictions
        bars.append(Bar(name=row.result.mode, parts=(lost, moved), label=f"{lost:,} lost, {moved:,} moved"))
    note = "States of notebooks that were thrown away although a later cell needed them; pale: moved to host memory to make room."
    picture = plots.bars(bars, key="states", title="States lost and moved", axis_name="states")
    return markup.figure("States lost and moved", picture, note)

"""Numbers side by side: rows of texts, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carrel.simulate.measures import Measures, Spread
from carrel.simulate.report import words
from carrel.simulate.report.comparison import NOTEBOOK_WAITS, NotebookRow
from carrel.simulate.together.result import Together


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads. The first column is names and stands on the left; numbers stand on the right."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """Lines for a terminal, two blanks between columns."""
        lines = [[words.clean(cell) for cell in row] for row in (self.heads, *self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.heads))]
        return "\n".join(
            "  ".join(
                [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]
            ).rstrip()
            for first, *cells in lines
        )


def policies_table(measures: Sequence[Measures]) -> Table:
    """One row a policy: what most people want to know. Columns in which there is nothing to tell are left out."""
    shown = [(head, tell) for head, tell, always in _COLUMNS if always or any(_says_something(tell(one)) for one in measures)]
    if len({one.gpus for one in measures}) > 1:
        shown.insert(0, ("GPUs", lambda one: words.number(one.gpus)))
    return Table(
        ["Policy", *(head for head, _ in shown)],
        [[one.policy, *(tell(one) for _, tell in shown)] for one in measures],
    )


def compare(before: Measures, after: Measures, heads: tuple[str, str] = ("Before", "After")) -> Table:
    """What a change changes: each measure before and after, and the change in percent, or in points where it is a share."""
    rows = [
        [name, tell(value(before)), tell(value(after)), _change(_told(tell, value(before)), _told(tell, value(after)), tell)]
        for name, value, tell in _MEASURES
    ]
    return Table(["", *heads, "Change"], rows)


def numbers_table(measures: Sequence[Measures]) -> Table:
    """Every number of every policy, in seconds, shares and GPU-hours: one column a policy."""
    rows = [
        [name + _UNITS.get(tell, ""), *(_EXACT.get(tell, tell)(value(one)) for one in measures)]
        for name, value, tell in _MEASURES
    ]
    return Table(["", *(one.policy for one in measures)], rows)


def notebooks_table(rows: Sequence[NotebookRow]) -> Table:
    """One row a mode."""
    return Table(
        ["Mode", *(head for head, _ in _NOTEBOOK_COLUMNS)],
        [[row.result.mode, *(tell(row) for _, tell in _NOTEBOOK_COLUMNS)] for row in rows],
    )


def together_table(modes: Sequence[Together]) -> Table:
    """One column a mode of notebooks and tasks on the same GPUs."""
    return Table(
        ["", *(one.mode for one in modes)],
        [[name, *(tell(one, modes[0]) for one in modes)] for name, tell in _TOGETHER_ROWS],
    )


def _of(spread: Spread | None, value: Callable[[Spread], float]) -> float | None:
    return None if spread is None else value(spread)


Tell = Callable[[float | None], str]
Value = Callable[[Measures], float | None]

#: Head, cell, whether it is shown also when there is nothing in any row.
_COLUMNS: Sequence[tuple[str, Callable[[Measures], str], bool]] = (
    ("Jobs", lambda one: words.number(one.jobs), True),
    ("Refused", lambda one: words.number(one.refused), False),
    ("Mean wait", lambda one: words.duration(_of(one.waits, lambda of: of.mean)), True),
    ("Median wait", lambda one: words.duration(_of(one.waits, lambda of: of.median)), True),
    ("p95 wait", lambda one: words.duration(_of(one.waits, lambda of: of.p95)), True),
    ("Mean JCT", lambda one: words.duration(_of(one.completions, lambda of: of.mean)), True),
    ("p95 JCT", lambda one: words.duration(_of(one.completions, lambda of: of.p95)), True),
    ("Slowdown", lambda one: words.number(_of(one.slowdown, lambda of: of.mean)), True),
    ("Used", lambda one: words.share(one.utilisation), True),
    ("Stopped", lambda one: words.number(one.preemptions), False),
    ("Lost GPU-h", lambda one: words.hours(one.gpu_hours_lost), False),
    ("Fairness", lambda one: words.number(one.fairness if len(one.users) > 1 else None), False),
)

_MEASURES: Sequence[tuple[str, Value, Tell]] = (
    ("GPUs", lambda one: one.gpus, words.number),
    ("Jobs", lambda one: one.jobs, words.number),
    ("Jobs refused", lambda one: one.refused, words.number),
    ("Makespan", lambda one: one.makespan, words.duration),
    ("Wait, mean", lambda one: _of(one.waits, lambda of: of.mean), words.duration),
    ("Wait, median", lambda one: _of(one.waits, lambda of: of.median), words.duration),
    ("Wait, p95", lambda one: _of(one.waits, lambda of: of.p95), words.duration),
    ("Wait, p99", lambda one: _of(one.waits, lambda of: of.p99), words.duration),
    ("Wait, longest", lambda one: _of(one.waits, lambda of: of.max), words.duration),
    ("JCT, mean", lambda one: _of(one.completions, lambda of: of.mean), words.duration),
    ("JCT, median", lambda one: _of(one.completions, lambda of: of.median), words.duration),
    ("JCT, p95", lambda one: _of(one.completions, lambda of: of.p95), words.duration),
    ("JCT, p99", lambda one: _of(one.completions, lambda of: of.p99), words.duration),
    ("JCT, longest", lambda one: _of(one.completions, lambda of: of.max), words.duration),
    ("Bounded slowdown, mean", lambda one: _of(one.slowdown, lambda of: of.mean), words.number),
    ("Bounded slowdown, p95", lambda one: _of(one.slowdown, lambda of: of.p95), words.number),
    ("GPUs in use", lambda one: one.utilisation, words.share),
    ("GPUs in use up to the last submission", lambda one: one.utilisation_while_submitting, words.share),
    ("GPU-hours", lambda one: one.gpu_hours, words.hours),
    ("GPU-hours lost", lambda one: one.gpu_hours_lost, words.hours),
    ("Times stopped", lambda one: one.preemptions, words.number),
    ("Users", lambda one: len(one.users), words.number),
    ("Finish-time fairness, worst user", lambda one: one.fairness, words.number),
)

#: How numbers are written for programs.
_EXACT: dict[Tell, Tell] = {words.duration: words.exact, words.hours: words.exact}
_UNITS: dict[Tell, str] = {words.duration: " (s)"}

_NOTEBOOK_COLUMNS: Sequence[tuple[str, Callable[[NotebookRow], str]]] = (
    ("GPUs for no wait", lambda row: words.number(row.gpus_without_waits)),
    ("GPUs for ≤ 1 min", lambda row: words.number(row.gpus_for_a_minute)),
    ("GPUs here", lambda row: words.number(row.result.gpus)),
    ("p95 wait here", lambda row: words.duration(_p95(row))),
    ("GPU-h held", lambda row: words.hours(row.result.gpu_hours_held)),
    ("Computing", lambda row: words.share(_computing(row))),
    ("Acquisitions", lambda row: words.number(row.result.acquisitions)),
    ("Warm starts", lambda row: words.number(row.result.warm_starts)),
    ("Cold starts", lambda row: words.number(row.result.cold_starts)),
    ("Lost states", lambda row: words.number(row.result.lost_states)),
    ("Evictions", lambda row: words.number(row.result.evictions)),
    ("Pauses", lambda row: words.number(row.result.pauses)),
)

_TOGETHER_ROWS: Sequence[tuple[str, Callable[[Together, Together], str]]] = (
    ("GPUs busy", lambda one, _: words.share(one.busy)),
    ("GPU-h of cells", lambda one, _: words.hours(one.cell_hours)),
    ("GPU-h of tasks", lambda one, _: words.hours(one.task_hours)),
    ("GPU-h recovered", lambda one, first: words.NONE if one is first else f"{one.recovered(first):+,.0f}"),
    ("GPU-h of moves", lambda one, _: words.hours(one.move_hours)),
    ("Cells over", lambda one, _: words.number(one.cells_over)),
    ("Cell wait, median", lambda one, _: _wait(one, 0.5)),
    ("Cell wait, p95", lambda one, _: _wait(one, 0.95)),
    ("Cell wait, p99", lambda one, _: _wait(one, 0.99)),
    ("Cell wait, longest", lambda one, _: _wait(one, 1.0)),
    ("Cell slowdown, mean", lambda one, _: words.number(one.cell_slowdown)),
    ("Cell slowdown, by time", lambda one, _: words.number(one.cell_stretch)),
    ("Cells paused", lambda one, _: words.number(one.cell_pauses)),
    ("Tasks over", lambda one, _: words.number(one.tasks_over)),
    ("Task slowdown, mean", lambda one, _: words.number(one.task_slowdown)),
    ("Task slowdown, by time", lambda one, _: words.number(one.task_stretch)),
    ("Pauses a task", lambda one, _: words.number(one.pauses_each)),
)


def _wait(one: Together, share: float) -> str:
    if not one.cells:
        return words.NONE
    seconds = one.wait(share)
    return words.duration(seconds) if seconds >= 60 else f"{seconds:.2f} s"


def _p95(row: NotebookRow) -> float | None:
    return row.result.wait(0.95, NOTEBOOK_WAITS) if row.result.waits(NOTEBOOK_WAITS) else None


def _computing(row: NotebookRow) -> float | None:
    held = row.result.gpu_hours_held
    return row.result.gpu_hours_of_cells / held if held else None


def _says_something(cell: str) -> bool:
    return cell not in (words.NONE, "0")


def _told(tell: Tell, value: float | None) -> float | None:
    """What is shown as nothing is nothing: sums of floating-point numbers hardly ever are."""
    return value if value is None or tell(value) not in ("0", "0 s") else 0.0


def _change(before: float | None, after: float | None, tell: Tell) -> str:
    if before is None or after is None:
        return words.NONE
    if tell is words.share:
        return f"{100 * (after - before):+.1f} points"
    if not before:
        return "" if not after else "from 0"
    change = 100 * (after - before) / before
    return "0 %" if abs(change) < 0.05 else f"{change:+,.1f} %"

"""Notebooks and a queue of tasks on the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import LendingRules
from carrel.simulate.notebooks.forming import NotebookCell, NotebookSession, named_sessions
from carrel.simulate.notebooks.generator import generate_sessions, generate_week
from carrel.simulate.report import as_json, page
from carrel.simulate.study import compare_together
from carrel.simulate.together.mode import (
    BORROWED,
    GB,
    LENT_BUS,
    LENT_DRIVER,
    MODES,
    RESERVED,
    Mode,
    States,
    modes_with,
)
from carrel.simulate.together.result import Together
from carrel.simulate.together.study import simulate_together
from carrel.simulate.trace import Trace, TraceJob

DAY = 86400.0
#: Both fit on a GPU of 80 GiB, and neither beside the other.
SMALL, LARGE = States(cells=(20 * GB,), tasks=(20 * GB,)), States(cells=(50 * GB,), tasks=(50 * GB,))


def session(number: int, gpus: int, *cells: tuple[float, float], linger: float = 0.0) -> NotebookSession:
    members = tuple(NotebookCell(id=at, submitted=begin, duration=length) for at, (begin, length) in enumerate(cells))
    return NotebookSession(id=number, gpus=gpus, cells=members, linger=linger)


def task(number: int, duration: float, gpus: int = 1) -> TraceJob:
    return TraceJob(id=number, submitted=0.0, duration=duration, gpus=gpus, user=f"user-{number % 3}")


#: A cell that comes while a task of 1,000 s computes, and another one later.
CELLS = [session(0, 1, (100, 30), (500, 30), linger=60)]
TASK = [task(0, 1000)]


def run(mode: Mode, states: States = SMALL, **more: float) -> Together:
    return simulate_together(CELLS, TASK, mode, 1, states=states, **more)


def test_a_cell_waits_for_a_task_or_is_let_in_by_it() -> None:
    waits = {mode.name: [round(one.wait, 2) for one in run(mode).cells] for mode in MODES}
    assert waits[RESERVED.name] == [900, 0], "the second has the GPUs of its session"
    assert waits[BORROWED.name] == [900, 0], "no other task is there"
    assert waits[LENT_BUS.name] == [0.05, 0.05], "both fit, and the task only stops"
    # 20 GB leave the GPU in 0.35 s + 20/1.9 s, and the cell's come back in 0.28 s + 20/5 s.
    assert waits[LENT_DRIVER.name] == [10.88, 15.16]


def test_a_task_pays_for_what_it_lends() -> None:
    result = run(LENT_BUS)
    (lent,) = result.tasks
    assert lent.pauses == result.task_pauses == 2
    assert lent.had == pytest.approx(1000 + 2 * (30 + 0.05))
    assert lent.slowdown == pytest.approx(1.0601)
    assert result.busy == pytest.approx(1060 / 1060.1)
    moved = run(LENT_BUS, LARGE)
    assert [round(one.wait, 2) for one in moved.cells] == [1.05, 2.1], "out, and out and back: 1.05 s each"
    assert moved.move_hours * 3600 == pytest.approx(7 * 1.05), (
        "the task out, back; out, the cell back; the task back; the cell twice"
    )


def test_what_is_cut_off_counts_as_far_as_it_went() -> None:
    result = run(RESERVED, until=200.0)
    (cell,) = result.cells
    assert (cell.wait, cell.ended, result.cells_over) == (100, None, 0)
    assert (result.tasks[0].ran, result.tasks_over, result.busy) == (200, 0, 1.0)
    assert result.task_slowdown is None
    assert result.task_stretch == 1.0


def test_the_queue_never_runs_dry() -> None:
    result = simulate_together(CELLS, [task(0, 70), task(1, 50, gpus=9)], RESERVED, 1, until=DAY, again=True)
    assert result.busy > 0.95
    assert {one.gpus for one in result.tasks} == {1}, "what never fits is left out"
    with pytest.raises(Invalid, match="never end"):
        simulate_together(CELLS, TASK, RESERVED, 1, again=True)
    with pytest.raises(Invalid, match="No task fits on 1 GPUs"):
        simulate_together(CELLS, [task(1, 50, gpus=9)], RESERVED, 1, until=DAY, again=True)


def test_rules_and_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Invalid, match="share of 2"):
        modes_with(task_share=2)
    with pytest.raises(Invalid, match="A state is 500 GB"):
        States(cells=(500 * GB,))
    with pytest.raises(Invalid, match="no sizes"):
        States(cells=())
    assert [mode.rules.task_turn for mode in modes_with(task_turn=7)[2:] if not isinstance(mode, type(RESERVED))] == [7, 7]


@st.composite
def weeks(draw: st.DrawFn) -> tuple[Sequence[NotebookSession], Sequence[TraceJob]]:
    sessions = []
    for number in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, 60))
        cells = []
        for think, length in draw(st.lists(st.tuples(st.integers(0, 130), st.integers(0, 200)), min_size=1, max_size=4)):
            at += think
            cells.append((at, length))
            at += length
        sessions.append(session(number, draw(st.sampled_from([1, 1, 2, 3])), *cells, linger=draw(st.integers(0, 100))))
    lengths = draw(st.lists(st.tuples(st.integers(1, 400), st.sampled_from([1, 1, 2, 3])), max_size=7))
    return sessions, [task(number, length, gpus) for number, (length, gpus) in enumerate(lengths)]


STRICT = replace(LENT_BUS, name="half of the time, long turns", rules=LendingRules(task_share=0.5, task_turn=30.0))
ALL = [*MODES, STRICT]


@given(weeks(), st.integers(3, 5), st.sampled_from(ALL), st.sampled_from([SMALL, LARGE, States()]))
@settings(deadline=None)
def test_what_holds_in_every_mode(
    week: tuple[Sequence[NotebookSession], Sequence[TraceJob]], gpus: int, mode: Mode, states: States
) -> None:
    sessions, tasks = week
    result = simulate_together(sessions, tasks, mode, gpus, states=states)
    assert simulate_together(sessions, tasks, mode, gpus, states=states) == result, "the same again"
    check(result, sessions, tasks)


def check(result: Together, sessions: Sequence[NotebookSession], tasks: Sequence[TraceJob]) -> None:
    """Everybody computed as long as it takes, nobody shared a GPU with anybody, nothing waited for ever."""
    assert {(one.session, one.cell) for one in result.cells} == {(one.id, cell.id) for one in sessions for cell in one.cells}
    assert sorted(one.task for one in result.tasks) == [one.id for one in tasks]
    for cell in result.cells:
        assert cell.began is not None
        assert cell.ended is not None
        assert cell.ready <= cell.began <= cell.ended
        assert cell.ended - cell.began >= cell.duration - 1e-6
    for one in result.tasks:
        assert one.ran == pytest.approx(one.duration)
        assert one.had >= one.duration - 1e-6
    took: dict[str, float] = {}
    ends: dict[str, float] = {}
    for span in sorted(result.spans, key=lambda span: span.start):
        took[span.who] = took.get(span.who, 0.0) + span.end - span.start
        for uuid in span.devices:
            assert span.start >= ends.get(uuid, 0.0) - 1e-6, "no GPU is used twice"
            ends[uuid] = span.end
    assert len(ends) <= result.gpus
    for number, one_session in enumerate(sessions):
        wanted = sum(cell.duration for cell in one_session.cells)
        assert took.get(f"c{number:08d}", 0.0) == pytest.approx(wanted, abs=1e-6)
    assert result.cell_hours * 3600 == pytest.approx(sum(one.gpu_seconds for one in sessions), abs=1e-6)
    assert result.task_hours * 3600 == pytest.approx(sum(one.gpus * one.duration for one in tasks), abs=1e-6)
    if result.tasks:
        assert 0 < result.busy <= 1 + 1e-9


def test_lending_keeps_gpus_busy_and_cells_hardly_wait() -> None:
    """Half a day of a small lab: what docs/simulate.md says of a week of a large one."""
    trace = generate_week(3, scale=0.25)
    jobs = [task(number, 600 + 997 * number % 40_000, (1, 1, 1, 2, 4)[number % 5]) for number in range(40)]
    tasks = Trace(name="tasks", jobs=jobs)
    found = compare_together(trace, named_sessions(trace.jobs), tasks, facts={}, seconds=DAY / 2, states=SMALL)
    reserved, waited, bus, driver = found.together
    assert bus.busy >= 0.9
    assert bus.wait(0.95) <= 2
    assert bus.cell_slowdown is not None
    assert bus.cell_slowdown < 1.05
    assert waited.wait(0.95) > 600, "today a cell waits for the task's end"
    assert bus.wait(0.95) < driver.wait(0.95) < waited.wait(0.95)
    assert driver.move_hours > bus.move_hours
    assert reserved.task_pauses == waited.task_pauses == 0
    rows = as_json(found)["together"]
    assert [row["mode"] for row in rows] == [mode.name for mode in MODES]
    assert rows[0]["gpu_hours_recovered"] == 0
    assert rows[2]["cell_wait_seconds"]["p95"] == pytest.approx(bus.wait(0.95), abs=1)
    html = page(found)
    assert "Notebooks and tasks on the same GPUs" in html
    assert "GPU-h recovered" in html


@pytest.mark.soak
def test_a_week_of_a_large_lab() -> None:
    sessions = generate_sessions(1)
    tasks = [task(number, 600 + 9973 * number % 200_000, (1, 1, 1, 1, 2, 4)[number % 6]) for number in range(400)]
    for mode in MODES:
        result = simulate_together(sessions, tasks, mode, 162, until=7 * DAY, again=True)
        assert result.busy >= 0.85
        ends: dict[str, float] = {}
        for span in sorted(result.spans, key=lambda span: span.start):
            for uuid in span.devices:
                assert span.start >= ends.get(uuid, 0.0) - 1e-6
                ends[uuid] = span.end

"""Notebooks as the broker's own policy lends, on a virtual clock: by hand on two sessions, by rules on any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import LendingRules, Residency
from carrel.simulate.notebooks.by_policy import Week, gpus_needed, simulate
from carrel.simulate.notebooks.cells import NotebookSession

NO_SLICE = LendingRules(time_slice=0)
FRESH, WARM, COLD = Residency.NONE, Residency.RESIDENT, Residency.SUSPENDED


def session(number: int, gpus: int, *cells: tuple[float, float], linger: float = 0.0) -> NotebookSession:
    """Cells as (moment, seconds)."""
    thinks = [0.0, *(at - before - took for (before, took), (at, _) in pairwise(cells))]
    computes = [seconds for _, seconds in cells]
    return NotebookSession(name=str(number), gpus=gpus, opens=cells[0][0], thinks=thinks, computes=computes, linger=linger)


#: Two notebooks for one GPU: the second comes while the first computes, and thinks longer.
TWO = [session(0, 1, (0, 100), (200, 100)), session(1, 1, (50, 100), (400, 100))]


def times(week: Week) -> list[tuple[float, float, float]]:
    return [(cell.ready, cell.granted, cell.end) for cell in week.cells]


def found(week: Week) -> list[Residency]:
    return [cell.found for cell in week.cells]


def test_the_state_that_is_in_the_way_is_moved() -> None:
    week = simulate(TWO, 1, rules=NO_SLICE, swap_seconds=10)
    # The first swap clears the GPU for a session without state; the last finds it free, and brings the state back.
    assert times(week) == [(0, 0, 100), (200, 210, 320), (50, 100, 210), (460, 460, 570)]
    assert [cell.swap for cell in week.cells] == [0, 10, 10, 10]
    assert found(week) == [FRESH, COLD, FRESH, COLD]
    assert week.evictions == 2


def test_cells_start_warm_where_nobody_needs_the_room() -> None:
    week = simulate(TWO, 2, rules=NO_SLICE, swap_seconds=10)
    assert times(week) == [(0, 0, 100), (200, 200, 300), (50, 50, 150), (400, 400, 500)]
    assert (found(week), week.evictions) == ([FRESH, WARM, FRESH, WARM], 0)
    assert week.held == [("0", 1, 0, 100), ("1", 1, 50, 150), ("0", 1, 200, 300), ("1", 1, 400, 500)]


def test_the_least_recently_used_state_goes_first() -> None:
    old = session(0, 1, (0, 10), (300, 10), linger=900)
    young = session(1, 1, (20, 10), (200, 10), linger=900)
    third = session(2, 1, (100, 10))
    assert found(simulate([old, young, third], 2, rules=NO_SLICE)) == [FRESH, COLD, FRESH, WARM, FRESH]


@pytest.mark.parametrize(("linger", "evictions"), [(50, 0), (51, 1)])
def test_what_a_closed_session_leaves_is_in_nobodys_way(linger: float, evictions: int) -> None:
    """When a session ended counts: until then its state has to be moved."""
    week = simulate([session(0, 1, (0, 10), linger=linger), session(1, 1, (60, 10))], 1)
    assert (week.evictions, week.cells[1].swap) == (evictions, 4.0 * evictions)


def test_each_gpu_that_is_cleared_or_restored_costs_a_swap() -> None:
    one = session(0, 1, (0, 10), (100, 10), linger=900)
    wide = session(1, 4, (20, 10), (200, 10), linger=900)
    week = simulate([one, wide], 4, rules=NO_SLICE, swap_seconds=1)
    # One GPU of four is cleared for the wide one; it is evicted whole for the narrow one; then all four come back.
    assert [cell.swap for cell in week.cells] == [0, 1, 1, 4]


def test_cells_whose_slice_is_over_are_suspended() -> None:
    week = simulate(TWO, 1, swap_seconds=10)
    first, _, other, _ = week.cells
    assert week.pauses >= 1
    assert other.granted == 60, "the first cell has had its 60 s"
    assert first.paused > 0
    for cell in week.cells:
        assert cell.end == pytest.approx(cell.granted + cell.swap + cell.paused + 100)


def test_host_memory_can_be_limited() -> None:
    """Three states, one GPU, host memory for one state: the third session only enters when one has left."""
    rules = LendingRules(time_slice=0, host_memory=80 * 1024**3)
    sessions = [session(number, 1, (number * 10, 10), linger=500) for number in range(3)]
    assert [cell.granted for cell in simulate(sessions, 1, rules=rules, swap_seconds=0).cells] == [0, 10, 510]


def test_where_homes_move_a_state_comes_back_on_the_gpu_that_is_free() -> None:
    """Two GPUs: on that of the first session a long cell of the third computes when it comes back; the second is shut down."""
    sessions = [session(0, 1, (0, 10), (200, 10)), session(1, 1, (0, 100)), session(2, 1, (20, 1000))]
    fixed = simulate(sessions, 2, rules=NO_SLICE, swap_seconds=1)
    moving = simulate(sessions, 2, rules=NO_SLICE, swap_seconds=1, homes_move=True)
    late = [[cell.wait for cell in week.cells if cell.session == "0"] for week in (fixed, moving)]
    assert late[0][1] > 800
    assert late[1] == [0, 0]


@st.composite
def weeks(draw: st.DrawFn, widths: Sequence[int] = (1, 1, 2, 3)) -> Sequence[NotebookSession]:
    sessions = []
    for number in range(draw(st.integers(1, 7))):
        at = draw(st.integers(0, 60))
        cells = []
        for think, length in draw(st.lists(st.tuples(st.integers(0, 130), st.integers(0, 200)), min_size=1, max_size=5)):
            at += think
            cells.append((at, length))
            at += length
        gpus, linger = draw(st.sampled_from(widths)), draw(st.integers(0, 100))
        sessions.append(session(number, gpus, *cells, linger=linger))
    return sessions


@given(weeks(), st.integers(3, 9), st.sampled_from([None, NO_SLICE]), st.booleans(), st.sampled_from([0.0, 4.0, 70.0]))
@settings(deadline=None)
def test_what_always_holds(
    sessions: Sequence[NotebookSession], gpus: int, rules: LendingRules | None, homes_move: bool, swap: float
) -> None:
    week = simulate(sessions, gpus, rules=rules, homes_move=homes_move, swap_seconds=swap)
    assert simulate(sessions, gpus, rules=rules, homes_move=homes_move, swap_seconds=swap) == week, "the same again"
    wanted = [(one, number) for one in sessions for number in range(len(one.computes))]
    assert [(run.session, run.number) for run in week.cells] == [(one.name, number) for one, number in wanted], "no cell is lost"
    for run, (one, number) in zip(week.cells, wanted, strict=True):
        assert run.wait >= 0
        assert run.end == pytest.approx(run.granted + run.swap + run.paused + one.computes[number])
    thinks = [think for one in sessions for think in one.thinks]
    for (before, after), think in zip(pairwise(week.cells), thinks[1:], strict=True):
        assert before.session != after.session or after.ready == pytest.approx(before.end + think), "a closed loop"
    never_more_than(gpus, week)
    assert found(week).count(FRESH) == len(sessions)
    assert set(found(week)) <= {FRESH, WARM, COLD}
    width = {one.name: one.gpus for one in sessions}
    used = sum(one.gpus * sum(one.computes) for one in sessions) + sum(run.swap * width[run.session] for run in week.cells)
    assert sum(held.gpus * (held.end - held.start) for held in week.held) == pytest.approx(used)
    assert len(week.held) == len(wanted) + week.pauses


@given(weeks(widths=(1,)), st.integers(0, 3), st.sampled_from([None, NO_SLICE]))
@settings(deadline=None)
def test_where_homes_move_gpus_are_one_pool(sessions: Sequence[NotebookSession], more: int, rules: LendingRules | None) -> None:
    """With as many as compute at once no cell waits, and with more neither."""
    sessions = [replace(one, computes=[max(1.0, seconds) for seconds in one.computes]) for one in sessions]
    cells = simulate(sessions, len(sessions), swap_seconds=0).cells
    changes = sorted(change for cell in cells for change in ((cell.ready, 1), (cell.end, -1)))
    at_once = max(accumulate(change for _, change in changes))
    week = simulate(sessions, at_once + more, rules=rules, homes_move=True, swap_seconds=0)
    assert [cell.wait for cell in week.cells] == [0] * len(cells)


def never_more_than(gpus: int, week: Week) -> None:
    changes = [(one.start, one.gpus) for one in week.held if one.end > one.start]
    changes += [(one.end, -one.gpus) for one in week.held if one.end > one.start]
    held = 0
    for _, change in sorted(changes):
        held += change
        assert 0 <= held <= gpus


@given(weeks(), st.sampled_from([0.0, 30.0]), st.booleans(), st.sampled_from([None, 1, 4, 30]))
@settings(deadline=None)
def test_the_gpus_that_are_needed_suffice_and_one_less_does_not(
    sessions: Sequence[NotebookSession], target: float, homes_move: bool, near: int | None
) -> None:
    needed = gpus_needed(sessions, p95_wait=target, homes_move=homes_move, near=near)
    assert simulate(sessions, needed, homes_move=homes_move).p95_wait() <= target
    if needed > max(one.gpus for one in sessions):
        assert simulate(sessions, needed - 1, homes_move=homes_move).p95_wait() > target


def test_notebooks_that_compute_a_tenth_of_their_time_share_a_gpu() -> None:
    sessions = [session(number, 1, *((at + number * 100, 90) for at in range(0, 8000, 800))) for number in range(8)]
    assert gpus_needed(sessions, p95_wait=0) == 1


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(Invalid, match="Session 0 needs 4 GPUs at once and there are 2"):
        simulate([session(0, 4, (0, 10))], 2)
    with pytest.raises(Invalid, match="no sessions"):
        simulate([], 2)
    with pytest.raises(Invalid, match="no sessions"):
        gpus_needed([], p95_wait=0)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.lease import LendingRules
from carrel.simulate.notebooks.forming import NotebookCell, NotebookSession
from carrel.simulate.notebooks.generator import generate_sessions
from carrel.simulate.notebooks.modes import (
    CARREL,
    EAGER,
    LAZY,
    RESERVATION,
    Mode,
    PolicyMode,
    PoolMode,
    Waits,
    cull,
    gpus_needed,
    simulate,
)
from carrel.simulate.notebooks.result import ModeResult, Start, percentile

POOL = [RESERVATION, cull(1), EAGER, LAZY]
NO_SLICE = PolicyMode(name="carrel without time slices", rules=LendingRules(time_slice=0))
ALL = [*POOL, CARREL, NO_SLICE, PolicyMode(state_share=0.4)]


def session(number: int, gpus: int, *cells: tuple[float, float], linger: float = 0.0) -> NotebookSession:
    members = tuple(NotebookCell(id=at, submitted=begin, duration=length) for at, (begin, length) in enumerate(cells))
    return NotebookSession(id=number, gpus=gpus, cells=members, linger=linger)


#: Two notebooks for one GPU: the second comes while the first computes, and thinks longer.
TWO = [session(0, 1, (0, 100), (200, 100)), session(1, 1, (50, 100), (400, 100))]


def times(result: ModeResult) -> list[tuple[float, float, float]]:
    return [(cell.ready, cell.granted, cell.end) for cell in result.cells]


def starts(result: ModeResult) -> list[Start]:
    return [cell.start for cell in result.cells]


def spans(result: ModeResult) -> list[tuple[int, float, float]]:
    return [(one.session, one.start, one.end) for one in result.held]


def test_a_reservation_keeps_its_gpus_until_its_end_and_whoever_waits_is_late_with_everything() -> None:
    result = simulate(TWO, RESERVATION, 1, swap_seconds=10)
    assert times(result) == [(0, 0, 100), (200, 200, 300), (50, 300, 400), (650, 650, 750)]
    assert spans(result) == [(0, 0, 300), (1, 300, 750)]
    assert starts(result) == [Start.FRESH, Start.WARM, Start.FRESH, Start.WARM]
    assert result.acquisitions == 2
    assert result.gpu_hours_held * 3600 == pytest.approx(750)
    assert result.gpu_hours_of_cells * 3600 == pytest.approx(400)
    assert (result.wait(0.5), result.wait(0.95), result.wait(1), result.mean_wait()) == (0, 250, 250, 62.5)
    assert result.waits(Waits.REQUESTS) == [0, 250]
    assert result.waits(Waits.SESSIONS) == [0, 250]


def test_a_reservation_lasts_until_the_notebook_is_shut_down() -> None:
    late = [replace(one, linger=60.0) for one in TWO]
    assert spans(simulate(late, RESERVATION, 1)) == [(0, 0, 360), (1, 360, 870)]


def test_culling_takes_the_gpus_back_and_what_is_on_them_is_lost() -> None:
    result = simulate(TWO, cull(1), 1, swap_seconds=10)
    assert times(result) == [(0, 0, 100), (200, 320, 420), (50, 160, 260), (510, 510, 610)]
    assert spans(result) == [(0, 0, 160), (1, 160, 320), (0, 320, 420), (1, 510, 610)]
    assert starts(result) == [Start.FRESH, Start.COLD, Start.FRESH, Start.COLD]
    assert (result.lost_states, result.acquisitions, result.swap_seconds) == (2, 4, 0)


@pytest.mark.parametrize(("think", "lost"), [(59, 0), (60, 1)])
def test_who_is_idle_for_the_whole_time_is_culled(think: float, lost: int) -> None:
    assert simulate([session(0, 1, (0, 10), (10 + think, 10))], cull(1), 1).lost_states == lost


def test_no_state_is_lost_that_nobody_comes_back_for() -> None:
    result = simulate([session(0, 1, (0, 10), linger=3600)], cull(1), 1)
    assert (result.lost_states, spans(result)) == (0, [(0, 0, 70)])


def test_eager_leases_bring_the_state_back_for_each_cell() -> None:
    result = simulate(TWO, EAGER, 1, swap_seconds=10)
    assert times(result) == [(0, 0, 100), (200, 200, 310), (50, 100, 200), (450, 450, 560)]
    assert starts(result) == [Start.FRESH, Start.COLD, Start.FRESH, Start.COLD]
    assert spans(result) == [(0, 0, 100), (1, 100, 200), (0, 200, 310), (1, 450, 560)]
    assert (result.swap_seconds, result.lost_states, result.evictions) == (20, 0, 0)
    assert result.waits() == [0, 0, 50, 0]


@pytest.mark.parametrize("mode", [LAZY, NO_SLICE])
def test_lazy_leases_move_the_state_that_is_in_the_way(mode: Mode) -> None:
    result = simulate(TWO, mode, 1, swap_seconds=10)
    # The first swap clears the GPU for a session without state; the last finds it free, and brings the state back.
    assert times(result) == [(0, 0, 100), (200, 210, 320), (50, 100, 210), (460, 460, 570)]
    assert [cell.swap for cell in result.cells] == [0, 10, 10, 10]
    assert starts(result) == [Start.FRESH, Start.COLD, Start.FRESH, Start.COLD]
    assert (result.evictions, result.lost_states) == (2, 0)


@pytest.mark.parametrize("mode", [LAZY, NO_SLICE])
def test_lazy_leases_start_warm_where_nobody_needs_the_room(mode: Mode) -> None:
    result = simulate(TWO, mode, 2, swap_seconds=10)
    assert times(result) == [(0, 0, 100), (200, 200, 300), (50, 50, 150), (400, 400, 500)]
    assert (result.warm_starts, result.cold_starts, result.fresh_starts, result.evictions) == (2, 0, 2, 0)
    assert spans(result) == [(0, 0, 100), (1, 50, 150), (0, 200, 300), (1, 400, 500)]


@pytest.mark.parametrize("mode", [LAZY, NO_SLICE])
def test_the_least_recently_used_state_goes_first(mode: Mode) -> None:
    old = session(0, 1, (0, 10), (300, 10), linger=900)
    young = session(1, 1, (20, 10), (200, 10), linger=900)
    third = session(2, 1, (100, 10))
    result = simulate([old, young, third], mode, 2)
    assert starts(result) == [Start.FRESH, Start.COLD, Start.FRESH, Start.WARM, Start.FRESH]


@pytest.mark.parametrize("mode", [LAZY, NO_SLICE])
def test_what_a_closed_session_leaves_is_in_nobodys_way(mode: Mode) -> None:
    result = simulate([session(0, 1, (0, 10), linger=50), session(1, 1, (60, 10))], mode, 1)
    assert (result.evictions, result.swap_seconds) == (0, 0)
    result = simulate([session(0, 1, (0, 10), linger=51), session(1, 1, (60, 10))], mode, 1)
    assert (result.evictions, result.swap_seconds) == (1, 4)


@pytest.mark.parametrize("mode", [LAZY, NO_SLICE])
def test_each_gpu_that_is_cleared_or_restored_costs_a_swap(mode: Mode) -> None:
    one = session(0, 1, (0, 10), (100, 10), linger=900)
    wide = session(1, 4, (20, 10), (200, 10), linger=900)
    result = simulate([one, wide], mode, 4, swap_seconds=1)
    # One GPU of four is cleared for the wide one; it is evicted whole for the narrow one; then all four come back.
    assert [cell.swap for cell in result.cells] == [0, 1, 1, 4]


@pytest.mark.parametrize("mode", POOL)
def test_the_line_of_a_pool_is_first_come_first_served(mode: PoolMode) -> None:
    sessions = [session(0, 1, (0, 100)), session(1, 2, (10, 10)), session(2, 1, (20, 10))]
    result = simulate(sessions, mode, 2, swap_seconds=0)
    assert [cell.granted for cell in result.cells] == [0, 100, 110]


def test_the_brokers_policy_suspends_cells_whose_slice_is_over() -> None:
    result = simulate(TWO, CARREL, 1, swap_seconds=10)
    first, _, other, _ = result.cells
    assert result.pauses >= 1
    assert other.granted == 60, "the first cell has had its 60 s"
    assert first.paused > 0
    for cell in result.cells:
        assert cell.end == pytest.approx(cell.granted + cell.swap + cell.paused + 100)


def test_states_that_fit_beside_each_other_stay() -> None:
    assert simulate(TWO, replace(NO_SLICE, state_share=0.5), 1).evictions == 0


def test_host_memory_can_be_limited() -> None:
    """Three states, one GPU, host memory for one state: the third session only enters when one has left."""
    rules = LendingRules(time_slice=0, host_memory=80 * 1024**3)
    sessions = [session(number, 1, (number * 10, 10), linger=500) for number in range(3)]
    result = simulate(sessions, PolicyMode(rules=rules), 1, swap_seconds=0)
    assert [cell.granted for cell in result.cells] == [0, 10, 510]


@st.composite
def weeks(draw: st.DrawFn) -> Sequence[NotebookSession]:
    sessions = []
    for number in range(draw(st.integers(1, 7))):
        at = draw(st.integers(0, 60))
        cells = []
        for think, length in draw(st.lists(st.tuples(st.integers(0, 130), st.integers(0, 200)), min_size=1, max_size=5)):
            at += think
            cells.append((at, length))
            at += length
        gpus, linger = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(0, 100))
        sessions.append(session(number, gpus, *cells, linger=linger))
    return sessions


@given(weeks(), st.integers(3, 9), st.sampled_from(ALL), st.sampled_from([0.0, 4.0, 70.0]))
@settings(deadline=None)
def test_what_holds_in_every_mode(sessions: Sequence[NotebookSession], gpus: int, mode: Mode, swap: float) -> None:
    result = simulate(sessions, mode, gpus, swap_seconds=swap)
    assert simulate(sessions, mode, gpus, swap_seconds=swap) == result, "the same again"
    wanted = [(one, cell) for one in sessions for cell in one.cells]
    assert [(run.session, run.cell) for run in result.cells] == [(one.id, cell.id) for one, cell in wanted], "no cell is lost"
    for run, (_, cell) in zip(result.cells, wanted, strict=True):
        assert run.wait >= 0
        assert run.end == pytest.approx(run.granted + run.swap + run.paused + cell.duration)
    thinks = [think for one in sessions for think in one.thinks]
    for (before, after), think in zip(pairwise(result.cells), thinks[1:], strict=True):
        assert before.session != after.session or after.ready == pytest.approx(before.end + think), "a closed loop"
    _never_more_than(gpus, result)
    assert result.fresh_starts == len(sessions)
    assert result.fresh_starts + result.warm_starts + result.cold_starts == len(wanted)
    assert result.gpu_hours_of_cells <= result.gpu_hours_held + 1e-9
    if isinstance(mode, PolicyMode) or mode in (EAGER, LAZY):
        assert result.lost_states == 0
        moved = sum(run.swap * sessions[run.session].gpus for run in result.cells)
        assert result.gpu_hours_held * 3600 == pytest.approx(result.gpu_hours_of_cells * 3600 + moved)
        assert result.acquisitions == len(wanted) + result.pauses


def _never_more_than(gpus: int, result: ModeResult) -> None:
    changes = [(one.start, one.gpus) for one in result.held if one.end > one.start]
    changes += [(one.end, -one.gpus) for one in result.held if one.end > one.start]
    held = 0
    for _, change in sorted(changes):
        held += change
        assert 0 <= held <= gpus


@given(weeks(), st.integers(3, 9))
def test_lazy_leases_hold_no_more_than_reservations(sessions: Sequence[NotebookSession], gpus: int) -> None:
    reserved = simulate(sessions, RESERVATION, gpus, swap_seconds=0)
    assert simulate(sessions, LAZY, gpus, swap_seconds=0).gpu_hours_held <= reserved.gpu_hours_held + 1e-9


@given(weeks(), st.integers(3, 9))
def test_culling_that_never_comes_is_a_reservation(sessions: Sequence[NotebookSession], gpus: int) -> None:
    culled, reserved = simulate(sessions, cull(10_000), gpus), simulate(sessions, RESERVATION, gpus)
    assert (culled.cells, culled.held) == (reserved.cells, reserved.held)


@given(weeks(), st.sampled_from(POOL), st.sampled_from([0.0, 30.0]), st.sampled_from(Waits))
@settings(deadline=None)
def test_the_gpus_that_are_needed_suffice_and_one_less_does_not(
    sessions: Sequence[NotebookSession], mode: Mode, target: float, of: Waits
) -> None:
    needed = gpus_needed(sessions, mode, p95_wait=target, of=of)
    assert simulate(sessions, mode, needed).wait(0.95, of) <= target
    if needed > max(one.gpus for one in sessions):
        assert simulate(sessions, mode, needed - 1).wait(0.95, of) > target


@given(weeks(), st.sampled_from([RESERVATION, EAGER, LAZY]), st.integers(0, 60))
def test_where_to_look_first_does_not_change_what_is_needed(sessions: Sequence[NotebookSession], mode: Mode, near: int) -> None:
    needed = gpus_needed(sessions, mode, p95_wait=0, near=near)
    assert simulate(sessions, mode, needed).wait(0.95, Waits.REQUESTS) <= 0
    if needed > max(one.gpus for one in sessions):
        assert simulate(sessions, mode, needed - 1).wait(0.95, Waits.REQUESTS) > 0


def test_where_homes_move_a_state_comes_back_on_the_gpu_that_is_free() -> None:
    """Two GPUs: on that of the first session a long cell of the third computes when it comes back; the second is shut down."""
    short = replace(session(1, 1, (0, 100)), linger=0.0)
    sessions = [session(0, 1, (0, 10), (200, 10)), short, session(2, 1, (20, 1000))]
    fixed = simulate(sessions, NO_SLICE, 2, swap_seconds=1)
    moving = simulate(sessions, PolicyMode(rules=LendingRules(time_slice=0), homes_move=True), 2, swap_seconds=1)
    late = [[cell.granted - cell.ready for cell in result.cells if cell.session == 0] for result in (fixed, moving)]
    assert late[0][1] > 800
    assert late[1] == [0, 0]


def test_a_reservation_needs_a_gpu_for_each_and_leases_share() -> None:
    sessions = [session(number, 1, *((at + number * 100, 90) for at in range(0, 8000, 800))) for number in range(8)]
    assert gpus_needed(sessions, RESERVATION, p95_wait=0) == 8
    assert gpus_needed(sessions, EAGER, p95_wait=0, swap_seconds=10) == 1
    assert gpus_needed(sessions, LAZY, p95_wait=0, swap_seconds=10) == 1
    assert gpus_needed(sessions, CARREL, p95_wait=0, swap_seconds=10) == 1


def test_cells_that_cannot_wait_hide_reservations_that_do() -> None:
    sessions = [session(number, 1, *((at, 10) for at in range(0, 3000, 100))) for number in range(4)]
    assert gpus_needed(sessions, RESERVATION, p95_wait=0, of=Waits.CELLS) == 1
    assert gpus_needed(sessions, RESERVATION, p95_wait=0) == 4


def test_a_generated_week_in_every_mode() -> None:
    sessions = generate_sessions(5, scale=0.3)
    gpus = sum(one.gpus for one in sessions) // 2
    modes: list[Mode] = [*POOL, CARREL]
    for mode in modes:
        result = simulate(sessions, mode, gpus)
        assert len(result.cells) == sum(len(one.cells) for one in sessions)
        _never_more_than(gpus, result)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(Invalid, match="Session 0 needs 4 GPUs at once and there are 2"):
        simulate([session(0, 4, (0, 10))], LAZY, 2)
    with pytest.raises(Invalid, match="no sessions"):
        simulate([], LAZY, 2)
    with pytest.raises(Invalid, match="no sessions"):
        gpus_needed([], LAZY, p95_wait=0)
    with pytest.raises(Invalid, match="takes -1 s"):
        simulate(TWO, LAZY, 2, swap_seconds=-1)
    with pytest.raises(Invalid, match="at most -5 s"):
        gpus_needed(TWO, LAZY, p95_wait=-5)
    with pytest.raises(Invalid, match="kept for -60 s"):
        cull(-1)
    with pytest.raises(Invalid, match="takes 2 of a GPU"):
        PolicyMode(state_share=2)


def test_percentiles_are_values_that_occurred() -> None:
    assert [percentile([3, 1, 2, 4], share) for share in (0, 0.25, 0.5, 0.95, 1)] == [1, 1, 2, 4, 4]
    with pytest.raises(Invalid, match="no values"):
        percentile([], 0.5)
    with pytest.raises(Invalid, match="share is 95"):
        percentile([1], 95)

"""Where the time of sessions went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrel.core.gpu_use import CellFacts, Range, SessionTime, SessionTimes, session_times, told

NONE = CellFacts("ada", "physics", "interactive", session=1, opened_at=100.0, closed_at=5000.0)
ALL = Range(0, 1e9)


def cell(asked: float, granted: float, seen: float, computed: float | None = None, **more: object) -> CellFacts:
    length = seen - granted
    return NONE._replace(  # type: ignore[arg-type]
        asked_at=asked, granted_at=granted, seen_at=seen, computed=length if computed is None else computed, gpus=2, **more
    )


def times(*cells: CellFacts, within: Range = ALL, now: float = 9000.0) -> SessionTimes:
    found = SessionTimes()
    found.add(cells, within, now)
    return found


def seconds(*cells: CellFacts, **more: object) -> dict[str, float]:
    return {name.value: amount for name, amount in times(*cells, **more).seconds.items() if amount}  # type: ignore[arg-type]


def test_each_moment_of_a_session_counts_once() -> None:
    """A cell waits for 10 s, computes for 20 and is paused for 30; it asks its user for 50, and goes on; then nobody comes."""
    cells = (cell(200, 210, 260, 20, input=True), cell(310, 310, 320), cell(400, 400, 410))
    assert seconds(*cells) == {
        "thinking": 100 + 80, "waited": 10, "computed": 20 + 10 + 10, "paused": 30, "input": 50, "away": 5000 - 410,
    }  # fmt: skip
    found = times(*cells)
    assert (found.cells, found.gpu_seconds, found.sessions, found.measured) == (3, 80, 1, 0)


def test_what_was_measured_of_cells_is_added_up_beside_them() -> None:
    found = times(cell(200, 200, 300, busy=30.0), cell(400, 400, 500, 50, busy=50.0), cell(600, 600, 601))
    assert (found.gpu_seconds, found.measured, found.busy) == (302, 300, 2 * 100 * 0.3 + 2 * 50 * 0.5)


def test_a_session_of_which_no_cell_wanted_a_gpu_was_not_used() -> None:
    assert seconds(NONE) == {"unused": 4900}
    assert seconds(NONE._replace(closed_at=None), now=700.0) == {"unused": 600}


def test_only_what_lies_in_the_range_counts() -> None:
    cells = (cell(200, 200, 300), cell(2000, 2010, 2110))
    assert seconds(*cells, within=Range(250, 2020)) == {"computed": 50 + 10, "away": 1700, "waited": 10}
    assert times(*cells, within=Range(250, 2020)).cells == 1
    assert times(*cells, within=Range(250, 2020)).gpu_seconds == 2 * (50 + 10)


@given(st.lists(st.tuples(*[st.integers(0, 900)] * 4), max_size=8), st.integers(0, 3000), st.integers(1, 3000))
def test_the_parts_add_up_to_the_time_for_which_it_was_open(raw: list[tuple[int, ...]], begin: int, length: int) -> None:
    """Also where cells of several kernels overlap, and clocks disagree."""
    cells = sorted((cell(100 + a, 100 + a + b, 100 + a + b + c, min(c, d)) for a, b, c, d in raw), key=lambda one: one[6] or 0)
    within = Range(begin, begin + length)
    found = times(*(cells or [NONE]), within=within)
    closed = max([5000.0, *(one.seen_at for one in cells)])
    assert abs(sum(found.seconds.values()) - within.overlap(100, closed)) < 1e-6


def test_rows_are_users_accounts_or_classes() -> None:
    bob = NONE._replace(owner="bob", session=2)
    cells = [cell(200, 200, 300), cell(400, 400, 500), bob, bob._replace(session=3, account="biology")]
    assert {name: (row.sessions, row.cells) for name, row in session_times(cells, "user", ALL, 9000).items()} == {
        "ada": (1, 2),
        "bob": (2, 0),
    }
    assert set(session_times(cells, "account", ALL, 9000)) == {"physics", "biology"}
    assert set(session_times(cells, "qos", ALL, 9000)) == {"interactive"}


def test_a_session_in_words() -> None:
    none = dict.fromkeys(SessionTime, 0.0)
    assert told(0, 0.0, None, none) == ""
    assert told(1, 3.0, None, none) == "one had a GPU, 3 GPU-seconds."
    some = none | {SessionTime.WAITED: 61.0, SessionTime.THINKING: 600.0, SessionTime.INPUT: 5.0}
    assert told(12, 7200.0, 40.4, some) == (
        "12 had GPUs, 2.00 GPU-hours, busy for 40 % of them; waited 1 min 1 s for them. "
        "No GPU was used in 5 s for input, 10 min between cells."
    )

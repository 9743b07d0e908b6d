from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.forming import Join, NotebookCell, NotebookSession, form_sessions, named_sessions
from carrel.simulate.trace import TraceJob


def cell(number: int, submitted: float, duration: float, gpus: int = 1, user: str = "u", name: str = "n") -> TraceJob:
    return TraceJob(id=number, submitted=submitted, duration=duration, gpus=gpus, user=user, name=name)


def ids(sessions: Sequence[NotebookSession]) -> list[list[int]]:
    return [[one.id for one in session.cells] for session in sessions]


def test_a_cell_joins_the_idle_session_that_ended_last() -> None:
    cells = [cell(0, 0, 100), cell(1, 10, 20), cell(2, 50, 10), cell(3, 120, 10)]
    sessions = form_sessions(cells)
    # 2 finds only the session of 1 idle; 3 finds that (idle since 60) and the one of 0 (idle since 100).
    assert ids(sessions) == [[0, 3], [1, 2]]
    assert sessions[0].thinks == (0, 20)
    assert sessions[1].thinks == (0, 20)
    assert sessions[1].opens == 10


def test_the_other_rule_joins_the_one_that_is_idle_for_longest() -> None:
    cells = [cell(0, 0, 100), cell(1, 10, 20), cell(2, 50, 10), cell(3, 120, 10)]
    assert ids(form_sessions(cells, join=Join.LONGEST_IDLE)) == [[0], [1, 2, 3]]
    assert ids(form_sessions(cells, join=Join.LONGEST_IDLE, gap=30)) == [[0, 3], [1, 2]]


def test_a_session_is_too_old_after_the_gap_and_not_at_its_end() -> None:
    assert ids(form_sessions([cell(0, 0, 10), cell(1, 70, 10)], gap=60)) == [[0, 1]]
    assert ids(form_sessions([cell(0, 0, 10), cell(1, 71, 10)], gap=60)) == [[0], [1]]


def test_sessions_keep_their_number_of_gpus() -> None:
    sessions = form_sessions([cell(0, 0, 10), cell(1, 20, 10, gpus=4), cell(2, 40, 10, gpus=4)], linger=5)
    assert ids(sessions) == [[0], [1, 2]]
    assert [session.gpus for session in sessions] == [1, 4]
    assert {session.linger for session in sessions} == {5}
    assert sessions[1].gpu_seconds == 80


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100), st.sampled_from([1, 2, 8])), max_size=40),
    st.integers(0, 200),
    st.sampled_from(Join),
)
def test_every_cell_is_in_one_session_and_none_overlaps(rows: list[tuple[int, int, int]], gap: int, join: Join) -> None:
    cells = [cell(number, *row) for number, row in enumerate(rows)]
    sessions = form_sessions(cells, gap=gap, join=join)
    assert sorted(one for session in ids(sessions) for one in session) == list(range(len(cells)))
    assert [session.opens for session in sessions] == sorted(session.opens for session in sessions)
    for session in sessions:
        assert all(0 <= think <= gap for think in session.thinks)
        assert {cells[one.id].gpus for one in session.cells} == {session.gpus}


def test_cells_without_gpus_are_refused() -> None:
    with pytest.raises(Invalid, match="Cell 7 uses 0 GPUs"):
        form_sessions([cell(7, 0, 10, gpus=0)])


def test_a_gap_is_not_negative() -> None:
    with pytest.raises(Invalid, match="gap is -1 s"):
        form_sessions([], gap=-1)


def test_cells_of_a_session_do_not_overlap() -> None:
    cells = (NotebookCell(id=0, submitted=0, duration=10), NotebookCell(id=1, submitted=9, duration=1))
    with pytest.raises(Invalid, match="Cell 1 of session 3 begins at 9 s, before cell 0 ends at 10 s"):
        NotebookSession(id=3, gpus=1, cells=cells)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"cells": ()}, "no cells"), ({"gpus": 0}, "uses 0 GPUs"), ({"linger": -1.0}, "shut down -1 s after")],
)
def test_what_is_no_session(more: dict[str, object], words: str) -> None:
    given: dict[str, Any] = {"id": 0, "gpus": 1, "cells": (NotebookCell(id=0, submitted=0, duration=1),), **more}
    with pytest.raises(Invalid, match=words):
        NotebookSession(**given)


def test_a_trace_may_name_its_sessions() -> None:
    cells = [
        cell(0, 0, 10, user="ada", name="a"),
        cell(1, 5, 10, user="ben", name="a"),
        cell(2, 90, 10, user="ada", name="a"),
        cell(3, 95, 10, user="ada", name="b"),
    ]
    assert ids(named_sessions(cells)) == [[0, 2], [1], [3]]
    with pytest.raises(Invalid, match='"a" of ada use 1 and 2 GPUs'):
        named_sessions([*cells, cell(4, 200, 1, gpus=2, user="ada", name="a")])

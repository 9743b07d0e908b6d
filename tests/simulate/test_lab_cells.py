"""Cells that a lab recorded become a trace and a file; both say the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.cells import Cell, file_of, lab_cells, notes_of, read_cells, sessions_of

pytestmark = pytest.mark.quick
BEGIN = 1_700_000_000.0


def recorded(number: int, asked: float, waited: float, computed: float, *, paused: float = 0.0, **other: Any) -> RecordedCell:
    returned = BEGIN + asked + waited + computed + paused
    cell = RecordedCell(
        broker="b",
        number=number,
        session=7,
        owner="ada",
        attempt=1,
        process="7-70",
        asked_at=BEGIN + asked,
        granted_at=BEGIN + asked + waited,
        returned_at=returned,
        seen_at=returned,
        computed=computed,
        gpus=1,
        gpu_type="h100",
    )
    return replace(cell, **other)


def test_waits_and_pauses_are_taken_out_and_think_times_stay() -> None:
    cells = lab_cells(
        [
            recorded(1, 0.0, 0.0, 10.0),
            recorded(2, 15.0, 60.0, 10.0, paused=5.0),  # over at 90
            recorded(3, 97.0, 3.0, 1.0),
            recorded(4, 50.0, 40.0, 2.0, session=8, owner="bob"),
        ]
    )
    ada, bob = sessions_of(cells)
    assert (ada.name, ada.thinks, ada.computes, ada.opens) == ("7.1", [0.0, 5.0, 7.0], [10.0, 10.0, 1.0], 0.0)
    assert (bob.name, bob.thinks, bob.computes, bob.opens) == ("8.1", [0.0], [2.0], 50.0)


def test_a_session_is_a_process_with_one_number_of_gpus() -> None:
    cells = lab_cells(
        [
            recorded(1, 0.0, 0.0, 1.0),
            recorded(2, 2.0, 0.0, 1.0, process="8-80"),
            recorded(3, 4.0, 0.0, 1.0, gpus=2),
            recorded(4, 6.0, 0.0, 1.0),
        ]
    )
    assert [cell.session for cell in cells] == ["7.1", "7.2", "7.3", "7.1"]
    assert [session.gpus for session in sessions_of(cells)] == [1, 1, 2]


def test_names_can_be_left_out() -> None:
    found = [recorded(1, 0.0, 0.0, 1.0, owner="ada@lab, ext"), recorded(2, 1.0, 0.0, 1.0, session=8, owner="bob")]
    assert [(cell.user, cell.session) for cell in lab_cells(found, names=False)] == [
        ("user-1", "session-1"),
        ("user-2", "session-2"),
    ]
    assert lab_cells(found)[0].user == "ada@lab ext"


def test_an_end_that_nobody_saw_counts_until_it_was_seen_last(tmp_path: Path) -> None:
    cells = lab_cells([recorded(1, 0.0, 2.0, 30.0, returned_at=None), recorded(2, 40.0, 0.0, 1.0)])
    assert cells[0].returned is None
    read = read_cells(written(tmp_path, cells))
    (session,) = sessions_of(read)
    assert (session.thinks, session.computes) == ([0.0, 8.0], [30.0, 1.0])
    assert notes_of(read)[-1] == "Cells whose end nobody saw, and which count until they were seen last: 1."


seconds = st.floats(min_value=0, max_value=1e5).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(seconds, seconds, seconds, st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=20))
def test_the_file_says_what_the_lab_says(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]]) -> None:
    """Also where cells of one process overlap, which they should not: sessions are such that a simulation takes them."""
    cells = lab_cells(
        recorded(number, asked, waited, computed, session=int(job), gpus=int(gpus))
        for number, (asked, waited, computed, job, gpus) in enumerate(rows)
    )
    path = written(tmp_path_factory.mktemp("cells"), cells)
    assert sessions_of(read_cells(path)) == sessions_of(cells)


def test_a_file_needs_no_waits_and_may_say_when_a_session_ended(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(
        "job_id,num_gpu,submit_time,duration,session,user,session_ended\n"
        "1,2,0,60,a,ada,\n2,1,10,60,a,bob,100\n3,2,100,30,a,ada,\n4,2,50,5,a,ada,150.5\n"
    )
    ada, bob = sessions_of(read_cells(path))
    assert (ada.gpus, ada.opens, ada.thinks, ada.computes, ada.linger) == (2, 0, [0.0, 0.0, 40.0], [60.0, 5.0, 30.0], 20.5)
    assert (bob.gpus, bob.opens, bob.linger) == (1, 10, 30)
    path.write_text(path.read_text().replace("bob,100", "bob,60"))
    with pytest.raises(Invalid, match=r"line 3: session_ended is 60, and this cell was over at 70\. Leave it empty"):
        read_cells(path)


def test_an_hour_after_its_last_cell_a_session_is_shut_down_where_nothing_says_when(tmp_path: Path) -> None:
    (session,) = sessions_of(lab_cells([recorded(1, 0.0, 5.0, 10.0)]))
    assert session.linger == 3600


def test_a_session_keeps_its_number_of_gpus(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("job_id,num_gpu,submit_time,duration,session\n1,2,0,60,a\n2,1,100,60,a\n")
    with pytest.raises(Invalid, match='Cells of session "a" of user use 1 and 2 GPUs'):
        sessions_of(read_cells(path))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("job_id,num_gpu,submit_time,duration\n1,1,0,1\n", "line 1: the header .* has no session"),
        ("job_id,num_gpu,submit_time,duration,session\n", "has no cells"),
        ("job_id,num_gpu,submit_time,duration,session\n1,0,0,1,a\n", "line 2: num_gpu is '0'. Write a whole number, 1 or more"),
    ],
)
def test_what_is_no_file_of_cells(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(text)
    with pytest.raises(Invalid, match=fact):
        read_cells(path)


@given(st.text(alphabet='|,:\n"0123456789JobIDnull ', max_size=300), st.booleans())
def test_whatever_a_file_holds_it_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str, headed: bool) -> None:
    path = tmp_path_factory.mktemp("any") / "cells.csv"
    path.write_text(("job_id,num_gpu,submit_time,duration,session\n" if headed else "") + text)
    with suppress(Invalid):
        assert read_cells(path)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,4.0,6.0,", "submit_time, granted and returned are 5, 4 and 6.0"),
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,6.0,5.5,", "submit_time, granted and returned are 5, 6 and 5.5"),
        ("1,1,5.0,0,cell,1.0,0,,ada,6.0,7.0,", "session is empty"),
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,soon,7.0,", "granted is 'soon'"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(tmp_path: Path, line: str, fact: str) -> None:
    path = written(tmp_path, [])
    path.write_text(path.read_text() + "2,1,0.0,0,cell,1.0,0,7.1,ada,0.0,1.0,\n" + line + "\n")
    with pytest.raises(Invalid, match=fact) as error:
        read_cells(path)
    assert "line 3" in str(error.value)


def test_two_cells_with_one_number_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    line = "1,1,0.0,0,cell,1.0,0,7.1,ada,0.0,1.0,\n"
    path.write_text(path.read_text() + line + line)
    with pytest.raises(Invalid, match="cell 1 again"):
        read_cells(path)


def written(directory: Path, cells: Sequence[Cell]) -> Path:
    path = directory / "cells.csv"
    path.write_text("".join(f"{line}\n" for line in file_of(cells)))
    return path

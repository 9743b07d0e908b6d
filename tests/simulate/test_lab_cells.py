"""Cells that a lab recorded become a trace and a file; both say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.forming import named_sessions
from carrel.simulate.traces import read_trace
from carrel.simulate.traces.cells import names_sessions
from carrel.simulate.traces.lab_cells import LabCell, file_of, lab_cells, without_waits

pytestmark = pytest.mark.quick
BEGIN = 1_700_000_000.0


def recorded(number: int, asked: float, waited: float, computed: float, *, paused: float = 0.0, **other: object) -> RecordedCell:
    returned = BEGIN + asked + waited + computed + paused
    cell = RecordedCell(
        broker="b",
        number=number,
        job_id=7,
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
    return replace(cell, **other)  # type: ignore[arg-type]


def test_waits_and_pauses_are_taken_out_and_think_times_stay() -> None:
    cells = lab_cells(
        [
            ("ada", recorded(1, 0.0, 0.0, 10.0)),
            ("ada", recorded(2, 15.0, 60.0, 10.0, paused=5.0)),  # over at 90
            ("ada", recorded(3, 97.0, 3.0, 1.0)),
            ("bob", recorded(4, 50.0, 40.0, 2.0, job_id=8)),
        ]
    )
    jobs = without_waits(cells)
    assert [(job.name, job.user, job.submitted, job.duration) for job in jobs] == [
        ("7.1", "ada", 0.0, 10.0),
        ("7.1", "ada", 15.0, 10.0),
        ("8.1", "bob", 50.0, 2.0),
        ("7.1", "ada", 32.0, 1.0),
    ]
    ada, bob = named_sessions(jobs)
    assert (ada.thinks, bob.thinks, bob.opens) == ((0.0, 5.0, 7.0), (0.0,), 50.0)


def test_a_session_is_a_process_with_one_number_of_gpus() -> None:
    cells = lab_cells(
        [
            ("ada", recorded(1, 0.0, 0.0, 1.0)),
            ("ada", recorded(2, 2.0, 0.0, 1.0, process="8-80")),
            ("ada", recorded(3, 4.0, 0.0, 1.0, gpus=2)),
            ("ada", recorded(4, 6.0, 0.0, 1.0)),
        ]
    )
    assert [cell.session for cell in cells] == ["7.1", "7.2", "7.3", "7.1"]
    assert [session.gpus for session in named_sessions(without_waits(cells))] == [1, 1, 2]


def test_names_can_be_left_out() -> None:
    found = [("ada@lab, ext", recorded(1, 0.0, 0.0, 1.0)), ("bob", recorded(2, 1.0, 0.0, 1.0, job_id=8))]
    assert [(cell.user, cell.session) for cell in lab_cells(found, names=False)] == [
        ("user-1", "session-1"),
        ("user-2", "session-2"),
    ]
    assert lab_cells(found)[0].user == "ada@lab ext"


def test_an_end_that_nobody_saw_counts_until_it_was_seen_last(tmp_path: Path) -> None:
    cells = lab_cells([("ada", recorded(1, 0.0, 2.0, 30.0, returned_at=None)), ("ada", recorded(2, 40.0, 0.0, 1.0))])
    assert cells[0].returned is None
    trace = read_trace(written(tmp_path, cells), form="cells")
    assert [(job.submitted, job.duration) for job in trace.jobs] == [(0.0, 30.0), (38.0, 1.0)]
    assert any("Cells whose end nobody saw, and which count until they were seen last: 1." in note for note in trace.notes)


seconds = st.floats(min_value=0, max_value=1e5).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(seconds, seconds, seconds, st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=20))
def test_the_file_says_what_the_lab_says(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, ...]]) -> None:
    """Also where cells of one process overlap, which they should not: sessions are such that a simulation takes them."""
    found = [
        ("ada", recorded(number, asked, waited, computed, job_id=int(job), gpus=int(gpus)))
        for number, (asked, waited, computed, job, gpus) in enumerate(rows)
    ]
    cells = lab_cells(found)
    path = written(tmp_path_factory.mktemp("cells"), cells)
    ours = named_sessions(sorted(without_waits(cells), key=lambda job: job.submitted))
    assert names_sessions(path)
    theirs = named_sessions(read_trace(path, form="cells").jobs)
    assert theirs == ours


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,4.0,6.0,", "submit_time, granted and returned are 5.0, 4.0 and 6.0"),
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,6.0,5.5,", "submit_time, granted and returned are 5.0, 6.0 and 5.5"),
        ("1,1,5.0,0,cell,1.0,0,,ada,6.0,7.0,", "session is empty"),
        ("1,1,5.0,0,cell,1.0,0,7.1,ada,soon,7.0,", "granted is 'soon'"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(tmp_path: Path, line: str, fact: str) -> None:
    path = written(tmp_path, [])
    path.write_text(path.read_text() + "2,1,0.0,0,cell,1.0,0,7.1,ada,0.0,1.0,\n" + line + "\n")
    with pytest.raises(Invalid, match=fact) as error:
        read_trace(path, form="cells")
    assert "line 3" in str(error.value)


def test_two_cells_with_one_number_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    line = "1,1,0.0,0,cell,1.0,0,7.1,ada,0.0,1.0,\n"
    path.write_text(path.read_text() + line + line)
    with pytest.raises(Invalid, match="job 1 again"):
        read_trace(path, form="cells")


def written(directory: Path, cells: Sequence[LabCell]) -> Path:
    path = directory / "cells.csv"
    path.write_text("".join(f"{line}\n" for line in file_of(cells)))
    return path

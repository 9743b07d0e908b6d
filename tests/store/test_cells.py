"""What is kept of cells, on every database that a lab may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from stored import add_jobs, new_job

from carrel.core.control.cells import Cells
from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Denied, Unavailable
from carrel.core.domain.qos import JobKind
from carrel.core.domain.user import Caller, Role, User
from carrel.lab.store import Store

CELL = RecordedCell(
    broker="b",
    number=1,
    session=1,
    attempt=1,
    process="7-70",
    asked_at=100.0,
    granted_at=101.5,
    returned_at=110.25,
    seen_at=110.25,
    computed=8.75,
    gpus=2,
    gpu_type="h100",
    gpu_memory=80 * 1024**3,
    outcome="ok",
)


def told(found: Sequence[RecordedCell]) -> list[RecordedCell]:
    """Without what the lab adds."""
    return [replace(cell, id=0, owner="") for cell in found]


@pytest.fixture
def store(store: Store) -> Store:
    """Job 1 is Ada's, job 2 Bob's."""
    add_jobs(store, *(new_job(name, kind=JobKind.SESSION, qos="interactive") for name in ("ada", "bob")))
    return store


@pytest.mark.gate
def test_what_a_broker_tells_twice_is_written_down_once(store: Store) -> None:
    second, other = replace(CELL, number=2), replace(CELL, broker="c")
    store.cells.add([CELL, second])
    store.cells.add([second, replace(CELL, number=3, returned_at=None), other])
    store.cells.add([])
    found = store.cells.list()
    assert [(kept.broker, kept.number) for kept in found] == [("b", 1), ("b", 2), ("b", 3), ("c", 1)]
    assert told(found[:2]) == [CELL, second]
    assert found[2].returned_at is None
    assert {kept.owner for kept in found} == {"ada"}


def test_a_number_that_a_broker_gives_again_is_another_cell(store: Store) -> None:
    """Its journal was damaged, and it has forgotten that it gave it."""
    again = replace(CELL, asked_at=CELL.asked_at + 0.1)
    store.cells.add([CELL])
    store.cells.add([CELL, again])
    assert told(store.cells.list()) == [CELL, again]
    assert store.cells.missing() == 0


def test_cells_are_read_page_by_page_by_owner_and_from_a_moment_on(store: Store) -> None:
    cells = [replace(CELL, number=n, session=1 + n % 2, asked_at=100.0 + n) for n in range(1, 8)]
    store.cells.add(cells)
    first = store.cells.list(limit=3)
    rest = store.cells.list(after=first[-1].id)
    assert told([*first, *rest]) == cells
    assert [kept.number for kept in store.cells.list(owner="ada")] == [2, 4, 6]
    assert [kept.number for kept in store.cells.list(owner="bob", since=104.0)] == [5, 7]


def test_of_jobs_of_another_lab_nothing_is_kept(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.cells.add([replace(CELL, session=4711), CELL])
    assert told(store.cells.list()) == [CELL]
    assert "jobs that this lab does not have: 4711" in caplog.text


def test_what_is_missing_is_counted_and_what_was_removed_is_not(store: Store) -> None:
    assert store.cells.missing() == 0
    store.cells.add([replace(CELL, number=n, seen_at=float(n)) for n in (3, 4, 7, 8, 10)] + [replace(CELL, broker="c", number=9)])
    assert store.cells.missing() == 3
    assert store.retention.cells_before(5.0) == 2
    store.retention.drop_cells(5.0)
    assert store.retention.cells_before(1e9) == 4
    assert store.cells.missing() == 1


def test_everybodys_are_for_operators_and_administrators(store: Store) -> None:
    store.cells.add([CELL, replace(CELL, number=3, session=2)])
    cells = Cells(store=store.cells)

    def read(name: str, role: Role, *, everybody: bool) -> tuple[list[str], int | None]:
        caller = Caller(user=User(subject=name, name=name, role=role))
        page = cells.read(caller, everybody=everybody, since=None, after=0, limit=10)
        return [kept.owner for kept in page.cells], page.missing

    assert read("ada", Role.USER, everybody=False) == (["ada"], None)
    for role in (Role.OPERATOR, Role.ADMIN):
        assert read("ada", role, everybody=True) == (["ada", "bob"], 1)
        assert read("olga", role, everybody=False) == ([], None)
    for role in (Role.USER, Role.MANAGER):
        with pytest.raises(Denied, match="may not read the recorded cells of others"):
            read("ada", role, everybody=True)


def test_what_cannot_be_written_down_now_is_to_be_told_again(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def add(self, found: object) -> None:
            raise Unavailable("The lab's database does not answer.")

    assert not Cells(store=Away()).keep([CELL])  # type: ignore[arg-type]
    assert "cannot be written down now" in caplog.text
    assert Cells(store=store.cells).keep([CELL])

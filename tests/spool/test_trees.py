"""Directories as a job may leave them: deep, closed to their owner, full of links, and moved while they are looked through."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.core.spool import Spool
from carrel.core.spool.checkpoint import note_checkpoint, wrote_checkpoint
from carrel.core.spool.trees import entries_below, remove_tree, room_of, scratch_directory
from carrel.lab.retention.removal import remove_tree as remove_unused_tree
from carrel.testing.builders import make_deep

#: Deeper than Python recurses, and than a process may have files open; no path leads to its end (PATH_MAX).
DEEP = 3000


def test_a_deep_directory_is_measured_and_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top, DEEP, b"x" * 50_000)
    assert sum(1 for _ in entries_below(top)) == DEEP + 1
    assert room_of(top) >= 50_000
    remove_tree(top)
    assert not any(tmp_path.iterdir())


def test_one_that_its_owner_may_not_empty_or_read_goes(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name, mode in (("readable", 0o500), ("listed", 0o400), ("entered", 0o100), ("closed", 0)):
        inner = top / name / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_text("x")
        inner.chmod(mode)
        inner.parent.chmod(mode)
    top.chmod(0o500)
    remove_unused_tree(top)
    assert not any(tmp_path.iterdir())


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    top.mkdir()
    (outside / "kept").write_bytes(os.urandom(100_000))
    (top / "away").symlink_to(outside)
    (top / "file").symlink_to(outside / "kept")
    os.mkfifo(top / "pipe")
    assert [entry.is_directory for entry in entries_below(top)] == [False] * 3
    assert room_of(top) < 50_000
    remove_tree(top)
    assert not top.exists()
    top.symlink_to(outside)
    remove_tree(top)
    assert list(entries_below(top)) == []
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_what_is_moved_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    """Its way up would be another directory's."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    (top / "a/b/c").mkdir(parents=True)
    (outside / "kept").mkdir(parents=True)
    (top / "a/b/c/file").write_text("x")
    (top / "beside").mkdir()
    found = []
    for entry in entries_below(top):
        found.append(entry.name)
        if entry.name == "file":
            (top / "a/b").rename(outside / "b")
            (top / "a").rename(top / "a2")
            (top / "a").symlink_to(outside)
    assert set(found) <= {"file", "c", "beside", "a", "a2"}
    assert "beside" in found
    assert "kept" not in found


def test_each_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(os.urandom(100_000))
    (tmp_path / "again").hardlink_to(tmp_path / "a/file")
    seen: set[tuple[int, int]] = set()
    assert 100_000 <= room_of(tmp_path, seen) < 200_000
    assert room_of(tmp_path, seen) == 0
    assert room_of(tmp_path / "missing") == 0
    assert 100_000 <= room_of(tmp_path / "again") < 200_000


def test_in_order_what_is_in_a_directory_comes_before_what_is_below_it_and_one_may_be_left_out(tmp_path: Path) -> None:
    for name in ("b/d/e", "b/d2/f", "b/not/g", "z/h"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    for name in ("y", "b/x", "b/a"):
        (tmp_path / name).touch()
    found = [entry.path for entry in entries_below(tmp_path, ordered=True, enter=lambda entry: entry.path != "b/not")]
    assert [path for path in found if path.endswith(("file", "a", "x", "y"))] == [
        *("y", "b/a", "b/x", "b/d/e/file", "b/d2/f/file", "z/h/file")
    ]
    assert "b/not" in found
    assert "b/not/g" not in found


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_what_cannot_be_looked_into_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    closed: list[str] = []
    assert [entry.name for entry in entries_below(tmp_path, closed=closed.append)] == ["closed"]
    assert closed == ["closed"]
    (tmp_path / "closed").chmod(0o700)


def test_what_a_program_left_in_its_scratch_directory_goes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_directory(tmp_path) as place:
        make_deep(place, DEEP)
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_may_be_as_deep(tmp_path: Path) -> None:
    attempt = Spool(tmp_path).attempt(1, 1)
    attempt.path.mkdir(parents=True)
    attempt.checkpoint.mkdir()
    make_deep(attempt.checkpoint, DEEP)
    note_checkpoint(attempt)
    assert not wrote_checkpoint(attempt)
    (attempt.checkpoint / "state").write_text("1")
    assert wrote_checkpoint(attempt)
    remove_tree(attempt.checkpoint)

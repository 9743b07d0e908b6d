"""How much of the disk a job may take: where it writes, what it deletes and keeps open, what it hides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchLimits
from carrel.core.spool.trees import remove_tree
from carrel.node.runner.disk import DiskGuard, free_room
from carrel.testing.builders import make_deep

MIB = 1024**2

#: Each writes 48 MiB where the words before it say.
WRITES = {
    "working directory": "dd if=/dev/zero of=big bs=1M count=48 status=none",
    "temporary directory": 'dd if=/dev/zero of="$TMPDIR/big" bs=1M count=48 status=none',
    "checkpoints": 'dd if=/dev/zero of="$CARREL_CHECKPOINT_DIR/big" bs=1M count=48 status=none',
    "many files": "dd if=/dev/zero bs=1M count=48 status=none | split -b 64K -",
    "no name": "exec 9>gone; rm gone; dd if=/dev/zero bs=1M count=48 status=none >&9",
}


@pytest.mark.gate
@pytest.mark.parametrize("where", WRITES)
def test_who_takes_more_than_a_job_may_have_is_ended(where, lab):
    ended = lab.run(f"{WRITES[where]} && sleep 600", limits=LaunchLimits(disk=32 * MIB))
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "DiskLimit")
    assert "a job may have 32M here (disk_limit)" in ended.reason.message


def test_who_stays_below_goes_on(lab):
    command = "for i in 1 2 3 4; do dd if=/dev/zero of=big bs=1M count=24 status=none; rm big; done"
    assert lab.run(command, limits=LaunchLimits(disk=32 * MIB)).state is JobState.COMPLETED


class Machine:
    """A disk whose free room, and a clock whose time, are what a test says."""

    def __init__(self) -> None:
        self.free, self.now = 1000 * MIB, 0.0
        self.asked = 0

    def room(self, _places: Sequence[str]) -> dict[int, int]:
        self.asked += 1
        return {1: self.free}

    def guard(self, limit: int, *places: Path, home: str = "") -> DiskGuard:
        return DiskGuard(limit, list(map(str, places)), home=home, free=self.room, monotonic=lambda: self.now)


def counted(guard: DiskGuard) -> int | None:
    """What a count that has begun finds."""
    for _ in range(1000):
        found, pause = guard.look()
        if found is not None or pause:
            return found
    raise AssertionError("it counts for ever")


def write(path: Path, size: int) -> None:
    path.write_bytes(os.urandom(size))


def test_files_are_counted_when_the_disk_says_so_or_after_a_while(tmp_path: Path) -> None:
    machine = Machine()
    guard = machine.guard(8 * MIB, tmp_path)
    assert counted(guard) is None
    write(tmp_path / "a", 9 * MIB)
    assert counted(guard) is None, "the disk has lost nothing"
    machine.free -= 9 * MIB
    found = counted(guard)
    assert found is not None
    assert found >= 9 * MIB
    (tmp_path / "a").unlink()
    machine.now += 61
    assert counted(guard) is None
    write(tmp_path / "a", 9 * MIB)
    assert counted(guard) is None
    machine.now += 61
    assert counted(guard) is not None, "others have freed room meanwhile"


def test_of_a_home_only_what_has_come_since_counts(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    write(home / "old", 20 * MIB)
    machine = Machine()
    guard = machine.guard(8 * MIB, work, home=str(home))
    assert counted(guard) is None
    write(home / "new", 9 * MIB)
    machine.free -= 9 * MIB
    assert counted(guard) is not None
    (home / "new").unlink()
    (home / "old").unlink()
    write(work / "big", 9 * MIB)
    machine.now += 61
    assert counted(guard) is not None, "room that was made at home is not earned elsewhere"


def test_links_are_counted_once_and_not_followed(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    write(elsewhere / "big", 9 * MIB)
    write(work / "half", 5 * MIB)
    (work / "again").hardlink_to(work / "half")
    (work / "away").symlink_to(elsewhere)
    assert counted(Machine().guard(8 * MIB, work)) is None


def test_what_no_path_leads_to_counts(tmp_path: Path) -> None:
    machine = Machine()
    guard = machine.guard(8 * MIB, tmp_path)
    assert counted(guard) is None
    make_deep(tmp_path, 2000, os.urandom(9 * MIB))
    machine.free -= 9 * MIB
    found = counted(guard)
    remove_tree(tmp_path)  # pytest could not
    assert found is not None
    assert found > 9 * MIB


@pytest.mark.skipif(os.geteuid() == 0, reason="root looks into every directory")
def test_what_cannot_be_looked_into_counts_as_what_the_disk_has_lost(tmp_path: Path) -> None:
    machine = Machine()
    guard = machine.guard(8 * MIB, tmp_path)
    assert counted(guard) is None
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/big").write_bytes(os.urandom(9 * MIB))
    (tmp_path / "closed").chmod(0)
    machine.free -= 9 * MIB
    assert counted(guard) == 9 * MIB
    (tmp_path / "closed").chmod(0o700)


def test_the_free_room_of_a_disk_is_asked_for_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert len(free_room([str(tmp_path), str(tmp_path / "a"), "", str(tmp_path / "none")])) == 1

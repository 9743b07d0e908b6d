"""How much of the disk a job may take: where it writes, what it deletes and keeps open, what it hides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchLimits
from carrel.core.domain.session import SessionSpec
from carrel.core.spool.trees import remove_tree
from carrel.node.runner.disk import DiskGuard, DiskUse, disk_guard, free_room
from carrel.node.runner.prepared import Prepared
from carrel.node.runner.variables import Places
from carrel.testing.builders import LabHome, make_deep, make_launch

MIB = 1024**2

#: Each writes 48 MiB where the words before it say.
WRITES = {
    "working directory": "dd if=/dev/zero of=big bs=1M count=48 status=none",
    "temporary directory": 'dd if=/dev/zero of="$TMPDIR/big" bs=1M count=48 status=none',
    "checkpoints": 'dd if=/dev/zero of="$CARREL_CHECKPOINT_DIR/big" bs=1M count=48 status=none',
    "many files": "dd if=/dev/zero bs=1M count=48 status=none | split -b 64K -",
    "../group": "mkdir -p ../group && dd if=/dev/zero of=../group/big bs=1M count=48 status=none",
    "no name": "exec 9>gone; rm gone; dd if=/dev/zero bs=1M count=48 status=none >&9",
}


@pytest.mark.gate
@pytest.mark.parametrize("where", WRITES)
def test_who_takes_more_than_a_job_may_have_is_ended(where, lab):
    ended = lab.run(f"{WRITES[where]} && sleep 600", limits=LaunchLimits(disk=32 * MIB))
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "DiskLimit")
    assert "a job may have 32M here (disk_limit)" in ended.reason.message


def test_who_makes_more_files_than_a_job_may_have_is_ended(lab):
    ended = lab.run("mkdir many; seq 3000 | (cd many; xargs touch) && sleep 600", limits=LaunchLimits(files=2000))
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "DiskLimit")
    assert "a job may have 2000 here (disk_files)" in ended.reason.message


def test_what_lies_in_memory_takes_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a name: of memfd_create(2), in /dev/shm, and on the disk."""
    monkeypatch.setattr("carrel.node.runner.disk._AGAIN", 0.0)
    guard = DiskGuard(DiskUse(32 * MIB), [str(tmp_path)], processes=lambda: [os.getpid()])
    with (
        open(os.memfd_create("memory"), "wb") as memory,
        TemporaryFile(dir="/dev/shm") as shared,
        TemporaryFile(dir=tmp_path) as kept,
    ):
        for file in (memory, shared):
            file.write(bytes(48 * MIB))
            file.flush()
        assert guard.look()[0] is None
        kept.write(bytes(48 * MIB))
        kept.flush()
        found = guard.look()[0]
    assert 48 * MIB <= found.size < 64 * MIB


def test_what_a_session_leaves_among_its_owners_files_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before does not."""
    monkeypatch.setattr("carrel.node.runner.disk._AGAIN", 0.0)
    home = LabHome(tmp_path)
    files, environment = tmp_path / "files" / "alice", tmp_path / "environments" / "alice"
    for place in (files, environment):
        place.mkdir(parents=True)
        write(place / "old", 48 * MIB)
    launch = make_launch(home, "true", task={"session": SessionSpec(directory=str(files))}, limits=LaunchLimits(disk=32 * MIB))
    launch = replace(launch, paths=replace(launch.paths, closed=(str(tmp_path),)))
    places = Places(outputs=files, temporary=tmp_path / "tmp", environment=environment)
    prepared = Prepared(command="true", directory=files, places=places, activated={}, lock="")
    for place in (files, environment):
        guard = disk_guard(launch, home.attempt(launch), prepared)
        guard.count_first()
        write(place / "new", 33 * MIB)
        assert any(guard.look()[0] for _ in range(100))
        (place / "new").unlink()


def test_who_stays_below_goes_on(lab):
    command = "for i in 1 2 3 4; do dd if=/dev/zero of=big bs=1M count=24 status=none; rm big; done"
    assert lab.run(command, limits=LaunchLimits(disk=32 * MIB)).state is JobState.COMPLETED


class Machine:
    """A disk whose free room, and a clock whose time, are what a test says."""

    def __init__(self) -> None:
        self.free, self.inodes, self.now = 1000 * MIB, 100_000, 0.0

    def room(self, _places: Sequence[str]) -> dict[int, DiskUse]:
        return {1: DiskUse(self.free, self.inodes)}

    def guard(self, limit: int, *places: Path, files: int = 0, home: str = "") -> DiskGuard:
        grown = [home] if home else []
        limits = DiskUse(limit, files)
        return DiskGuard(limits, list(map(str, places)), grown=grown, free=self.room, monotonic=lambda: self.now)


def counted(guard: DiskGuard) -> int | None:
    """What a count that has begun finds."""
    for _ in range(1000):
        found, pause = guard.look()
        if found is not None or pause:
            return None if found is None else found.size
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
    assert found >= 9 * MIB
    (tmp_path / "a").unlink()
    machine.now += 61
    assert counted(guard) is None
    write(tmp_path / "a", 9 * MIB)
    assert counted(guard) is None
    machine.now += 61
    assert counted(guard) is not None, "others have freed room meanwhile"


def test_empty_files_are_counted_when_the_disk_has_fewer_to_give(tmp_path: Path) -> None:
    machine = Machine()
    guard = machine.guard(8 * MIB, tmp_path, files=100)
    assert counted(guard) is None
    for number in range(101):
        (tmp_path / str(number)).touch()
    assert counted(guard) is None, "the disk has lost nothing"
    machine.inodes -= 101
    assert counted(guard) is not None


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

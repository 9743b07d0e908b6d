"""The watch over the lab's disks: what it says at which level, and when the reserve is given back and set aside again."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.core.control.queue_report import QueueReport
from carrel.core.control.storage import StorageWatch
from carrel.core.domain.errors import StorageFull
from carrel.core.domain.job import Reason
from carrel.core.domain.storage import Disk, Room
from carrel.core.domain.units import GIB, MIB, TIB


class Disks:
    """Disks as a test says they are; a reserve that is set aside takes its room from the first one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.total, self.free = TIB, 500 * GIB
        self.other: Disk | None = None
        self.takes_files = True

    def read(self, path: Path) -> Disk:
        if self.other is not None and path.name == "spool":
            return self.other
        held = 16 * MIB if (self.home / "reserve").exists() else 0
        return Disk(path="/home", total=self.total, free=self.free - held, takes_files=self.takes_files)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    return Disks(tmp_path)


def watch(disks: Disks, floor: int | None = None) -> StorageWatch:
    return StorageWatch(disks.home, {"spool": disks.home / "spool"}, floor=floor, read=disks.read)


def test_levels_are_told_with_numbers_and_each_change_once(disks: Disks) -> None:
    watched, changes = watch(disks), []
    end = watched.subscribe(lambda: changes.append([one.room for one in watched.disks()]))
    assert (watched.short(), watched.halted(), watched.make_room()) == (None, None, False)
    disks.free = 900 * MIB
    watched.look()
    watched.look()
    halted = watched.halted()
    assert halted.code == "StorageFull"
    assert "The lab's disk /home (home) is nearly full: 884M of 1T are free. Nothing starts below 1G." in halted.message
    watched.check()  # work is still taken
    disks.free = 500 * GIB
    watched.look()
    assert changes == [[Room.LOW], [Room.OK]]
    end()


def test_the_reserve_is_given_back_and_set_aside_again(disks: Disks) -> None:
    watched, reserve = watch(disks), disks.home / "reserve"
    assert reserve.stat().st_size == 16 * MIB
    assert reserve.stat().st_blocks * 512 >= 16 * MIB
    disks.free = 20 * MIB
    watched.look()
    assert not reserve.exists()
    with pytest.raises(StorageFull, match=r"is full: 20M of 1T are free"):
        watched.check()
    disks.free = 40 * MIB  # what was given back is for what ends: nothing new is taken because of it
    watched.look()
    with pytest.raises(StorageFull):
        watched.check()
    disks.free = 60 * MIB
    watched.check()  # nobody has looked since
    assert reserve.exists()
    short = watched.short()
    assert short.room is Room.LOW


def test_a_write_that_failed_frees_the_reserve_at_once_unless_that_would_not_help(disks: Disks) -> None:
    watched = watch(disks)
    disks.free = 40 * MIB
    assert watched.make_room()
    assert not watched.make_room()
    disks.free = 500 * GIB  # a database on a machine of its own is full
    watched.look()
    assert not watched.make_room()
    assert (disks.home / "reserve").exists()


def test_parts_on_other_disks_and_disks_without_inodes(disks: Disks) -> None:
    disks.other = Disk(path="/scratch", total=100 * GIB, free=3 * GIB)
    watched = watch(disks, floor=5 * GIB)
    short = watched.short()
    assert (short.disk.path, short.holds, short.floor) == ("/scratch", "spool", 5 * GIB)
    disks.other = None
    disks.takes_files = False
    watched.look()
    short = watched.short()
    assert "No inode is left on it." in short.message
    assert short.room is Room.FULL


def test_an_outlook_without_a_picture_holds_nobody() -> None:
    assert QueueReport(None, 0.0, halt=Reason(code="StorageFull", message="")).wait_of(1) is None

"""Disks that work is written to: how much room is left, in words for everybody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.units import GIB, format_size

#: Without another word from the lab's administrator nothing starts below this, or below this part of a smaller disk.
FLOOR, FLOOR_PART = GIB, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One file system at one moment."""

    #: Where it is mounted.
    path: str
    #: Bytes: all there are, and those that its present user may still write.
    total: int
    free: int
    #: False when no further file can be made on it (no inode is left).
    takes_files: bool = True

    def describe(self) -> str:
        """ "the disk /home: 12M of 48M are free"."""
        files = "" if self.takes_files else ", and it takes no more files (no inode is left)"
        return f"the disk {self.path}: {format_size(self.free)} of {format_size(self.total)} are free{files}"

    def floor(self, setting: int | None) -> int:
        """Bytes that must be free for something to start; `setting` is the administrator's word."""
        return min(FLOOR, self.total // FLOOR_PART) if setting is None else setting


class Room(StrEnum):
    """How much room a disk of the lab's has."""

    #: Things start.
    OK = "ok"
    #: Less than the floor is free: nothing starts.
    LOW = "low"
    #: Next to nothing is free: the lab writes down what ends, and takes nothing new.
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabDisk:
    """A disk that the lab writes to."""

    disk: Disk
    #: What the lab has there ("home", "home, database").
    holds: str
    #: Bytes that must be free for something to start.
    floor: int
    room: Room

    @property
    def message(self) -> str:
        """The fact, with numbers."""
        disk, how = self.disk, {Room.OK: "has room", Room.LOW: "is nearly full", Room.FULL: "is full"}[self.room]
        inodes = "" if disk.takes_files else " No inode is left on it."
        stops = "" if self.room is Room.OK else f" Nothing starts below {format_size(self.floor)}."
        free = f"{format_size(disk.free)} of {format_size(disk.total)} are free."
        return f"The lab's disk {disk.path} ({self.holds}) {how}: {free}{inodes}{stops}"

    @property
    def remedy(self) -> str:
        """What can be done."""
        return f"Free space on {self.disk.path}, or ask an administrator to."


def fullest(disks: Iterable[LabDisk]) -> LabDisk | None:
    """Return the disk to tell of, or None when all have room: a full one before one that is nearly full."""
    short = [one for one in disks if one.room is not Room.OK]
    return min(short, key=lambda one: (one.room is not Room.FULL, one.disk.free), default=None)

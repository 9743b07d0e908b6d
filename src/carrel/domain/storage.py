"""Disks that work is written to: how much room is left, in the words that everybody is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.domain.units import GIB, format_size

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A disk of the lab's on which too little is free."""

    disk: Disk
    #: What the lab has on it ("state, spool").
    holds: str
    #: Bytes that must be free for something to start.
    floor: int
    #: True when next to nothing is left: the lab writes down what ends, and takes nothing new.
    full: bool = False

    @property
    def message(self) -> str:
        """The fact, with numbers."""
        how = "is full" if self.full else "is nearly full"
        disk = self.disk
        inodes = "" if disk.takes_files else " No inode is left on it."
        return (
            f"The lab's disk {disk.path} ({self.holds}) {how}: {format_size(disk.free)} of {format_size(disk.total)} are free."
            f"{inodes} Nothing starts below {format_size(self.floor)}."
        )

    @property
    def remedy(self) -> str:
        """What can be done."""
        return f"Free space on {self.disk.path}, or ask an administrator to."


def worst(shortages: Sequence[Shortage]) -> Shortage | None:
    """Return the one to tell of first: a full disk before one that is nearly full, then the one with the least room."""
    return min(shortages, key=lambda one: (not one.full, one.disk.free), default=None)

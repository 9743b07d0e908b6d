"""Room on the lab's disks: looked at each second, so that nobody finds out about a full one by what it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.errors import StorageFull
from carrel.core.domain.job import Reason
from carrel.core.domain.storage import Disk, LabDisk, Room, fullest
from carrel.core.domain.units import MIB
from carrel.core.spool.disk import Reserve, disk_of

_log = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_SECONDS = 1.0
#: Bytes that are set aside at most, and which part of a smaller disk.
_RESERVE, _RESERVE_PART = 16 * MIB, 32
#: A disk without a reserve counts as full below this part of it.
_FULL_PART = 1000


class StorageWatch:
    """Watches the disks on which the lab's home and its parts lie. Thread-safe.

    On the disk of the home a reserve is set aside. It is given back when that disk is full, so that the ends of what runs can be
    written down; until there is room for it again, nothing new is taken.
    """

    def __init__(
        self, home: Path, parts: Mapping[str, Path], *, floor: int | None, read: Callable[[Path], Disk] = disk_of
    ) -> None:
        """`parts` are directories by name that may lie on other disks than `home`; `floor` is the setting."""
        self._home = home
        self._parts = parts
        self._floor = floor
        self._read = read
        self._size = min(_RESERVE, max(1, read(home).total // _RESERVE_PART))
        self._reserve = Reserve(home / "reserve", self._size)
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self._disks: tuple[LabDisk, ...] = ()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)
        self.look()

    # ---- what others ask

    def disks(self) -> Sequence[LabDisk]:
        """All disks, as they were when somebody looked last."""
        return self._disks

    def short(self) -> LabDisk | None:
        """The disk to tell of, or None when all have room."""
        return fullest(self._disks)

    def check(self) -> None:
        """Raise `StorageFull` when a disk is full: what is left is for what ends."""
        short = self.short()
        if short is not None and short.room is Room.FULL:
            self.look()  # somebody may just have made room
            short = self.short()
        if short is not None and short.room is Room.FULL:
            raise StorageFull(short.message, remedy=short.remedy)

    def halted(self) -> Reason | None:
        """Why nothing starts, or None."""
        short = self.short()
        return None if short is None else Reason(code="StorageFull", message=f"{short.message} {short.remedy}")

    def make_room(self) -> bool:
        """Something could not be written: give the reserve back; return whether that makes a difference."""
        with self._lock:
            elsewhere = self._read(self._home).free >= 3 * self._size  # another disk, or a database of its own
            if elsewhere or not self._reserve.release():
                return False
            _log.warning("The reserve of %d bytes was given back: something could not be written.", self._size)
        self.look()
        return True

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (from any thread) when a disk has become full, or has room again, until the result is called."""
        with self._lock:
            self._callbacks.append(callback)

        def end() -> None:
            with self._lock, suppress(ValueError):
                self._callbacks.remove(callback)

        return end

    # ---- looking

    def start(self) -> None:
        """Look each second from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. The reserve stays."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """See how much room there is; give the reserve back or set it aside; tell those who want to know of a change."""
        with self._lock:
            before = {one.disk.path: one.room for one in self._disks}
            self._disks = tuple(self._found())
            changed = [one for one in self._disks if before.get(one.disk.path, Room.OK) is not one.room]
            callbacks = tuple(self._callbacks) if changed else ()
        for one in changed:
            _log.log(logging.INFO if one.room is Room.OK else logging.WARNING, "%s", one.message)
        for callback in callbacks:
            callback()

    def _found(self) -> Sequence[LabDisk]:
        home = self._judged(self._home_disk(), "home", full=not self._reserve.held)
        found = {home.disk.path: home}
        for name, path in self._parts.items():
            with suppress(OSError):  # what cannot be looked at is somebody else's error
                disk = self._read(path)
                known = found.get(disk.path)
                if known is None:
                    found[disk.path] = self._judged(disk, name, full=disk.free < disk.total // _FULL_PART)
                elif known is not home:
                    found[disk.path] = replace(known, holds=f"{known.holds}, {name}")
        return list(found.values())

    def _home_disk(self) -> Disk:
        disk = self._read(self._home)
        if self._reserve.held:
            if disk.free <= self._size // 2 and self._reserve.release():
                disk = self._read(self._home)
        elif disk.free >= 3 * self._size and self._reserve.take():
            disk = self._read(self._home)
        return disk

    def _judged(self, disk: Disk, holds: str, *, full: bool) -> LabDisk:
        floor = disk.floor(self._floor)
        low = disk.free < floor or not disk.takes_files
        room = Room.FULL if full or not disk.takes_files else Room.LOW if low else Room.OK
        return LabDisk(disk=disk, holds=holds, floor=floor, room=room)

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - after any error, the next look may see
                _log.exception("The disks could not be looked at.")

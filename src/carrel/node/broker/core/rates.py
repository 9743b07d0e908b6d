"""How fast states move on this node: measured by each move, for each way and direction, and kept over a restart."""

from __future__ import annotations

from carrel.node.broker.core.ledger import Ledger
from carrel.node.suspension.ports import Ending, Moved

#: Directions of a move: to host memory, and back to the device.
OUT, BACK = "out", "back"
#: Both at once, in sum: one state comes in while others leave.
EXCHANGE = "exchange"
#: Between host memory and the disk.
TO_DISK, FROM_DISK = "to_disk", "from_disk"
#: Bytes of a state whose move says something about how fast states move.
TELLING = 64 * 1024**2


class Rates:
    """Bytes of state that move in a second."""

    def __init__(self, ledger: Ledger, *, out: float | None, back: float | None, disk: float | None = None) -> None:
        """`out` and `back`: what a probe has found, until a state was moved; `disk`: what is set; None: nobody knows."""
        self._ledger = ledger
        #: Bytes of state that go to the disk or come from there in a second; None: nobody knows.
        self.disk = disk
        #: Seconds in which the driver takes a context off a device or brings it back; at first as on an H100.
        self.context_time = 1.0
        self._guesses = {OUT: out, BACK: back}

    def note(self, way: str, direction: str, moved: Moved) -> None:
        """A move in this way has ended so. Newer ones count more."""
        if moved.ending is not Ending.DONE or moved.bytes < TELLING or moved.seconds <= 0:
            return
        if direction in (TO_DISK, FROM_DISK):
            rate = moved.bytes / moved.seconds
            self.disk = rate if self.disk is None else (self.disk + rate) / 2
            return
        self.measured(way, direction, moved.bytes, moved.seconds)

    def note_context(self, moved: Moved) -> None:
        """A context has left its devices, or come back, in this time. Newer ones count more."""
        if moved.ending is Ending.DONE and moved.seconds > 0:
            self.context_time = (self.context_time + moved.seconds) / 2

    def measured(self, way: str, direction: str, size: int, seconds: float) -> None:
        """So many bytes have moved in so many seconds."""
        rate, before = size / seconds, self._ledger.rates.get((way, direction))
        self._ledger.set_rate(way, direction, rate if before is None else (before + rate) / 2)

    def of(self, way: str, direction: str) -> float | None:
        """What to expect of a move in this way; None: nobody knows."""
        if direction in (TO_DISK, FROM_DISK):
            return self.disk
        return self._ledger.rates.get((way, direction)) or self.usual(direction)

    def usual(self, direction: str) -> float | None:
        """What to expect of the next move, whose way nobody has chosen yet: what was measured last in this direction."""
        measured = [rate for (_way, towards), rate in self._ledger.rates.items() if towards == direction]
        return measured[-1] if measured else self._guesses.get(direction)

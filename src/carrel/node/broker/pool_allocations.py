"""What the pool of host memory gave to whom, written down: the next broker takes back that, and nothing else.

A process says after a restart which pieces it has, and shows their descriptors. Believed alone, it could name memory of its own
making, and the pool would have so much less for others. So each piece is written down before its process can have it::

    {"at": 1700000000.0, "set": [["piece", {"number": 1, "size": 268435456, "device": 1, "inode": 42, "owner": "ada", "holder":
     "811-90210"}]], "drop": [["piece", "0"]]}
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from carrel.core.domain.errors import in_words
from carrel.core.domain.ports import Clock
from carrel.node.broker.journal import BrokerJournal, read_lines

_log = logging.getLogger(__name__)

#: Kinds of rows: a piece, and the largest number that one ever had.
_KIND, _LAST = "piece", "last"
#: Bytes of journal after which it is begun anew.
_LONG = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAllocation:
    """A piece of the pool that a process has. The inode is the memory's own, for every holder of a descriptor."""

    number: int
    size: int
    device: int
    inode: int
    #: The lab's user, and the process (`Process.name`).
    owner: str
    holder: str

    def is_in(self, fd: int) -> bool:
        """True where the descriptor is of this very memory. Raises `OSError`."""
        about = os.fstat(fd)
        return (about.st_dev, about.st_ino, about.st_size) == (self.device, self.inode, self.size)


class PoolAllocations:
    """The pieces that processes have, by number, with their journal. Its methods are called by one thread at a time."""

    def __init__(self) -> None:
        """Nothing is given, and nothing is written down before `keep`."""
        self._rows: dict[int, PoolAllocation] = {}
        #: The largest number that was ever given; 0: none was.
        self.last = 0
        self._journal: BrokerJournal | None = None
        self._clock: Clock = lambda: 0.0

    def keep(self, path: Path, clock: Clock) -> None:
        """Read what earlier brokers wrote down there, and write down there from now on. Raises `OSError`."""
        for _at, rows, drops in read_lines(path):
            for kind, row in rows:
                if kind == _KIND:
                    self._note(PoolAllocation(**row))
                elif kind == _LAST:
                    self.last = max(self.last, int(row["number"]))
            for kind, name in drops:
                if kind == _KIND and name.isdecimal():
                    self._rows.pop(int(name), None)
        self._clock = clock
        self._journal = BrokerJournal(path, keep=0)
        self._begin()

    def close(self) -> None:
        """Nothing is written any more."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __iter__(self) -> Iterator[PoolAllocation]:
        return iter(list(self._rows.values()))

    def find(self, number: int) -> PoolAllocation | None:
        """The piece of that number."""
        return self._rows.get(number)

    def add(self, pieces: Collection[PoolAllocation]) -> None:
        """These will be given. Raises `OSError` where that cannot be written down; then none is."""
        if pieces and self._journal is not None:
            self._journal.append(self._clock(), [(_KIND, asdict(piece)) for piece in pieces], ())
        for piece in pieces:
            self._note(piece)

    def drop(self, numbers: Collection[int]) -> None:
        """Nobody has these any more.

        A journal that takes no line about it is no reason to keep them: at worst the next broker believes that their process has
        them still, if the process says so.
        """
        known = [number for number in numbers if self._rows.pop(number, None) is not None]
        if not known or self._journal is None:
            return
        try:
            self._journal.append(self._clock(), (), [(_KIND, str(number)) for number in known])
            if self._journal.size > _LONG:
                self._begin()
        except OSError as error:
            _log.warning("it cannot be written down that host memory came back: %s", in_words(error))

    def _note(self, piece: PoolAllocation) -> None:
        self._rows[piece.number] = piece
        self.last = max(self.last, piece.number)

    def _begin(self) -> None:
        assert self._journal is not None
        rows = [(_LAST, {"number": self.last}), *((_KIND, asdict(row)) for row in self._rows.values())]
        self._journal.start(rows, self._clock())

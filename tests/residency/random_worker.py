"""A process with the library, as a test of random moves knows it: what it has where, and what should be found there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from residency_rig import MIB, Program

from carrel.core.transport.channel import Channel
from carrel.node.leases.protocol import Message

#: Bytes of the context of a process on a device, and what the driver rounds up to.
CONTEXT, GRANULE = MIB, 2 * MIB


@dataclass(slots=True)
class Part:
    """Device memory of a program, and what should be found there."""

    size: int
    seed: int
    device: int
    #: By the calls for virtual memory: its handle, how many addresses it has one after the other, and whether it is mapped now.
    handle: int = 0
    times: int = 1
    seen: bool = True

    @property
    def room(self) -> int:
        return -(-self.size // GRANULE) * GRANULE if self.moves else self.size

    @property
    def moves(self) -> bool:
        return self.size >= GRANULE


@dataclass(slots=True)
class Worker:
    """A process, as the test knows it."""

    program: Program
    name: str
    owner: str
    connection: Channel[bytes] | None = None
    hello: Message = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)
    contexts: set[int] = field(default_factory=set)
    #: Descriptors that it has beside its pieces of the pool.
    files: int = 0
    leaked: int = 0
    lease: str = ""
    #: Pieces of which the broker knows nothing.
    forgotten: set[int] = field(default_factory=set)

    def pieces(self) -> Counter[int]:
        """Descriptors of pieces of the pool that it has, by inode."""
        return self.opened()[0]

    def opened(self) -> tuple[Counter[int], int]:
        """Those, and how many other descriptors it has, at one look: it may be letting go of pieces meanwhile."""
        files = descriptors(self.program.process.pid)
        return Counter({inode: many for (what, inode), many in files.items() if what == "piece"}), files["other", 0]

    def about(self) -> dict[str, Any]:
        return self.program.order("status")

    @property
    def place(self) -> str:
        """Where its memory is, by its library: "in", "out", "lost", or "none" where it has none that moves."""
        return str(self.about()["place"])

    @property
    def away(self) -> bool:
        return self.place in ("out", "lost")

    def used(self, device: int, *, out: bool) -> int:
        return (CONTEXT if device in self.contexts else 0) + sum(
            part.room for part in self.parts.values() if part.device == device and not (out and part.moves)
        )


def descriptors(pid: int) -> Counter[tuple[str, int]]:
    """What a process has open: pieces by their inode, and how many others."""
    found: Counter[tuple[str, int]] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            piece = "memfd:carrel-state" in str(path.readlink())
            found["piece" if piece else "other", path.stat().st_ino if piece else 0] += 1
        except FileNotFoundError:  # the one that lists them
            continue
    return found

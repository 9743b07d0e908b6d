"""What the core answers: what to write down first, and what to do then. Plain values; the shell carries them out in order.

When an action has ended the shell says so, with its result (`Core.done`): the processes found for a `Gather`; who uses the
devices, and the parents and names of those processes, for `ScanDevices`; `Moved` for the others. A `Kill` has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from carrel.core.domain.lease import MoveMethod
from carrel.node.suspension.ports import Target

NEVER = float("inf")


class Line(NamedTuple):
    """One line of the journal: rows as they are now, and names of those that are gone."""

    at: float
    rows: tuple[tuple[str, dict[str, Any]], ...]
    drops: tuple[tuple[str, str], ...] = ()


class Tell(NamedTuple):
    """Send this message to a tenant; to nobody when it is not connected."""

    tenant: str
    op: str
    fields: Mapping[str, Any]
    #: To the library in this process; "": to the kernel's hook, or the runner.
    member: str = ""


@dataclass(frozen=True, slots=True)
class Gather:
    """Find which processes of a tenant have state on its devices."""

    tenant: str
    pauses: str | None
    known: tuple[Target, ...]
    devices: tuple[str, ...]
    #: Pids of other tenants: what descends from those is none of its processes.
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveOut:
    """Move a state to host memory. Before it has left, on the bus way: `Core.leaves`."""

    tenant: str
    pauses: str | None
    targets: tuple[Target, ...]
    devices: tuple[str, ...]
    size: int
    way: MoveMethod
    #: Processes whose libraries move it, on the bus way.
    members: tuple[str, ...]
    #: Bytes of host memory that the process may have with its state; 0: no limit.
    memory: int


@dataclass(frozen=True, slots=True)
class MoveBack:
    """Bring a state back to its devices."""

    tenant: str
    #: The lease that waits for it; None: it comes in while others leave, and yields to those of them who must come back.
    lease: str | None
    targets: tuple[Target, ...]
    devices: tuple[str, ...]
    #: Bytes by device: of the state, and of the whole device.
    state: Mapping[str, int]
    memory: Mapping[str, int]
    way: MoveMethod
    members: tuple[str, ...]
    #: For devices that it left, those on which it comes back instead.
    moves: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Have the driver take the contexts of processes off devices that their state has left."""

    tenant: str
    targets: tuple[Target, ...]
    devices: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Have the driver bring those contexts back."""

    tenant: str
    #: The lease that waits for the state, which follows.
    lease: str | None
    targets: tuple[Target, ...]
    devices: tuple[str, ...]
    #: Bytes by device: of the contexts, and of the whole device.
    state: Mapping[str, int]
    memory: Mapping[str, int]
    #: For devices that they left, those on which they come back instead.
    moves: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop processes at their gates; their state stays where it is."""

    tenant: str
    lease: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Spill:
    """Put a state that was moved off its devices onto the disk."""

    tenant: str
    target: Target
    size: int
    way: MoveMethod
    #: On the bus way, the file of each process that has a part of it.
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Unspill:
    """Bring a state from the disk to where `MoveBack` finds it."""

    tenant: str
    lease: str | None
    target: Target
    size: int
    way: MoveMethod
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kill:
    """Send a signal to a tenant's process: the idle timer of what it holds ran out."""

    tenant: str
    number: int


@dataclass(frozen=True, slots=True)
class ScanDevices:
    """See who is on the devices."""

    number: int
    #: Pids of tenants.
    pids: tuple[int, ...]


Action = Gather | MoveOut | MoveBack | Checkpoint | Restore | Pause | Spill | Unspill | Kill | ScanDevices


class Effects(NamedTuple):
    """The answer to one event: written down first (`line`), then told, then done."""

    line: Line | None
    tells: tuple[Tell, ...]
    actions: tuple[Action, ...]
    #: Unix seconds at which the core wants to be asked again; `NEVER`: only news is a reason.
    wake: float

    @property
    def changed(self) -> bool:
        """True when a status would show something else."""
        return self.line is not None or bool(self.tells)

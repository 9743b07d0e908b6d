"""What the broker needs of a machine that can suspend GPU state; `cuda` and the broker's simulated devices both are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carrel.core.domain.lease import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One process, named so that a reused pid is never taken for it."""

    pid: int
    #: Field 22 of proc_pid_stat(5), clock ticks since boot.
    start: int


class DriverState(StrEnum):
    """CUprocessState of the CUDA driver API, and what else can be found."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    #: The process has no CUDA state.
    NO_CUDA = "no_cuda"
    #: The process is gone.
    GONE = "gone"
    #: The driver did not answer in time.
    UNKNOWN = "unknown"


class Ending(StrEnum):
    """How moving a state ended. Each row of the failure table is one of these."""

    #: Done and verified.
    DONE = "done"
    #: Nothing has changed (lock timeout, a busy driver): try again later.
    RETRY = "retry"
    #: Nothing has changed, and it will never work for this process (managed memory, IPC, an error of the driver): it stays.
    UNSUSPENDABLE = "unsuspendable"
    #: It is in host memory, but the device still shows the process (or, after a restore, the wrong device does): do not lend
    #: it on.
    UNVERIFIED = "unverified"
    #: The state cannot be brought back; the process has to be ended.
    LOST = "lost"
    #: The process is gone.
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The outcome of one suspension or restore."""

    ending: Ending
    #: For people: the fact, with the driver's error by name and what was done about it.
    message: str = ""
    #: Bytes that were moved, where known.
    bytes: int = 0
    seconds: float = 0.0
    #: True when the driver hung so often that the device should not be lent any more.
    cordon: bool = False
    #: UNSUSPENDABLE: the libraries in the process that would not survive it, where that is why.
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """What a node's probe found."""

    tier: Tier
    #: Why not more, or "".
    message: str = ""
    driver: str = ""
    #: Bytes a second, 0 where not measured.
    suspend_rate: float = 0.0
    restore_rate: float = 0.0
    #: True where a state was seen to come back on another device of the same type.
    homes_move: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Who is on the devices now, as the driver says."""

    #: device UUID -> pid -> bytes. A process on the device whose use is not known has 0.
    processes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    #: device UUID -> bytes used by everybody, the driver included.
    used: Mapping[str, int] = field(default_factory=dict)
    #: device UUID -> percent of the last moment in which a kernel ran; one of which that is not known is not there.
    busy: Mapping[str, float] = field(default_factory=dict)


class Suspender(Protocol):
    """Moves states. Methods block (seconds) and may be called from several threads, never twice at once for one process.

    None of them raises for what the driver or the process does; that is what `Moved` says.
    """

    def probe(self) -> Capability:
        """Try the whole cycle on a process of our own, once per node and driver."""

    def state(self, target: Target) -> DriverState:
        """Where the process' state is."""

    def suspend(self, targets: Sequence[Target], *, devices: Sequence[str], size: int) -> Moved:
        """Lock all, then checkpoint all, then see that `devices` show none of them any more.

        `size`: bytes expected, for the deadline. The first target is the main one, the others are its children.

        Anything but DONE, UNVERIFIED and LOST leaves all of them running.
        """

    def resume(
        self, targets: Sequence[Target], *, devices: Sequence[str], size: int, moves: Mapping[str, str] | None = None
    ) -> Moved:
        """Restore all, see that they are on `devices`, then unlock all. The caller has made sure that there is room.

        `moves`: for devices that they left, those on which they come back instead.
        """

    def use(self) -> Use:
        """Who is on the devices now. A device that did not answer is in neither map: then nobody knows."""

    def close(self) -> None:
        """End the helper processes. Suspended processes stay suspended."""


class Disk(Protocol):
    """The third place of states that were moved off their devices. Methods block and never raise, as those of `Suspender`."""

    def spill(self, target: Target, *, size: int) -> Moved:
        """Put the state onto the disk and free its host memory. Anything but DONE leaves it where it was."""

    def unspill(self, target: Target, *, size: int) -> Moved:
        """Bring it back to where `Suspender.resume` finds it. LOST: it is not what was put there."""

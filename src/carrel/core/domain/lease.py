"""What the lending policy looks at, and what it answers: who may use which GPU of one node now.

A *tenant* is a process (a kernel, or the runner of a task) that holds GPU state or wants some. A *lease* is its right to use
devices for a while. *Residency* says where its GPU state is; it outlives the lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from carrel.core.domain.job import Reason


class Tier(StrEnum):
    """What a node can do with the GPU state of a process that does not compute."""

    #: Move it to host memory and back (CUDA checkpoint).
    SUSPEND = "suspend"
    #: Nothing: the lease stays with its holder, with an idle timer that the user sees.
    HOLD = "hold"
    #: There is no GPU state; moving it is acted out, with a given speed and given faults.
    SIMULATED = "simulated"


class Residency(StrEnum):
    """Where a tenant's GPU state is."""

    #: It has none: it never used CUDA.
    NONE = "none"
    RESIDENT = "resident"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    #: On its way from host memory to the disk; and there.
    SPILLING = "spilling"
    SPILLED = "spilled"
    RESUMING = "resuming"
    #: It cannot be brought back; the process has to go.
    LOST = "lost"


class MoveMethod(StrEnum):
    """How a tenant's GPU state leaves its devices."""

    #: By the residency library in its process: as fast as the bus is, and also in a state that the driver cannot move.
    BUS = "bus"
    #: By the driver's checkpoint of its whole processes.
    DRIVER = "driver"
    #: Not at all: the lease stays with it.
    HOLD = "hold"


class LeaseState(StrEnum):
    """How a lease is used."""

    #: A cell or a task computes.
    ACTIVE = "active"
    #: Suspended in mid-flight so that others get a turn; goes on later.
    PAUSED = "paused"
    #: The cell is over, but its state cannot be moved off the device: tier hold, or `%gpu hold`.
    HELD = "held"


class ContextPlace(StrEnum):
    """Where the CUDA context of a process is whose state moves over the bus."""

    DEVICE = "device"
    #: The driver's checkpoint takes it off the device.
    LEAVING = "leaving"
    #: It is in host memory: the process cannot call the driver before it is back.
    AWAY = "away"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoom:
    """One device that can be lent."""

    uuid: str
    #: Bytes of device memory, and how much of it processes without a lease of ours use.
    memory: int
    foreign: int = 0
    #: Its model: a state comes back on devices of one type and size only.
    type: str = ""
    #: Why nobody may be given it now ("cordoned: the driver hung twice"), or None.
    withheld: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A process, as lending sees it."""

    id: str
    #: Subject of its user; the queue is fair between users.
    owner: str
    residency: Residency = Residency.NONE
    #: Devices that its CUDA state belongs to; empty while it has none.
    home: tuple[str, ...] = ()
    #: Bytes of its state by device: in device memory when resident, in host memory when suspended.
    state: Mapping[str, int] = field(default_factory=dict)
    #: Bytes of `state` by device that it only keeps in reserve (an allocator's cache): given back when it is asked, never moved.
    cache: Mapping[str, int] = field(default_factory=dict)
    #: True while it gives its caches back.
    trimming: bool = False
    #: Bytes that each of its devices should have free for its next cell, beside `state`. What cannot be had is done without.
    room: int = 0
    #: Bytes of them without which its next cell does not begin.
    needs: int = 0
    #: False when its state must stay where it is (no tier, managed memory, an earlier failure).
    suspendable: bool = True
    #: True when its state can go on from host memory to the disk.
    spillable: bool = False
    #: SUSPENDING and SPILLING: it goes straight to the disk, and never lies in host memory as a whole.
    straight: bool = False
    #: True when its state moves piece by piece: while it leaves a device another can come in, and it while another leaves.
    #: SUSPENDING: it does leave so now, and nothing of it computes.
    in_pieces: bool = False
    #: Bytes by device of its CUDA context, which stays there when its state leaves over the bus; where it is; and whether the
    #: driver can take it off the device, too, once the state is out.
    context: Mapping[str, int] = field(default_factory=dict)
    context_at: ContextPlace = ContextPlace.DEVICE
    context_leaves: bool = False
    #: True when its state, once it is in host memory, may come back on other devices of the same type.
    portable: bool = False
    #: What in the process keeps its state where it is ("JAX", "managed memory"), or "".
    stays: str = ""
    #: True when it can be stopped while its state stays on the device (a gate in the driver's calls).
    gated: bool = False
    #: Unix seconds at which its last lease ended; 0 before the first.
    last_used: float = 0.0
    #: Seconds that its recent cells took (a mean in which the newest weighs most); None before there were any.
    typical: float | None = None
    #: True when it asks for more room where it meets a full device: then its task goes on beside the states of others.
    elastic: bool = False

    @property
    def moved(self) -> int:
        """Bytes that go to host memory when it is suspended while it is idle."""
        return sum(self.state.values()) - sum(self.cache.values())

    def at(self, home: tuple[str, ...]) -> Tenant:
        """The tenant with its state on (or for) other devices, one for each of its home, in this order."""
        places = dict(zip(self.home, home, strict=True))
        state, context = ({places.get(uuid, uuid): size for uuid, size in sizes.items()} for sizes in (self.state, self.context))
        return replace(self, home=home, state=state, context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Somebody waits for a lease."""

    id: str
    tenant: str
    gpus: int
    #: Exactly these devices, or () for any (a tenant with a home gets its home).
    devices: tuple[str, ...] = ()
    #: Unix seconds.
    asked_at: float
    #: True for whole tasks: nobody else may be resident, and there is no time slice.
    exclusive: bool = False
    #: The paused lease that wants to go on, or None.
    resumes: str | None = None
    #: True for a job that has not begun: it need not wait for these very devices where others are free.
    elsewhere: bool = False
    #: Nothing has helped it since then: it stops waiting at the second moment, unless something helps before (Unix seconds).
    stuck_since: float | None = None
    until: float | None = None


@dataclass(slots=True, kw_only=True)
class Lent:
    """A lease, as lending sees it: what of a ledger's row it reads. It changes none."""

    id: str
    tenant: str
    devices: tuple[str, ...]
    state: LeaseState
    #: Unix seconds at which it was granted, or went on after a pause.
    since: float
    exclusive: bool = False
    #: Exclusive only: the task gives its devices to cells for a while and then goes on.
    lends: bool = False
    #: Unix seconds at which it was granted first.
    began: float = 0.0
    #: It is being paused where its state is; nothing more need be done for it to leave its devices.
    pausing: bool = False
    #: When it is over at the latest (a task's walltime), Unix seconds; None when nobody knows.
    ends_by: float | None = None
    #: Seconds that it had been used in all by `since`: 0, unless it was paused before.
    used: float = 0.0
    #: HELD only: until when its owner may keep it although others wait, Unix seconds.
    held_until: float | None = None
    #: HELD only: True when the owner asked for it (`%gpu hold`); the state could be moved otherwise.
    by_choice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingRules:
    """Settings of the lending policy; times in seconds, sizes in bytes."""

    #: How long a cell computes before it can be suspended in mid-flight for others that wait; 0: never.
    time_slice: float = 60.0
    #: Share of its time that a task keeps although long cells want its devices; seconds for which it computes before a cell that
    #: begins pauses it. docs/simulate.md has the figures.
    task_share: float = 0.1
    task_turn: float = 2.0
    #: Largest part of its time, counted since it began, for which a task may be paused; less than 1 where its walltime runs on
    #: meanwhile. 0: no task is paused.
    most_lent: float = 1.0
    #: True where a process can be stopped while its state stays on the device.
    pause_in_place: bool = False
    #: A suspended state comes back only where this much is free beside it: a failed restore cannot be repaired.
    margin: int = 1024**3
    #: Share of a device's memory that a cell of unknown appetite should have, and without which it does not begin.
    unknown_room: float = 0.5
    least_room: float = 0.1
    #: Bytes of state that move in a second, as measured; None: nobody knows.
    move_rate: float | None = None
    #: The same on the way back to the device; None: as fast.
    back_rate: float | None = None
    #: The same of two states together, one of which comes in while the other leaves; None: as fast as each alone.
    exchange_rate: float | None = None
    #: Seconds in which the driver takes a CUDA context off a device, or brings it back.
    context_time: float = 1.0
    #: Bytes of host memory that suspended states may take in all; None: no limit.
    host_memory: int | None = None
    #: Bytes of the disk that states may take for which host memory has no room; 0: there is no such place.
    state_disk: int = 0
    #: True where a state can go between device and disk without lying in host memory as a whole.
    past_host: bool = False
    #: Bytes of state that go to the disk or come from there in a second; None: nobody knows.
    disk_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingSnapshot:
    """Everything that lending may know, at one moment."""

    devices: Sequence[DeviceRoom]
    tenants: Mapping[str, Tenant]
    #: In order of arrival.
    requests: Sequence[Request]
    leases: Sequence[Lent]
    #: Bytes of suspended states in host memory now.
    host_used: int = 0
    #: Bytes of states on the disk, with those on their way there.
    disk_used: int = 0
    rules: LendingRules = field(default_factory=LendingRules)
    #: Mean seconds that recent leases took, for estimates; None before there were any.
    typical_lease: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """Decision: this request gets these devices now. A suspended tenant is brought back onto them first.

    Where they are not its home, they are its new one: the first takes what was on the first, and so on.
    """

    request: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Decision: move this tenant's state to host memory, because of `request`. It computes nothing now, or its turn is over."""

    tenant: str
    request: str
    #: The lease that is paused by it, or None when the tenant is idle.
    pauses: str | None = None
    #: It is only paused: its state stays on the device, since both fit.
    in_place: bool = False
    #: It goes straight to the disk: host memory never has room for it.
    straight: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Decision: bring this tenant's state in while those of others leave its devices. `request` gets these once all is done."""

    tenant: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Decision: the driver takes this tenant's context off its devices, because of `request`. Its state has left them already."""

    tenant: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """Decision: this tenant's state goes on from host memory to the disk, because of `request`, which needs room there."""

    tenant: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Decision: this idle tenant gives back what it keeps in reserve, because of `request`."""

    tenant: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Decision: the held lease is over (its idle timer ran out and `request` waits). Its owner was warned."""

    lease: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Decision: this request waits, and why."""

    request: str
    #: 1 for the next in line.
    position: int
    reason: Reason
    #: Seconds from now, or None when nobody can say.
    estimate: float | None = None
    #: True when nothing that could be done now would help: it waits until something changes.
    stuck: bool = False
    #: What is in the way, in a few words; the reason has them in its message.
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Decision: this request waits no longer. Nothing has helped it for so long that it ends, with the reason and what would
    help."""

    request: str
    #: Why it waited, as in `Queued`.
    code: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """The answer: every request is in exactly one of `lends`, `queue` and `gives_up`; the others make room for the queue."""

    lends: tuple[Lend, ...] = ()
    suspends: tuple[Suspend, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    spills: tuple[Spill, ...] = ()
    trims: tuple[Trim, ...] = ()
    expires: tuple[Expire, ...] = ()
    queue: tuple[Queued, ...] = ()
    gives_up: tuple[GiveUp, ...] = ()
    #: Unix seconds at which time alone is a reason to ask again (a slice ends, a hold runs out); None: only news is.
    again_at: float | None = None

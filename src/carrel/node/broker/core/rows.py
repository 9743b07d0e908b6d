"""What a broker remembers: tenants, leases, requests, as rows that are journaled whole.

They are the one place where values change in place: only `carrel.node.broker.core.ledger` and those that it hands a row to do so,
always followed by `Ledger.touch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from carrel.core.domain.lease import ContextPlace, LeaseState, Lent, Request, Residency
from carrel.node.suspension.ports import Target
from carrel.node.suspension.survival import DRIVER_MOVES, WORDS


@dataclass(slots=True, kw_only=True)
class TenantRow:
    """A process that borrows devices, or did."""

    id: str
    pid: int
    #: Field 22 of proc_pid_stat(5): with it a reused pid is never taken for this process.
    start: int
    uid: int
    job: int
    attempt: int
    owner: str
    #: `carrel.node.leases.protocol.KERNEL` or `RUNNER`.
    role: str
    kernel: str = ""
    label: str = ""
    #: Devices that a cell gets.
    gpus: int = 1
    #: A task that gives its devices to cells for a while.
    lends: bool = False
    #: The devices that placement gave its job; () for a session that borrows.
    assigned: tuple[str, ...] = ()
    #: The only devices that its cells can use; () for any.
    bound: tuple[str, ...] = ()
    #: Bytes of host memory that it may have with its state; 0: that is somebody else's care.
    memory: int = 0
    residency: Residency = Residency.NONE
    #: SPILLED and RESUMING: its state is on the disk. SUSPENDING and SPILLING: it goes straight there.
    on_disk: bool = False
    #: How often its state was sent to the disk, and there the file of each of its processes, by the library's way: while its
    #: state is away they are kept.
    spills: int = 0
    files: dict[str, str] = field(default_factory=dict)
    #: Bytes that the disk had left when it did not take the state; -1: it was not tried, or took it.
    disk_short: int = -1
    home: tuple[str, ...] = ()
    #: Devices that its state has left, one for each of `home`, where it comes back on others; () where it goes home.
    left: tuple[str, ...] = ()
    #: True after it did not come back on others: from then on it goes home.
    settled: bool = False
    #: The devices that the process got last; what it uses when it uses CUDA outside of a lease.
    sees: tuple[str, ...] = ()
    #: Bytes by device, where its state is (device or host memory).
    state: dict[str, int] = field(default_factory=dict)
    #: Bytes of it by device that the process only keeps in reserve, as it said after its last cell.
    cache: dict[str, int] = field(default_factory=dict)
    #: Bytes that its leases were seen to add, the most of them; 0: not known.
    growth: int = 0
    #: The most bytes that it was seen to have on one device.
    peak: int = 0
    #: True after a cell met a full device: its next one gets all the room there can be.
    starved: bool = False
    #: Why its state cannot be moved as the process says itself, the libraries in it that would not survive it as the broker
    #: has seen, and what the driver says. All empty: it can.
    blockers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    broken: str = ""
    #: The residency library is in the process: the bytes that it can move and those that stay, by device, and what keeps those.
    gated: bool = False
    #: Its processes whose library is connected, or was when an earlier broker was killed and comes again ("pid-start").
    joined: tuple[str, ...] = ()
    movable: dict[str, int] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    #: A process of it is on its devices that has no library.
    loose: bool = False
    #: How its state leaves its devices, from before that until it is back; "" while it is there
    #: (`carrel.core.domain.lease.MoveMethod`).
    moved_by: str = ""
    #: Where its context is while its state is away over the bus (`carrel.core.domain.lease.ContextPlace`).
    context: str = ContextPlace.DEVICE.value
    #: Its children whose state was moved along with its own ("pid-start"); brought back with it.
    members: tuple[str, ...] = ()
    #: Its state was moved to host memory, but its devices still show the process: they are not lent meanwhile.
    unverified: bool = False
    #: Suspensions in a row that did not begin, and when the next may be tried (Unix seconds).
    failures: int = 0
    retry_at: float = 0.0
    #: What the process said its made-up state takes, and how much of that it keeps in reserve; None: nothing yet.
    simulated: int | None = None
    simulated_cache: int = 0
    #: `%gpu hold`: keep the devices between cells until then (Unix seconds), and so many seconds after the next end of a cell.
    hold_until: float = 0.0
    hold_for: float = 0.0
    #: Threads and tasks of the last cell that outlive it.
    background: int = 0
    #: Why its state is lost, or "".
    lost: str = ""
    last_used: float = 0.0
    #: Seconds that its recent cells took; None before there were any.
    typical: float | None = None
    cells: int = 0
    gpu_seconds: float = 0.0
    waited_seconds: float = 0.0

    @property
    def reserve(self) -> dict[str, int]:
        """Bytes of its state by device that it only keeps in reserve; what it said may be older than what was seen."""
        return {uuid: min(size, self.state.get(uuid, 0)) for uuid, size in self.cache.items()}

    @property
    def why_not(self) -> str:
        """Why its state cannot be moved, or ""."""
        return self.broken or ", ".join(dict.fromkeys((*self.libraries, *self.blockers, *_beyond_the_driver(self.reasons))))

    @property
    def stays(self) -> str:
        """What in the process keeps its state from being moved, in words that anybody who waits may read; "": nothing known.

        A process can say what it likes of itself; others only read words of ours.
        """
        return ", ".join(word for word in dict.fromkeys((*self.libraries, *self.blockers, *self.reasons)) if word in WORDS)

    def targets(self) -> tuple[Target, ...]:
        """Its process first, then its children that were moved along."""
        members = [member.split("-") for member in self.members]
        return (Target(pid=self.pid, start=self.start), *(Target(pid=int(pid), start=int(start)) for pid, start in members))

    def move_home(self, devices: tuple[str, ...]) -> None:
        """Its state, which is in host memory, comes back on these: the first takes what was on the first, and so on."""
        places = dict(zip(self.home, devices, strict=True))
        self.state, self.fixed, self.movable = (
            {places.get(uuid, uuid): size for uuid, size in sizes.items()} for sizes in (self.state, self.fixed, self.movable)
        )
        left = self.left or self.home
        self.cache, self.home, self.left = {}, devices, left if left != devices else ()

    @property
    def moves(self) -> dict[str, str]:
        """Where its state comes back, for devices that it left."""
        return dict(zip(self.left, self.home, strict=True)) if self.left else {}


@dataclass(slots=True, kw_only=True)
class RequestRow:
    """Somebody waits."""

    #: Tenant and the request's own id: unique on the node.
    id: str
    request: str
    tenant: str
    gpus: int
    devices: tuple[str, ...] = ()
    cell: str = ""
    asked_at: float
    exclusive: bool = False
    ends_by: float | None = None
    #: Calls of the process wait at the gate: its library asks.
    gate: bool = False
    #: The paused lease that wants to go on, or None.
    resumes: str | None = None
    #: It gives its devices to cells for a while, once it has them.
    lends: bool = False
    #: True for a job that can be placed on other devices: it need not wait where nothing helps.
    elsewhere: bool = False
    #: Since when nothing that could be done would help it (Unix seconds); 0: something may.
    stuck_since: float = 0.0
    #: It is not looked at before (Unix seconds): bringing its state back did not begin.
    retry_at: float = 0.0

    def view(self, hold_time: float) -> Request:
        """The request as lending sees it. A cell that begins waits for `hold_time` where nothing helps it."""
        waits_on = self.exclusive or self.resumes is not None or not self.stuck_since
        return Request(
            id=self.id,
            tenant=self.tenant,
            gpus=self.gpus,
            devices=self.devices,
            asked_at=self.asked_at,
            exclusive=self.exclusive,
            resumes=self.resumes,
            elsewhere=self.elsewhere,
            stuck_since=self.stuck_since or None,
            until=None if waits_on else self.stuck_since + hold_time,
        )


@dataclass(slots=True, kw_only=True)
class LeaseRow(Lent):
    """A right to use devices, with what lending need not know of it."""

    #: Larger than the fence of every lease before it on this node; new when it goes on after a pause.
    fence: int
    #: The request of the kernel's hook, or of a runner, that it answers; "": none of them has it (any more).
    request: str
    #: The processes whose library has it: their gates are open, or would be if it were not paused.
    gates: tuple[str, ...] = ()
    #: The library knows that others want its devices; and how the hook said that its cell ended.
    asked_back: bool = False
    outcome: str = ""
    cell: str = ""
    asked_at: float
    waited: float = 0.0
    #: The task is preempted by suspension: it is to be paused, and asks for its devices again when its runner says so.
    aside: bool = False
    #: HELD: how often the holder was warned in this countdown, and for how long others have waited (Unix seconds, 0: nobody).
    warned: int = 0
    wanted_since: float = 0.0
    #: True while the state is being brought back; the holder does not know yet.
    pending: bool = False
    #: A state was brought back for it.
    resumed: bool = False
    #: The holder was asked to end because its time was up.
    ending: bool = False
    #: In how many looks at its devices it was seen, and the sum of the percentages for which these were busy then.
    looks: int = 0
    busy: float = 0.0
    #: Owners of what has had its devices while it was paused.
    visitors: tuple[str, ...] = ()

    @property
    def people(self) -> int:
        """For how many people it was paused."""
        return len(self.visitors)


@dataclass(slots=True, kw_only=True)
class ChargeRow:
    """What the cells of one attempt of a session have borrowed in leases that are over; it never shrinks."""

    job: int
    attempt: int
    owner: str
    #: Device-seconds.
    seconds: float = 0.0
    #: When it grew last (Unix seconds).
    at: float = 0.0

    @property
    def id(self) -> str:
        """Names the row on the node."""
        return f"{self.job}.{self.attempt}"


def _beyond_the_driver(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a library's reasons for which the driver's checkpoint cannot move a state either."""
    return tuple(reason for reason in reasons if reason not in DRIVER_MOVES)


Row = TenantRow | RequestRow | LeaseRow | ChargeRow
#: Names and default values of the fields; a field without one has a default that equals nothing.
_DEFAULTS: dict[type, list[tuple[str, Any]]] = {
    cls: [(item.name, {} if item.default_factory is dict else item.default) for item in fields(cls)]
    for cls in (TenantRow, RequestRow, LeaseRow, ChargeRow)
}


def plain(row: Row) -> dict[str, Any]:
    """The row as JSON; what has its default value is left out."""
    found = {}
    for name, default in _DEFAULTS[type(row)]:
        value = getattr(row, name)
        if value != default:
            found[name] = value.value if isinstance(value, Enum) else value
    return found


def rebuilt(cls: type[Row], values: dict[str, Any]) -> Row:
    """The row that `plain` wrote."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if "residency" in given:
        given["residency"] = Residency(given["residency"])
    if cls is LeaseRow:
        given["state"] = LeaseState(given["state"])
    return cls(**given)

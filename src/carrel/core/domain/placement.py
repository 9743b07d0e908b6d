"""What the placement policy looks at, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from carrel.core.domain.job import Reason
from carrel.core.domain.node import Node, NodePart
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.resources import Resources
from carrel.core.domain.submit_limits import SubmitLimit, SubmitScope


class ArrayLimit(NamedTuple):
    """An array of whose elements not all may run at once."""

    array_id: int
    at_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A PENDING job, as placement sees it."""

    id: int
    owner: str
    qos: str
    resources: Resources
    #: Unix seconds.
    submitted_at: float
    #: Added to the QoS' priority.
    priority: int = 0
    #: Not to be started before this moment (a retry's pause), or 0.
    not_before: float = 0.0
    #: What its use is charged to.
    account: str = ""
    #: Jobs of one owner with one name are expected to run about as long.
    name: str = ""
    #: The part of the lab that it runs in; "" in a lab without partitions.
    partition: str = ""
    #: Set when it is an element of an array that has a limit.
    array: ArrayLimit | None = None
    #: Seconds that it should run, where that is known and counts in backfill.
    expected: int | None = None
    #: Seconds that it may take to end when its walltime is over.
    grace: int = 0
    #: Seconds by which it counts as submitted later than it was, since shorter jobs of its class go first.
    late_by: float = 0.0
    #: False: it keeps its place once it has begun.
    preemptible: bool = True
    #: The node on which alone it runs, since it was made for it; "": that is not there yet. None: it runs anywhere.
    node: str | None = None

    @property
    def seconds(self) -> int:
        """How long it runs as far as backfill is concerned: never longer than its walltime and the time that its end takes."""
        return self.longest if self.expected is None else min(self.expected, self.longest)

    @property
    def longest(self) -> int:
        """Seconds after which it is gone at the latest."""
        return self.resources.time + self.grace


class Kind(NamedTuple):
    """What is the same of jobs that are alike: where one is refused, those behind it are."""

    owner: str
    account: str
    qos: str
    partition: str
    resources: Resources
    node: str | None
    seconds: int
    longest: int
    array: ArrayLimit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job that holds resources on a node."""

    id: int
    owner: str
    qos: str
    resources: Resources
    node: str
    #: UUIDs of its devices.
    devices: tuple[str, ...]
    #: When its walltime is over, and the time that its end may take, Unix seconds.
    ends_by: float
    account: str = ""
    #: As in `Waiting`.
    partition: str = ""
    array: ArrayLimit | None = None
    #: What it holds on further nodes.
    others: tuple[NodePart, ...] = ()
    name: str = ""
    #: When its command was started, Unix seconds; None while it is being prepared.
    started_at: float | None = None
    #: Seconds since then for which it was stopped.
    paused: float = 0.0
    #: False: it cannot be interrupted.
    preemptible: bool = True
    #: True while it can be stopped and go on later.
    suspendable: bool = False
    #: True once it is preempted, or somebody wants its end: its place is free soon, by `ends_by` at the latest.
    leaving: bool = False
    #: True while it is stopped: it keeps its memory and nothing else.
    suspended: bool = False
    #: True for a session: its user ends it, so that other jobs' run times say nothing about its end.
    open_ended: bool = False
    #: When it should be over, Unix seconds, where that is known and counts in backfill; before `ends_by`.
    due: float | None = None

    @property
    def over_by(self) -> float:
        """When it is over as far as backfill is concerned."""
        return self.ends_by if self.due is None else min(self.due, self.ends_by)

    @property
    def shares(self) -> tuple[NodePart, ...]:
        """What it holds, node by node."""
        return (NodePart(node=self.node, devices=self.devices), *self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleState:
    """GPU state of a session that computes nothing now. It has to move before a job can have one of its devices."""

    #: Whose it is, for telling states apart.
    tenant: str
    #: UUIDs of the devices that it is on. It moves off all of them at once.
    devices: tuple[str, ...]
    #: Bytes of host memory that it needs there; 0 when it is on its way already.
    bytes: int
    #: Why it cannot be moved, or "".
    stays: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """GPU state of a task, which leaves its devices while the task is suspended."""

    #: Bytes of host memory that it needs there; 0 when it has them already.
    bytes: int = 0
    #: Why it cannot be moved now, or "".
    stays: str = ""


#: A task of which the broker has seen no state.
UNKNOWN_STATE = TaskState(stays="nothing is known of its GPU state")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """What lies on devices that no lease occupies, and how much of it can go to host memory."""

    states: tuple[IdleState, ...] = ()
    #: True where a broker moves states of tasks, also while it has not said of which.
    has_mover: bool = False
    #: What tasks have on their devices, by job.
    tasks: Mapping[int, TaskState] = field(default_factory=dict)
    #: Bytes of host memory that are left for states; None: as many as there are.
    host_left: int | None = None


class MachineWait(NamedTuple):
    """What the machine waits for that is made for a job."""

    #: A sentence without its end.
    why: str
    #: When it should be there, Unix seconds; 0: that is not known.
    expected: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that placement may know, at one moment."""

    nodes: Sequence[Node]
    qos: Mapping[str, QoS]
    waiting: Sequence[Waiting]
    holding: Sequence[Holding]
    #: Device UUIDs that nobody may be given now (another lab on the machine holds them, the driver reports a fault).
    withheld: frozenset[str] = frozenset()
    #: Those of them that only GPU state of idle sessions keeps from jobs, and why it stays there.
    blocked: Mapping[str, str] = field(default_factory=dict)
    #: Sessions that do nothing now, by number; they hold memory all the same.
    idle: frozenset[int] = frozenset()
    #: What machines wait for that are made for jobs, by the job.
    machines: Mapping[int, MachineWait] = field(default_factory=dict)
    #: Bytes of such state that move first when a job starts on a device; 0 where a device is not named.
    moves: Mapping[str, int] = field(default_factory=dict)
    #: Seconds of waiting that outweigh one point of priority; so that no job waits for ever behind more urgent ones.
    age_weight: float = 600.0
    #: Factor of each (account, owner), 0 to 1, larger for who has used less of their share (`policy.fairshare`); 1 for others.
    standing: Mapping[tuple[str, str], float] = field(default_factory=dict)
    #: Seconds of waiting that the best standing is ahead of the worst.
    share_weight: float = 0.0
    #: Seconds of waiting that each GPU of a job counts for, `policy.order.MOST_SIZED` at most: so large jobs get their turn.
    size_weight: float = 0.0
    #: By name. Empty: every job runs anywhere.
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    #: Those that are in force, and those to come.
    reservations: Sequence[Reservation] = ()
    #: How many blocked jobs of each partition are promised a start.
    promises: int = 1
    #: Limits for which Slurm has refused jobs, by whose jobs they are about.
    submit_limits: Mapping[SubmitScope, SubmitLimit] = field(default_factory=dict)
    #: The jobs that had a promise in the placement before: a limit that others use for a while does not cost them that.
    promised: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Decision: this job starts now, there, with these devices."""

    job_id: int
    node: str
    devices: tuple[str, ...] = ()
    #: The same moment on further nodes.
    others: tuple[NodePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Decision: this job is preempted now, so that another can start."""

    job_id: int
    #: How: requeued or suspended.
    mode: PreemptMode
    #: The job that takes its place, and the class of service of that one.
    by: int
    qos: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Something that a waiting job could ask for otherwise, with which it would start sooner."""

    #: The option of the task, and its value and that of now as a person reads them: "time", "4 h", "1 d".
    option: str
    value: str
    instead_of: str
    #: When it would start, Unix seconds; None for now.
    start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeGpus:
    """GPUs of one type as one user would get them: whole, and for tasks of one GPU each."""

    type: str
    #: How many there are.
    count: int
    #: How many such tasks would start now, and the walltime in seconds up to which one would; 0 where none does.
    now: int
    time: int = 0
    #: Why no longer one would start now: a sentence; "" where only its class of service sets an end.
    why_no_longer: str = ""
    #: Why one more would wait, and when it should start (Unix seconds); "" and None where all start.
    why_no_more: str = ""
    start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Decision: this job waits, and why."""

    job_id: int
    reason: Reason
    #: 1 for the first in line.
    position: int
    #: When it should start, Unix seconds; None when nobody can say. Where nothing is known about how long jobs run, when it would
    #: start if everything ahead of it used its whole walltime.
    estimated_start: float | None = None
    #: It should start between these two with a probability of 80 %; None where nothing is known.
    estimated_range: tuple[float, float] | None = None
    #: The lower end of the range, the estimate and the upper end before they were corrected by the errors of earlier ranges.
    foreseen: tuple[float, float, float] | None = None
    #: What it could ask for otherwise to start sooner, where that was looked for.
    alternatives: tuple[Alternative, ...] = ()


@runtime_checkable
class WaitIndex(Protocol):
    """Holds that can be asked for by job."""

    def of(self, job_id: int) -> Wait | None:
        """Return the hold of one job, or None."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The answer: every waiting job is in exactly one of the two."""

    starts: tuple[Start, ...] = ()
    #: In the order of the queue. May be a sequence that makes its items when they are looked at.
    pending: Sequence[Wait] = field(default_factory=tuple)

    def wait_of(self, job_id: int) -> Wait | None:
        """Return why one job waits, or None when it does not; without making the holds of all the others."""
        if isinstance(self.pending, WaitIndex):
            return self.pending.of(job_id)
        return next((hold for hold in self.pending if hold.job_id == job_id), None)

"""What control needs remembered of jobs, as protocols; `carrel.lab.store` implements them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from carrel.core.control.dependents import DependencyLookup
from carrel.core.control.event_ports import NewEvent
from carrel.core.domain.cache_key import cache_key
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import StoredFile, Usage
from carrel.core.domain.node import NodePart
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.visible import Visible


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is written down at submit."""

    kind: JobKind
    owner: str
    account: str
    name: str
    qos: str
    resources: Resources
    retries: int
    task: TaskSpec
    partition: str = ""
    #: False: nobody may take its place while it runs.
    preemptible: bool = True
    visible: Visible = Visible.OWNER
    #: What it waits for, as `carrel.core.domain.dependency` reads it.
    dependency: str = ""
    #: It becomes an array: what was asked for, as `carrel.core.domain.array` reads it, and the indices of the jobs to make.
    array: str = ""
    indices: tuple[int, ...] = ()
    #: The job that submits it.
    parent: int | None = None

    @property
    def cache_key(self) -> str:
        """What makes it the same as another job; "" where its result is never taken again."""
        return "" if self.array else cache_key(self.task)

    @property
    def pipeline(self) -> str:
        """As in `Job`."""
        return self.task.step.pipeline if self.task.step is not None else ""

    @property
    def stage_in(self) -> bool:
        """True when inputs of it lie elsewhere, or it has an environment to build."""
        return self.task.environment.wanted or any(item.lies_elsewhere for item in self.task.all_inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """One thing to tell the tracking server, in order for each job."""

    kind: str
    payload: Mapping[str, Any]


def untold(*_what: object) -> tuple[()]:
    """What a lab without a tracking server has to tell it, of anything."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """A decision to start, about to be written down; `device_lease` rows come with it."""

    job_id: int
    node: str
    devices: tuple[str, ...]
    #: On further nodes.
    others: tuple[NodePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptOrder:
    """A decision that an attempt is preempted, about to be written down."""

    job_id: int
    attempt: int
    preemption: Preemption
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChange:
    """News of one attempt, as it is written down: in one transaction, and only while that attempt is the job's own.

    None in a field means "no news". `state` and `reason` are the job's; those of the attempt differ from them when
    a failed attempt sends its job back to the queue.
    """

    job_id: int
    attempt: int
    state: JobState | None = None
    attempt_state: JobState | None = None
    reason: Reason | None = None
    attempt_reason: Reason | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    retries_left: int | None = None
    requeues_left: int | None = None
    offset: int | None = None
    log_size: int | None = None
    environment: str | None = None
    environment_lock: str | None = None
    environment_built: bool | None = None
    python: str | None = None
    hardware: Mapping[str, str] | None = None
    seeds: Mapping[str, str] | None = None
    inputs: Mapping[str, str] | None = None
    input_sources: Mapping[str, str] | None = None
    usage: Usage | None = None
    #: What its owner was told last of GPUs that are hardly busy.
    advice: str | None = None
    #: What its cells were charged in all: devices × seconds. Fewer than are known change nothing.
    lease_seconds: float | None = None
    #: Set when it was stopped; the total for which it was, once it goes on or has ended (and nothing is left to carry out).
    suspended_at: float | None = None
    suspended_seconds: float | None = None
    #: How often it was, and for how many people, until now.
    pauses: int | None = None
    pause_people: int | None = None
    outputs: tuple[StoredFile, ...] = ()
    #: Set when outputs that were not stored are left in its working directory.
    uncollected: bool | None = None
    events: tuple[NewEvent, ...] = ()
    outbox: tuple[OutboxEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One try at a job, as the store remembers it."""

    job_id: int
    number: int
    node: str
    devices: tuple[str, ...]
    state: JobState
    reason: Reason
    exit_code: int | None
    signal: int | None
    leased_at: float
    started_at: float | None
    ended_at: float | None
    journal_offset: int
    log_size: int
    environment: str | None
    environment_lock: str | None
    environment_built: bool | None
    python: str | None
    hardware: Mapping[str, str]
    seeds: Mapping[str, str]
    inputs: Mapping[str, str]
    usage: Usage
    #: By path, the address of exactly what was taken, where the task's address may name something else later.
    input_sources: Mapping[str, str] = field(default_factory=dict)
    #: What its cells were charged: devices × seconds.
    lease_seconds: float = 0.0
    #: For how long it was stopped.
    suspended_seconds: float = 0.0
    #: True while outputs that were not stored are left in its working directory.
    uncollected: bool = False
    #: What its owner was told last of GPUs that are hardly busy; "": nothing.
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list. `owner` None means everybody's."""

    owner: str | None = None
    states: frozenset[JobState] = field(default_factory=frozenset)
    name: str | None = None
    kind: JobKind | None = None
    #: Only the elements of this array.
    array_id: int | None = None
    #: Only those that are charged to these accounts.
    accounts: frozenset[str] | None = None
    #: Only those that this job submitted.
    parent: int | None = None
    #: Only the steps of this pipeline.
    pipeline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to a submission: the job (of an array the first), and whether it is new or was there under the same key."""

    job: Job
    created: bool
    #: All jobs that were made: one, or the elements of an array.
    made: tuple[Job, ...] = ()
    #: True when it is another, earlier job, whose result is taken again.
    cached: bool = False
    #: True when that one had other code.
    other_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was stored of an attempt's working directory after its end."""

    files: tuple[StoredFile, ...]
    #: One sentence for each kind of thing that was not stored.
    notes: tuple[str, ...] = ()
    #: Why not everything was stored that should have been, or None.
    failure: Reason | None = None
    #: True when something is left that may be stored later.
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one attempt that is over held, from when to when (Unix seconds)."""

    account: str
    owner: str
    kind: JobKind
    gpus: int
    cpus: int
    since: float
    until: float
    #: What the cells of a session were charged beside it: devices × seconds.
    lease_seconds: float = 0.0
    #: For how long it was stopped meanwhile, and held nothing that is charged.
    suspended_seconds: float = 0.0


class SchedulerStore(DependencyLookup, Protocol):
    """What one cycle of the lab needs remembered. Every method is one transaction."""

    def active(self) -> Sequence[Job]:
        """All jobs that have not ended, oldest first."""

    def same_as(self, owner: str, key: str) -> Sequence[Job]:
        """The owner's jobs whose `cache_key` begins so that have ended well, newest first."""

    def task(self, job_id: int) -> TaskSpec | None:
        """What the job was asked to do, or None."""

    def attempt(self, job_id: int, number: int) -> AttemptRow | None:
        """One attempt, or None."""

    def start(self, orders: Sequence[StartOrder], *, now: float) -> Sequence[tuple[Job, TaskSpec]]:
        """PENDING becomes CONFIGURING with a new attempt and its leases; who is not PENDING any more is left out."""

    def change(self, changes: Sequence[AttemptChange], *, now: float) -> Sequence[Job]:
        """Apply what is still true; return the jobs as they are afterwards. News of an older attempt changes nothing."""

    def preempt(self, orders: Sequence[PreemptOrder], *, now: float) -> Sequence[Job]:
        """Remember that these attempts are preempted; return their jobs. Those that are over, or are preempted already, are left
        out."""

    def keep(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:
        """These give way no more, since they cannot; return those that run on. One that is stopped already is left out."""

    def resume(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:
        """Give jobs that are stopped their devices again; return those that have them. One of another's is left out."""

    def used(self, *, since: float) -> Sequence[Used]:
        """What the attempts that ended after `since` held, in the order of their ends."""

    def request_cancel(
        self,
        job_id: int,
        *,
        by: str,
        reason: Reason,
        now: float,
        outbox: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = lambda _job, _task: (),
    ) -> Job | None:
        """A PENDING job becomes CANCELLED; of one that holds resources it is remembered who asked. Ended jobs stay."""

    def fail(
        self, job_id: int, *, reason: Reason, now: float, outbox: Callable[[Job, TaskSpec], Sequence[OutboxEntry]]
    ) -> Job | None:
        """A PENDING job becomes FAILED for this reason, without an attempt; any other stays. Return it as it is afterwards."""


class JobStore(SchedulerStore, Protocol):
    """Jobs, attempts, leases and outputs. Every method is one transaction.

    `carrel.lab.store.jobs.JobTable` is one, and has the promises.
    """

    def known(self, job_id: int) -> Job | None: ...
    def submit(
        self,
        new: NewJob,
        *,
        now: float,
        key: str | None,
        request: str,
        outbox: Callable[[Job], Sequence[OutboxEntry]],
        admit: Callable[[int | None, int], None] | None = None,
    ) -> Submitted: ...
    def submitted_as(self, owner: str, key: str) -> Job | None: ...
    def list(self, which: JobFilter, *, before: int | None, limit: int) -> Sequence[Job]: ...
    def attempts(self, job_id: int) -> Sequence[AttemptRow]: ...
    def outputs(self, job_id: int, attempt: int) -> Sequence[StoredFile]: ...
    def output(self, job_id: int, attempt: int, path: str) -> StoredFile | None: ...
    def collect(self, job_id: int, attempt: int, files: Sequence[StoredFile], *, left: bool, message: str) -> Job: ...
    def charge(self, charges: Mapping[tuple[int, int], float]) -> None: ...
    def holders(self) -> Mapping[str, int]: ...

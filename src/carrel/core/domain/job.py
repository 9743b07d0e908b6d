"""A job and the table of its states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.array import ArrayElement
from carrel.core.domain.errors import Conflict
from carrel.core.domain.node import NodePart
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.qos import JobKind, PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.domain.visible import Visible


class JobState(StrEnum):
    """Slurm's words (squeue(1), JOB STATE CODES)."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"

    @property
    def ended(self) -> bool:
        """True when nothing can happen to the job any more."""
        return self in ENDED

    @property
    def holds_resources(self) -> bool:
        """True while a node keeps resources for the job."""
        return self in HOLDING


ENDED = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.OUT_OF_MEMORY,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
    }
)
HOLDING = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED})
ACTIVE = HOLDING | {JobState.PENDING}

#: What may follow what. PENDING after a state that holds resources is a requeue: the attempt ended, the job goes on.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.CONFIGURING, JobState.CANCELLED, JobState.FAILED}),
    # Of what is read at once only the last state is written down: SUSPENDED here has been RUNNING in between.
    JobState.CONFIGURING: ENDED | {JobState.RUNNING, JobState.SUSPENDED, JobState.PENDING},
    JobState.RUNNING: ENDED | {JobState.SUSPENDED, JobState.PENDING},
    JobState.SUSPENDED: ENDED | {JobState.RUNNING, JobState.PENDING},
    **{state: frozenset() for state in ENDED},
}


def check_transition(job_id: int, old: JobState, new: JobState, story: str = "") -> None:
    """Raise `Conflict`, with the story so far, when a job in state `old` must not become `new`."""
    if new not in TRANSITIONS[old]:
        so_far = f" So far: {story}." if story else ""
        raise Conflict(f"Job {job_id} is {old} and cannot become {new}.{so_far}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a job waits or ended: a constant for programs, one sentence with numbers for people."""

    #: CamelCase constant, listed in `REASONS`.
    code: str
    message: str


#: Why a job waits whose command the machine did not start.
MACHINE_LIMIT = "MachineLimit"
#: Every reason code, with what it means. The documentation lists the same table, and a test compares the two.
REASONS: dict[str, str] = {
    "Submitted": "Accepted; the next placement cycle looks at it.",
    "Resources": "First in line; what it needs is not free yet.",
    "Priority": "Others are ahead of it in the queue.",
    "QOSMaxJobsPerUserLimit": "Its owner already holds as many jobs as the QoS allows.",
    "QOSMaxGRESPerUser": "Its owner already holds as many GPUs as the QoS allows.",
    "QOSGrpGRES": "Everybody together already holds as many GPUs as the QoS allows.",
    "MaxJobsPerAccount": "Its account already holds as many jobs as the QoS allows.",
    "MaxGRESPerAccount": "Its account already holds as many GPUs as the QoS allows.",
    "JobArrayTaskLimit": "As many elements of its array run as may at once.",
    "AssocMaxSubmitJobLimit": "Its owner has as many jobs in Slurm as they may with that account (`MaxSubmitJobs`).",
    "AssocGrpSubmitJobsLimit": "Its account has as many jobs in Slurm as it may (`GrpSubmitJobs`).",
    "QOSMaxSubmitJobPerUserLimit": "Its owner has as many jobs in Slurm as its QoS there allows (`MaxSubmitJobsPerUser`).",
    "QOSGrpSubmitJobsLimit": "Everybody together has as many jobs in Slurm as its QoS there allows (`GrpSubmitJobs`).",
    "MaxSubmitJobsPerAccount": "Its account has as many jobs in Slurm as its QoS there allows (`MaxSubmitJobsPerAccount`).",
    "MaxJobCount": "Slurm's controller keeps no more jobs than it has now.",
    "ReqNodeNotAvail": "The nodes or GPUs that could run it are drained, withheld, reserved for others or unreachable.",
    "BeginTime": "Its earliest start has not come yet (the pause before a retry).",
    "BuildEnvironment": "Its environment is being built; it is placed when that is there.",
    "StageIn": "Inputs that lie elsewhere are being fetched; it is placed when they are here.",
    "Dependency": "It starts after other jobs, and what it waits for has not happened yet.",
    "WaitsForJob": "It waits for a job that it submitted and that has no place yet.",
    "DependencyNeverSatisfied": "What it waited for can never happen any more.",
    "JobHeldAdmin": "An administrator has suspended its owner, and it is not placed.",
    "PartitionDown": "Its partition does not exist in this lab any more.",
    "InvalidQOS": "Its QoS does not exist in this lab any more.",
    "Preempting": "Another job takes its GPUs or processors. It is being stopped, or ended and put back into the queue.",
    "Preempted": "Another job took its GPUs or processors. It is in the queue again, and starts by itself.",
    "Suspended": "Stopped while another job uses its GPUs or processors. It resumes by itself.",
    "GpuLent": "Cells of notebooks have its GPUs for a while. Its walltime stands still meanwhile; Slurm's does not.",
    "GpuStateLost": "Its GPU state was lost on its way back from host memory; it is in line again, or has failed the third time.",
    "Resuming": "Its GPUs or processors are free again. It resumes.",
    "Preparing": "Its environment and inputs are being prepared.",
    "Running": "Its command is running.",
    "Completed": "The command ended with exit code 0.",
    "NonZeroExitCode": "The command ended with another exit code than 0.",
    "RaisedSignal": "A signal ended the command.",
    "TimeLimit": "It reached its walltime.",
    "OutOfMemory": "It used more memory than it asked for.",
    "DiskLimit": "It took more room on the disk than a job may have here.",
    "Cancelled": "Somebody cancelled it.",
    "EnvironmentFailed": "Its environment could not be built.",
    "InputFailed": "An input could not be staged.",
    "LaunchFailed": "Its command could not be started.",
    "StorageFull": "A disk is full, or its owner has all the room of a user: nothing starts, or its outputs could not be kept.",
    "OutputFailed": "Its command succeeded, and its outputs could not be kept.",
    "RunnerLost": "The process that watched over it is gone, so how it ended is not known.",
    "NodeLost": "The node is gone, so how it ended is not known.",
    "Deadline": "It reached the deadline that was set for it.",
    "GpuBlocked": "Its GPU could not be cleared of GPU state or cells; it is in line again, and loses no retry by it.",
    MACHINE_LIMIT: "The lab's Unix user has all processes or namespaces that it may have on the machine; it is tried again.",
    "DeviceBusy": "Another lab on the same machine holds the GPU.",
    "DeviceFault": "A GPU that it has, or had, has a fault and is drained; an attempt that failed on it costs no retry.",
    "LowGpuUse": "Its GPUs were hardly busy for ten minutes; only events say so, with the cause.",
    "JournalDamaged": "The disk has lost or changed a part of the job's journal; only events say so.",
    "Requeued": "An attempt ended and another one follows: retries are left, or it goes on from its checkpoint.",
}


def how_to_collect(job_id: int) -> str:
    """The sentence about outputs that were not stored; `collected` takes it back."""
    return f"They are in its working directory: `carrel outputs --collect {job_id}` stores them when there is room."


def collected(message: str, job_id: int) -> str:
    """Return the message of a job whose outputs were stored after its end."""
    return message.replace(how_to_collect(job_id), "They were collected later.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Why and how a job is preempted by another."""

    mode: PreemptMode
    #: The job that takes its place, and the class of service of that one.
    by: int
    qos: str
    #: When it was decided, Unix seconds.
    at: float
    #: Seconds that it has between SIGTERM and SIGKILL when it is requeued.
    grace: int
    #: True when it waits for that job, which it submitted.
    waits: bool = False
    #: The job that it waits for, where that is another one.
    child: int | None = None

    @property
    def waits_for(self) -> int | None:
        """The job that it submitted and waits for: it goes on when that one is over. None: it waits for none."""
        return self.by if self.waits else self.child

    @property
    def ends_by(self) -> float:
        """When its place is free at the latest, Unix seconds."""
        return self.at + self.grace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One queued piece of work with resources and an owner, as the store remembers it."""

    id: int
    kind: JobKind
    #: Stable subject of the owner; never a display name.
    owner: str
    account: str
    name: str
    qos: str
    resources: Resources
    state: JobState
    reason: Reason
    #: Unix seconds.
    submitted_at: float
    #: The part of the lab that it runs in; "" in a lab without partitions.
    partition: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    #: Number of the present or last attempt; 0 before the first. It fences: news of another attempt changes nothing.
    attempt: int = 0
    #: Attempts left after the present one fails for a reason of its own.
    retries_left: int = 0
    #: How often it may still go on from its checkpoint after its walltime.
    requeues_left: int = 0
    exit_code: int | None = None
    signal: int | None = None
    node: str | None = None
    #: UUIDs of the devices of the present or last attempt.
    devices: tuple[str, ...] = ()
    #: What that attempt holds on further nodes.
    others: tuple[NodePart, ...] = ()
    run_id: str | None = None
    #: Set when somebody asked for its end: their subject.
    cancelled_by: str | None = None
    #: What it waits for before its first attempt, as `carrel.core.domain.dependency` reads it; "" for nothing.
    dependency: str = ""
    #: Set when it is one of many that were submitted as an array.
    element: ArrayElement | None = None
    #: False: it cannot be interrupted, and nobody takes its place while it runs.
    preemptible: bool = True
    visible: Visible = Visible.OWNER
    #: True when there is something to see to before it is placed: inputs that lie elsewhere, an environment.
    stage_in: bool = False
    #: The job that submitted it; None: a person did.
    parent: int | None = None
    #: What it has in common with the other steps of its pipeline; "": it is no step.
    pipeline: str = ""
    #: Set while it is preempted by another job, and until it has its devices again.
    preemption: Preemption | None = None
    #: Seconds for which the present or last attempt was suspended before, and since when it is, or None.
    suspended_seconds: float = 0.0
    suspended_at: float | None = None
    #: How often it was, and for how many people it was paused, as far as that is known.
    pauses: int = 0
    pause_people: int = 0

    @property
    def handed_over(self) -> bool:
        """True when an engine has the job that chooses its nodes: it may wait there, and its walltime never stands still."""
        return bool(read_cluster(self.node)[0])

    @property
    def stopped(self) -> bool:
        """True while it is suspended and others may have its devices and processors; only its memory is kept for it."""
        return self.state is JobState.SUSPENDED and self.preemption is not None

    @property
    def place_in_words(self) -> str:
        """What another job gets that preempts this one, for sentences that users read."""
        return "GPUs" if self.devices else "processors"

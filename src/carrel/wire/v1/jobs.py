"""Jobs: what is asked for, what came of it, and the events on the way."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from carrel.core.domain.exported_attempt import ExportedAttempt
from carrel.core.submission import ResourceOptions, SlurmOptions, TaskOptions
from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.declared import request_of
from carrel.wire.v1.reports import SessionTimesView


class ResourceRequest(request_of(ResourceOptions)):  # type: ignore[misc] # made from the declaration
    """What a task asks for; a field that is None comes from the task's own file, then from the QoS."""


class GitRequest(Request):
    """Where the code came from."""

    commit: str
    branch: str | None = None
    remote: str | None = None
    dirty: bool = False
    diff: str = ""
    diff_truncated: bool = False


class TrackingRequest(Request):
    """An MLflow run that exists already."""

    run_id: str
    experiment_id: str
    #: None: the lab's own tracking server.
    uri: str | None = None


class StepRequest(Request):
    """Which step of the project's pipeline it is."""

    name: str = Field(max_length=64)
    #: What all steps that are submitted together have in common; a word that nobody else uses.
    pipeline: str = Field(pattern="[0-9a-f]{32}")
    #: The jobs of the steps before it, by their names.
    jobs: dict[str, int] = Field(default_factory=dict)
    #: With `cache`: where no earlier job had the same code, one with other code will do.
    any_code: bool = False


class InputRequest(Request):
    """One input of a job that is repeated."""

    path: str
    uri: str
    #: None: what is there is taken.
    digest: str | None = None


class ReplayRequest(Request):
    """What was decided when a job was submitted that is to be repeated: it comes in the place of what the code's own files say.

    All of it is checked as what a file says is. Environments are read from the code; here is only what the job's came to.
    """

    #: The lab that it was a job of, and its number there.
    lab: str = Field(pattern="^[0-9A-Za-z_-]{1,64}$")
    job: int = Field(ge=1, le=2**63 - 1)
    #: What the job is called if the request does not say.
    name: str
    command: str = Field(min_length=1)
    #: Where path parameters are staged: place in the working directory -> URI.
    path_parameters: dict[str, str] = Field(default_factory=dict)
    inputs: list[InputRequest] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    #: False: it had no environment, but the machine's own Python.
    environment: bool = True
    #: The lock of its environment; None: it is resolved anew, if there is one.
    lock: str | None = Field(default=None, max_length=16 * 1024**2)
    #: The Python that it had: "3.12", "3.12.4".
    python: str | None = Field(default=None, pattern=r"^3\.[0-9]{1,2}(\.[0-9]{1,3})?$")


class SlurmRequest(request_of(SlurmOptions)):  # type: ignore[misc] # made from the declaration
    """What a task asks of Slurm beyond resources; a field that is None comes from the task's own file."""

    @field_validator("mail_events", "modules", mode="before")
    @classmethod
    def _none_is_nothing(cls, value: Any) -> Any:
        return [] if value is None else value


class TaskRequest(request_of(TaskOptions)):  # type: ignore[misc] # made from the declaration
    """Body of ``POST /api/v1/jobs``: the lab reads the task's description out of the snapshot itself.

    What is None comes from the task's own file, then from the class of service.
    `Idempotency-Key` may be sent as a header: the same key and the same body give the same job, once.
    """

    #: "sha256:…" of a snapshot that this user has uploaded.
    snapshot: str
    entry_point: str = "main"
    #: A script inside the snapshot, when the task is a bare script; excludes `entry_point` other than "main".
    script: str | None = None
    #: Directory inside the snapshot that holds the description.
    directory: str = "."
    parameters: dict[str, str] = Field(default_factory=dict)
    #: Arguments for a bare script, after ``--``.
    arguments: list[str] = Field(default_factory=list)
    #: True: a parameter that the entry point does not declare is an error.
    strict: bool = False
    resources: ResourceRequest = Field(default_factory=ResourceRequest)
    #: MLflow's backend-config JSON, with Slurm's names; what is not understood is refused.
    backend_config: dict[str, Any] = Field(default_factory=dict)
    #: None: nothing beyond what the task's own file says.
    slurm: SlurmRequest | None = None
    #: What is asked of other engines: by the engine's name, the options that it declares.
    engines: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: None: it is no step; else `entry_point`, `script` and `arguments` are what the step says.
    step: StepRequest | None = None
    git: GitRequest | None = None
    tracking: TrackingRequest | None = None
    #: None: the task is what its own files say. Else `parameters` are all values, and `entry_point` what they were given to.
    replay: ReplayRequest | None = None


class ResourceView(Response):
    """What a job asked for, on each of its nodes."""

    nodes: int = 1
    cpus: int
    memory: int
    gpus: int
    gpu_type: str | None = None
    #: Bytes that each of its GPUs has at least; 0 when any will do.
    gpu_memory: int = 0
    time: int
    #: What the machine has beside that is made from parts for it; "": none is.
    compose: str = ""


class AlternativeView(Response):
    """Something that a waiting job could ask for otherwise, with which it would start sooner."""

    #: The option of the task, and its value and that of now in words.
    option: str
    value: str
    instead_of: str
    #: When it would start; None for now.
    start: datetime | None = None


class QueueView(Response):
    """Where a waiting job stands."""

    #: 1 for the first in line.
    position: int
    estimated_start: datetime | None = None
    #: Between these two it should start with a probability of 80 %; None where nothing is known about how long jobs run.
    estimated_range: tuple[datetime, datetime] | None = None
    #: The smallest changes with which it would start now, or sooner than it should. In a list only the first few jobs have them.
    alternatives: list[AlternativeView] = []


class PreviewView(Response):
    """What would become of a task if it were submitted now."""

    resources: ResourceView
    #: None: it would start.
    queue: QueueView | None = None
    #: Why it would wait.
    reason: str = ""
    message: str = ""
    notes: list[str] = []


class JobView(Response):
    """One job."""

    id: int
    kind: str
    owner: str
    account: str
    name: str
    qos: str
    #: Part of the lab that it runs in; "" in a lab without partitions.
    partition: str = ""
    state: str
    #: CamelCase constant; `message` says it in words.
    reason: str
    message: str
    resources: ResourceView
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: Since when it is stopped, and for how long it was before.
    suspended_at: datetime | None = None
    suspended_seconds: float = 0.0
    #: How often it was stopped and went on, and for how many people cells of notebooks had its GPUs; 0 where nobody knows.
    pauses: int = 0
    pause_people: int = 0
    attempt: int = 0
    exit_code: int | None = None
    signal: int | None = None
    node: str | None = None
    devices: list[str] = Field(default_factory=list)
    simulated: bool = False
    run_id: str | None = None
    #: Address of the run in the tracking UI.
    run_url: str | None = None
    queue: QueueView | None = None
    ended: bool = False
    #: False: it cannot be interrupted, and nobody takes its place while it runs.
    preemptible: bool = True
    #: Who may read its log, outputs and record: "owner", or "account": the members of its account too.
    visible: str = "owner"
    #: How often it may still go on after its walltime.
    requeues_left: int = 0
    #: What it waits for before its first attempt; "" for nothing.
    dependency: str = ""
    #: The job that submitted it; None: a person did.
    parent: int | None = None
    #: What it has in common with the other steps of its pipeline; "": it is no step.
    pipeline: str = ""
    #: In the answer to a submission: True when it is an earlier job, whose result is taken again.
    cached: bool = False
    #: Of an element of an array: the array's number, which is that of its first job, its index, and what was asked for ("0-9%2").
    array_job_id: int | None = None
    array_task_id: int | None = None
    array: str = ""
    #: What has to be said about what was asked for; in the answer to a submission, and where one job is looked at.
    notes: list[str] = Field(default_factory=list)


class ArrayView(Response):
    """The jobs of an array by index: all, or the one that was asked for."""

    id: int
    #: What was asked for: "0-9%2".
    array: str
    jobs: list[JobView]


class JobPage(Response):
    """Newest first. `next` is the `before` of the following page, or None at the end."""

    jobs: list[JobView]
    next: int | None = None


class UsageView(Response):
    """What an attempt used."""

    cpu_seconds: float = 0.0
    memory: int = 0
    memory_peak: int = 0
    gpu_utilization: dict[str, float] = Field(default_factory=dict)
    gpu_memory: dict[str, int] = Field(default_factory=dict)
    #: Means of `gpu_utilization` over so many samples, while the command was not stopped.
    gpu_mean: dict[str, float] = Field(default_factory=dict)
    gpu_samples: int = 0
    #: Percent of streaming multiprocessors that had work (GPM, from Hopper on), now and as a mean.
    gpu_sm: dict[str, float] = Field(default_factory=dict)
    gpu_sm_mean: dict[str, float] = Field(default_factory=dict)
    gpu_memory_peak: dict[str, int] = Field(default_factory=dict)
    #: Joules.
    gpu_energy: dict[str, float] = Field(default_factory=dict)


class AttemptView(Response):
    """One try at a job."""

    number: int
    node: str
    devices: list[str]
    state: str
    reason: str
    message: str
    exit_code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: For how long it was stopped.
    suspended_seconds: float = 0.0
    #: Its number in Slurm, and the nodes that Slurm gave it; None and "" where the lab chose the node, or it has not started.
    slurm_job: int | None = None
    slurm_nodes: str = ""
    environment: str | None = None
    environment_built: bool | None = None
    usage: UsageView = Field(default_factory=UsageView)
    #: True while outputs that could not be stored at its end are left in its working directory.
    uncollected: bool = False


class JobDetail(JobView):
    """One job with its description and attempts."""

    entry_point: str
    command: str
    parameters: dict[str, str]
    snapshot: str
    experiment: str | None = None
    git_commit: str | None = None
    git_dirty: bool = False
    rerun_of: int | None = None
    #: What came of repeating it, as it was asked for last: "bit-identical in 3 repetitions"; "": it was not asked.
    verified: str = ""
    #: What its owner may want to change: its GPUs are hardly busy, and why that probably is; "": nothing.
    hint: str = ""
    #: The job whose record it repeats, as its submitter says: "job 12 of the lab 2d23d8fa769d"; "": none.
    replay_of: str = ""
    #: What it asks of Slurm beyond resources, as options of sbatch and "module NAME".
    slurm: list[str] = Field(default_factory=list)
    #: What it asks of other engines, by their names.
    engines: dict[str, dict[str, Any]] = Field(default_factory=dict)
    launcher: str = "none"
    #: Processes on each node.
    tasks_per_node: int = 1
    #: Why it gives its GPUs to no cell while it runs; "" for one that has none, or gives them.
    keeps_gpus: str = ""
    #: What `reason` means, also where an engine brought the code; "" where nobody has declared it.
    meaning: str = ""
    #: What its cells had, as far as they are over; None for what is no session that borrows GPUs.
    cells: SessionTimesView | None = None
    attempts: list[AttemptView] = Field(default_factory=list)


class OutputView(Response):
    """One stored output; fetched from ``/api/v1/jobs/{id}/outputs/{path}``."""

    path: str
    size: int
    digest: str
    #: When its content was given up; absent while it is stored.
    removed_at: datetime | None = None


class OutputList(Response):
    """All stored outputs of a job's last attempt."""

    outputs: list[OutputView]
    #: Where they were collected after its end: what was not stored, and why.
    notes: list[str] = Field(default_factory=list)


class EventView(Response):
    """One entry of the event stream. SSE: ``id`` is `id`, ``event`` is `type`, ``data`` is this object as JSON.

    `data` by type. state: state, reason, message, attempt, exit_code, signal. queue: position, message,
    estimated_start. log: attempt, offset, text. progress: message; reason where it is not about preparing (Preempting, Resuming,
    Tracked, or an engine's own).
    storage (only in streams, of no job in particular, without an id of its own): room, message; a disk of the lab's has run full,
    or has room again.
    """

    id: int
    at: datetime
    job_id: int
    type: Literal["state", "queue", "log", "progress", "storage"]
    data: dict[str, Any]


class EventPage(Response):
    """Events after a given id, oldest first."""

    events: list[EventView]
    #: Pass as `after` to go on.
    last: int


class SnapshotView(Response):
    """A stored code snapshot."""

    digest: str


class RunView(Response):
    """The tracking run of a job."""

    run_id: str
    experiment_id: str
    uri: str


class ExportedAttemptPage(Response):
    """Attempts of some jobs: ``GET /api/v1/report/jobs``."""

    begin: datetime
    #: What happened then or later is left out.
    end: datetime
    #: In the order of jobs, and of the attempts of each.
    attempts: list[ExportedAttempt]
    #: What to ask with as `after` for the jobs that follow; None where there are no more.
    next: int | None = None

"""Jobs: what is asked for, what came of it, and the events on the way."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response


class ResourceRequest(Request):
    """What a task asks for; whatever is None comes from the task's own file, then from the QoS."""

    cpus: int | None = None
    #: "8G"
    memory: str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    #: "40G": memory that each of the GPUs has at least.
    gpu_memory: str | None = None
    #: "2h"
    time: str | None = None


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


class TaskRequest(Request):
    """Body of ``POST /api/v1/jobs``: the lab reads the task's description out of the snapshot itself.

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
    name: str | None = None
    qos: str | None = None
    #: Part of the lab; None: the first that takes the QoS and has enough.
    partition: str | None = None
    account: str | None = None
    resources: ResourceRequest = Field(default_factory=ResourceRequest)
    #: MLflow's backend-config JSON, with Slurm's names; what is not understood is refused.
    backend_config: dict[str, Any] = Field(default_factory=dict)
    retries: int | None = None
    #: False: nobody may take its place while it runs. None: as the task's own file says, or true.
    preemptible: bool | None = None
    experiment: str | None = None
    variables: dict[str, str] = Field(default_factory=dict)
    git: GitRequest | None = None
    tracking: TrackingRequest | None = None


class ResourceView(Response):
    """What a job asked for."""

    cpus: int
    memory: int
    gpus: int
    gpu_type: str | None = None
    #: Bytes that each of its GPUs has at least; 0 when any will do.
    gpu_memory: int = 0
    time: int


class QueueView(Response):
    """Where a waiting job stands."""

    #: 1 for the first in line.
    position: int
    estimated_start: datetime | None = None
    #: Between these two it should start with a probability of 80 %; None where nothing is known about how long jobs run.
    estimated_range: tuple[datetime, datetime] | None = None


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
    environment: str | None = None
    environment_built: bool | None = None
    usage: UsageView = Field(default_factory=UsageView)


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
    attempts: list[AttemptView] = Field(default_factory=list)


class OutputView(Response):
    """One stored output; fetched from ``/api/v1/jobs/{id}/outputs/{path}``."""

    path: str
    size: int
    digest: str


class OutputList(Response):
    """All stored outputs of a job's last attempt."""

    outputs: list[OutputView]


class EventView(Response):
    """One entry of the event stream. SSE: ``id`` is `id`, ``event`` is `type`, ``data`` is this object as JSON.

    `data` by type. state: state, reason, message, attempt, exit_code, signal. queue: position, message,
    estimated_start. log: attempt, offset, text. progress: message; reason where it is not about preparing (Preempting, Resuming).
    """

    id: int
    at: datetime
    job_id: int
    type: Literal["state", "queue", "log", "progress"]
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

"""Models of ``/api/v1``. Times are ISO 8601 in UTC, sizes are bytes, durations are seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

API = "/api/v1"


class Request(BaseModel):
    """Base of what clients send: an unknown field is an error, never dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Response(BaseModel):
    """Base of what the lab answers."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ResourceRequest(Request):
    """What a task asks for; whatever is None comes from the task's own file, then from the QoS."""

    cpus: int | None = None
    #: "8G"
    memory: str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
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
    account: str | None = None
    resources: ResourceRequest = Field(default_factory=ResourceRequest)
    #: MLflow's backend-config JSON, with Slurm's names; what is not understood is refused.
    backend_config: dict[str, Any] = Field(default_factory=dict)
    retries: int | None = None
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
    time: int


class QueueView(Response):
    """Where a waiting job stands."""

    #: 1 for the first in line.
    position: int
    estimated_start: datetime | None = None


class JobView(Response):
    """One job."""

    id: int
    kind: str
    owner: str
    account: str
    name: str
    qos: str
    state: str
    #: CamelCase constant; `message` says it in words.
    reason: str
    message: str
    resources: ResourceView
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
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
    estimated_start. log: attempt, offset, text. progress: message.
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


class HolderView(Response):
    """The job that holds a device; name and owner only where the caller may see them."""

    job_id: int | None = None
    name: str | None = None
    owner: str | None = None


class DeviceView(Response):
    """One GPU."""

    uuid: str
    index: int
    type: str
    name: str
    memory: int
    simulated: bool
    #: "free", "held" or "withheld" (another lab on the machine has it).
    state: str
    holder: HolderView | None = None


class NodeView(Response):
    """One machine."""

    name: str
    cpus: int
    cpus_free: int
    memory: int
    memory_free: int
    drained: str | None = None
    devices: list[DeviceView]


class NodeList(Response):
    """All machines of the lab."""

    nodes: list[NodeView]


class SnapshotView(Response):
    """A stored code snapshot."""

    digest: str


class RunView(Response):
    """The tracking run of a job."""

    run_id: str
    experiment_id: str
    uri: str


class UserRequest(Request):
    """Body of ``POST /api/v1/users`` (administrators)."""

    name: str
    role: Literal["user", "admin"] = "user"


class UserView(Response):
    """A user."""

    subject: str
    name: str
    role: str
    account: str


class NewUser(Response):
    """A user who was just made; the token is shown this once."""

    user: UserView
    token: str


class UserList(Response):
    """All users (administrators)."""

    users: list[UserView]


class QoSView(Response):
    """One class of service."""

    name: str
    default: bool
    kinds: list[str]
    default_time: int
    max_time: int | None
    max_jobs_per_user: int | None
    max_gpus_per_user: int | None
    priority: int


class LabView(Response):
    """What this lab is: ``GET /api/v1/lab``."""

    version: str
    lab_id: str
    simulated: bool
    caller: UserView
    qos: list[QoSView]
    #: "starting", "ready", "failed", "stopped" or "off", and why.
    tracking: str
    tracking_message: str = ""
    tracking_url: str | None = None


class Problem(Response):
    """Every error, as RFC 9457 ``application/problem+json``."""

    #: "urn:carrel:problem:invalid" and so on; the last part is the error's code.
    type: str
    title: str
    status: int
    #: Fact and value.
    detail: str
    #: What the reader can do.
    remedy: str = ""
    details: dict[str, Any] = Field(default_factory=dict)

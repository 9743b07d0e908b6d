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


class SessionRequest(Request):
    """Body of ``POST /api/v1/sessions``; whatever is None is decided by the lab."""

    kind: Literal["notebook", "terminal"] = "notebook"
    name: str | None = None
    #: Absolute path on the lab's machine (administrators); None: the caller's own files.
    directory: str | None = None
    #: Name of an environment, or the absolute path of one (administrators).
    environment: str = "default"
    #: GPUs that a cell gets when it uses CUDA; with `reserve` they are the session's own from start to end.
    gpus: int | None = None
    reserve: bool = False
    qos: str | None = None
    #: Part of the lab; None: the first that takes the QoS and has enough.
    partition: str | None = None
    account: str | None = None
    cpus: int | None = None
    #: "8G"
    memory: str | None = None
    #: "12h"
    time: str | None = None
    #: Address of the server at a JupyterHub that this session is to be; it then waits for ``PUT /api/v1/sessions/{id}/hub``.
    hub: str | None = None


class SessionView(Response):
    """One session: the job, and what makes it interactive."""

    job: JobView
    kind: str
    directory: str
    environment: str
    gpus: int
    reserve: bool
    #: True when the program inside answers, so that opening it shows something at once.
    ready: bool = False
    connections: int = 0
    idle_since: datetime | None = None
    #: When it is ended unless somebody comes back.
    idle_end: datetime | None = None
    #: Address at the JupyterHub that it is run for; it is opened there.
    hub: str | None = None


class SessionList(Response):
    """Sessions, newest first."""

    sessions: list[SessionView]


class SessionLink(Response):
    """A link that lets one browser into a session, once, within a minute."""

    url: str


class HubRequest(Request):
    """Body of ``PUT /api/v1/sessions/{id}/hub``: what a JupyterHub tells its single-user server. Handed on, and kept nowhere."""

    #: ``JUPYTERHUB_API_TOKEN`` and so on (`jupyterhub.spawner.Spawner.get_env`).
    variables: dict[str, str]


class HubView(Response):
    """Where the single-user server listens, at the host that ``JUPYTERHUB_SERVICE_URL`` names."""

    port: int


class StrangerView(Response):
    """A process on a GPU that holds no lease."""

    pid: int
    bytes: int = 0
    name: str = ""


class LentDevice(Response):
    """One GPU, as the node's broker sees it."""

    uuid: str
    index: int
    name: str
    type: str = ""
    memory: int
    used: int = 0
    simulated: bool
    withheld: str | None = None
    lease: str | None = None
    #: Ids of the tenants whose state is in its memory.
    residents: list[str] = Field(default_factory=list)
    strangers: list[StrangerView] = Field(default_factory=list)


class TenantView(Response):
    """A process that has GPU state, or wants some. Of others, names are blank."""

    id: str
    job: int | None = None
    owner: str = ""
    kernel: str = ""
    label: str = ""
    #: "none", "resident", "suspending", "suspended", "resuming" or "lost".
    state: str
    home: list[str] = Field(default_factory=list)
    bytes: int = 0
    suspendable: bool = True
    why_not: str = ""
    last_used: float = 0.0
    cells: int = 0
    gpu_seconds: float = 0.0
    waited_seconds: float = 0.0
    mine: bool = False


class LeaseView(Response):
    """A lease: who uses which devices now. Of others, names are blank."""

    id: str
    tenant: str
    job: int | None = None
    owner: str = ""
    devices: list[str]
    #: Unix seconds.
    since: float
    #: "active", "paused" or "held".
    state: str
    held_until: float | None = None
    mine: bool = False


class LeaseRequestView(Response):
    """Somebody who waits for a GPU."""

    tenant: str
    job: int | None = None
    owner: str = ""
    gpus: int
    position: int
    since: float
    #: Seconds from now, or None when nobody can say.
    estimate: float | None = None
    message: str = ""
    mine: bool = False


class LendingView(Response):
    """``GET /api/v1/gpus``: who has which GPU now, who waits, whose state is where."""

    #: False while the node's broker does not answer; then the lists are empty.
    available: bool
    #: "suspend", "hold" or "simulated".
    tier: str = ""
    simulated: bool = False
    devices: list[LentDevice] = Field(default_factory=list)
    tenants: list[TenantView] = Field(default_factory=list)
    leases: list[LeaseView] = Field(default_factory=list)
    queue: list[LeaseRequestView] = Field(default_factory=list)


class EnvironmentRequest(Request):
    """Body of ``POST /api/v1/environments``: one of `requirements`, `project`, `path` and `source`, or none of them.

    ipykernel and pip are added to what the lab makes.
    """

    #: "torch", or "site/torch" (administrators): for everybody.
    name: str
    #: "3.11" or ">=3.10"; None: what the project says, else the lab's own.
    python: str | None = None
    #: Lines of a requirements file, which name no other files but constraints in `files`.
    requirements: list[str] | None = None
    #: Texts of constraint files, by the path that `requirements` have for them.
    files: dict[str, str] = Field(default_factory=dict)
    #: Texts of "pyproject.toml" and, where there is one, "uv.lock".
    project: dict[str, str] | None = None
    #: Absolute path of a virtual environment or conda prefix on the lab's machine, to be used where it is (administrators).
    path: str | None = None
    #: Another environment, whose present lock is installed.
    source: str | None = None


class EnvironmentShareRequest(Request):
    """Body of ``POST /api/v1/environments/{name}/share``: whoever is not named has no part in it any more."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    #: "all", or subjects; empty: nobody.
    subjects: Literal["all"] | list[str] = Field(alias="with")


class EnvironmentRestoreRequest(Request):
    """Body of ``POST /api/v1/environments/{name}/restore``."""

    #: The beginning of a lock's digest; None: the last that differs from what is installed now.
    lock: str | None = None


class EnvironmentLockView(Response):
    """One lock in the history of an environment."""

    digest: str
    at: datetime
    #: "made", "installed" (in a session), "restored" or "taken" (anew, from the shared one).
    how: str
    packages: int


class NamedEnvironmentView(Response):
    """A named environment, as the caller writes its name."""

    name: str
    owner: str
    #: "own", "reference" (a prefix elsewhere, used where it is) or "overlay" (on top of one).
    kind: str
    #: Implementation and exact version ("cpython-3.11.7").
    python: str
    #: What it was made from, in words.
    source: str
    path: str
    created_at: datetime
    used_at: datetime
    #: Bytes on disk; what it shares with one that comes before it in a list is not counted again.
    size: int
    packages: int
    in_use: bool
    #: "all", or subjects; shown to its owner alone.
    shared_with: list[str] = Field(default_factory=list)
    #: Of a copy: what it is a copy of.
    copy_of: str | None = None
    #: Oldest first.
    locks: list[EnvironmentLockView] = Field(default_factory=list)


class NamedEnvironmentList(Response):
    """One's own environments, then the site's, then what others share."""

    environments: list[NamedEnvironmentView]
    #: Bytes of one's own together, each file once, and how many they may be.
    used: int
    quota: int | None = None


class EnvironmentLockText(Response):
    """A lock: requirement lines with exact versions, and hashes where they are known."""

    environment: str
    digest: str
    at: datetime
    python: str
    text: str


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
    max_jobs_per_account: int | None = None
    max_gpus_per_account: int | None = None
    #: Of everybody together.
    max_gpus: int | None = None
    idle_time: int | None = None
    priority: int
    #: Classes of service whose jobs give way to those of this one.
    preempts: list[str] = Field(default_factory=list)
    #: What happens to a job of this class that gives way: "none" (it never does), "requeue" or "suspend".
    preempt_mode: str = "none"
    #: Seconds that it has run before it may have to give way, and that it has between SIGTERM and SIGKILL when it is requeued.
    preempt_exempt_time: int = 0
    preempt_grace: int = 0


class PartitionView(Response):
    """One part of a lab."""

    name: str
    #: Names of its nodes, those that are there now.
    nodes: list[str]
    #: Classes of service that it takes.
    qos: list[str]


class LabView(Response):
    """What this lab is: ``GET /api/v1/lab``."""

    version: str
    lab_id: str
    simulated: bool
    caller: UserView
    qos: list[QoSView]
    #: Empty for a lab that is one. Work that names none goes to the first that takes its QoS and has enough.
    partitions: list[PartitionView] = Field(default_factory=list)
    #: "starting", "ready", "failed", "stopped" or "off", and why.
    tracking: str
    tracking_message: str = ""
    tracking_url: str | None = None


class StandingView(Response):
    """Where one user stands on one account."""

    account: str
    user: str
    #: 1 goes first; place among all who have used anything.
    factor: float
    place: int
    #: Part of the lab by shares, and part of what was used, 0 to 1.
    share: float
    used: float
    #: What has been used, in charged hours (of one GPU, unless the lab counts otherwise) that fade with the half-life.
    hours: float


class ShareView(Response):
    """Fair share: ``GET /api/v1/share``."""

    standings: list[StandingView]
    of: int
    #: Seconds.
    half_life: float
    weight: float
    #: GPUs (or what is charged as such) that the caller holds now.
    held: float
    #: The caller's factor by account in an hour, if all is kept and if all is released now.
    in_an_hour_kept: dict[str, float]
    in_an_hour_released: dict[str, float]


class Reloaded(Response):
    """What reading the rules again has done: ``POST /api/v1/lab/reload``."""

    #: False when what is written is what was in force.
    changed: bool


class DrainRequest(Request):
    """Why nothing new is to start on a node: ``POST /api/v1/nodes/{name}/drain``."""

    reason: str


class DrainChange(Response):
    """What draining a node, or the opposite, has done."""

    #: False when it was so before.
    changed: bool


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


class EnvironmentProgress(Response):
    """One line of the answer to a request that builds an environment; the last line has `environment` or `problem`."""

    message: str | None = None
    environment: NamedEnvironmentView | None = None
    problem: Problem | None = None


class ReservationRequest(Request):
    """Body of ``PUT /api/v1/reservations/{name}``."""

    #: None: now.
    begin: datetime | None = None
    end: datetime
    #: Names of nodes; "gpu[01-04]" and "gpu*" stand for several.
    nodes: list[str] = Field(default_factory=lambda: ["*"], min_length=1)
    #: Subjects of users, and accounts, whose jobs may run there; with neither it is maintenance, and nobody's may.
    users: list[str] = Field(default_factory=list)
    accounts: list[str] = Field(default_factory=list)
    #: Everybody who waits for it reads this.
    reason: str


class ReservationView(Response):
    """Nodes that are kept between two moments; for whom is told to administrators and to those who are among them."""

    name: str
    begin: datetime
    end: datetime
    nodes: list[str]
    users: list[str]
    accounts: list[str]
    reason: str
    #: True when the caller's own jobs may run there, on the caller's usual account.
    admits_me: bool


class ReservationList(Response):
    """Those that are in force and those to come, the first to begin first."""

    reservations: list[ReservationView]


class ReservationChange(Response):
    """What was asked for; `changed` is false when there was the very same already."""

    changed: bool
    reservation: ReservationView

"""Sessions, and the GPUs that their cells borrow."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from carrel.core.domain.fabric import FreeSlices
from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.jobs import JobView


class SessionRequest(Request):
    """Body of ``POST /api/v1/sessions``; the lab decides what is None."""

    kind: Literal["notebook", "terminal", "vscode"] = "notebook"
    name: str | None = None
    #: Absolute path on the lab's machine (administrators); None: the caller's own files.
    directory: str | None = None
    #: Name of an environment, or the absolute path of one (administrators).
    environment: str = "default"
    #: The image in which its kernels and terminals run, as a registry has it; null: they run in the environment.
    image: str | None = None
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
    #: Names of the caller's secrets, which its kernels and terminals find in their environment.
    secrets: list[str] = Field(default_factory=list)
    #: Address of the server at a JupyterHub that this session is to be; it then waits for ``PUT /api/v1/sessions/{id}/hub``.
    hub: str | None = None


class SessionView(Response):
    """One session: the job, and what makes it interactive."""

    job: JobView
    kind: str
    directory: str
    environment: str
    #: The image in which its kernels and terminals run, as it was asked for; null for none.
    image: str | None = None
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
    #: What there is to know about its GPUs, where that is not as it was asked for; "" for nothing.
    note: str = ""
    #: Why the lab does not reach it although it runs; "" for nothing.
    trouble: str = ""
    #: Address of the cluster's node that it runs on, once it is ready; "" for the lab's own machine.
    host: str = ""
    #: Its own address (``http://s12-….localhost:8000``) while it runs, where one session is asked for. Nobody gets in by it.
    address: str = ""


class SessionList(Response):
    """Sessions, newest first."""

    sessions: list[SessionView]


class SessionLink(Response):
    """A link that lets one browser in, once: into a session within a minute, to the lab's pages within ten."""

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


class DeviceShareView(Response):
    """What one tenant has in a GPU's memory."""

    tenant: str
    bytes: int
    #: Bytes of it that are only kept in reserve.
    cached: int = 0


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
    #: The waiting job that it is kept for while no job has it; cells have it all the same.
    kept_for: int | None = None
    lease: str | None = None
    #: Ids of the tenants whose state is in its memory.
    residents: list[str] = Field(default_factory=list)
    #: How much each of them has there.
    by: list[DeviceShareView] = Field(default_factory=list)
    strangers: list[StrangerView] = Field(default_factory=list)
    #: From when on `Lending.hour` tells everything of it (Unix seconds), or None.
    known_since: float | None = None


class TenantView(Response):
    """A process that has GPU state, or wants some. Of others, names are blank."""

    id: str
    job: int | None = None
    owner: str = ""
    kernel: str = ""
    #: The notebook, after the name of its session ("thesis: work.ipynb"); of a task its own.
    label: str = ""
    #: "none", "resident", "suspending", "suspended", "spilling", "spilled", "resuming" or "lost".
    state: str
    home: list[str] = Field(default_factory=list)
    bytes: int = 0
    suspendable: bool = True
    why_not: str = ""
    #: How its state leaves its devices: "bus", "driver", "hold", or "" where nobody says; and why not over the bus.
    way: str = ""
    not_bus: str = ""
    #: Where its CUDA contexts are: "device", "leaving", "away" (in host memory, too), or "" where nobody says; and their size.
    context: str = ""
    context_bytes: int = 0
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


class MoveView(Response):
    """A state that moves now, between a GPU and host memory, or that and the disk. Of others, names are blank."""

    tenant: str
    job: int | None = None
    owner: str = ""
    label: str = ""
    devices: list[str] = Field(default_factory=list)
    #: "out", to host memory, or "back"; "to_disk" or "from_disk".
    direction: str
    #: "simulated", "driver" or "bus".
    way: str = ""
    bytes: int
    #: Bytes that have moved, or None where this way of moving does not say.
    done: int | None = None
    #: When it began, and when it should be done (Unix seconds); None: nobody knows.
    since: float
    ends: float | None = None
    mine: bool = False


class StretchView(Response):
    """What was so on one GPU for a while. Of others, names are blank."""

    device: str
    #: "computes", "holds" (kept while idle), "paused", "leaves" (its state goes to host memory) or "returns".
    what: str
    #: Unix seconds; `until` is None while it is so.
    since: float
    until: float | None = None
    #: How much of the time between it really was: short ones of one process are put together.
    seconds: float = 0.0
    job: int | None = None
    owner: str = ""
    label: str = ""
    #: "kernel", or "runner" for a task.
    role: str = ""
    mine: bool = False


class MoveRateView(Response):
    """How fast states have moved on this machine."""

    way: str
    direction: str
    #: Bytes a second.
    rate: float


class RoomView(Response):
    """Room for GPU states, in bytes; `limit` and `left` None: as much as there is."""

    limit: int | None = None
    left: int | None = None


class PoolView(Response):
    """Host memory in pieces, for programs with the residency library: what they have, and what is ready for the next one."""

    limit: int
    given: int = 0
    ready: int = 0


class HostView(RoomView):
    """Where states go that leave their GPUs: host memory, of that the pool, and the disk behind it (None: there is none)."""

    #: What they take in host memory now.
    states: int
    pool: PoolView | None = None
    disk: RoomView | None = None
    #: Why no state goes to the disk although the lab's settings have room for some, with the remedy; "": nothing is wrong.
    disk_problem: str = ""


class Lending(Response):
    """Who has which GPU of one machine, who waits, whose state is where."""

    #: "suspend", "hold" or "simulated"; "" where nothing is lent.
    tier: str = ""
    simulated: bool = False
    devices: list[LentDevice] = Field(default_factory=list)
    tenants: list[TenantView] = Field(default_factory=list)
    leases: list[LeaseView] = Field(default_factory=list)
    queue: list[LeaseRequestView] = Field(default_factory=list)
    #: States that move now.
    moves: list[MoveView] = Field(default_factory=list)
    #: What was so on the devices within the last hour, of each device the oldest first, and what is so now.
    hour: list[StretchView] = Field(default_factory=list)
    rates: list[MoveRateView] = Field(default_factory=list)
    #: None where nothing is lent.
    host: HostView | None = None


class NodeLendingView(Lending):
    """One node of a cluster, as its broker said last."""

    node: str
    #: Seconds since it said so.
    age: float
    #: False when that is too long ago to be what is now, or when its broker has ended.
    current: bool
    #: True when its broker was ended; cells that run go on.
    ended: bool = False


class LendingView(Lending):
    """``GET /api/v1/gpus``: the lab's own machine, and the nodes of clusters that have a broker."""

    #: False while the broker of the lab's own machine does not answer; then its lists are empty.
    available: bool
    nodes: list[NodeLendingView] = Field(default_factory=list)
    #: Slices of the fabric's GPUs that can be had now, by size.
    slices: list[FreeSlices] = Field(default_factory=list)

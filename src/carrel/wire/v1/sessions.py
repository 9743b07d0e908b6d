"""Sessions, and the GPUs that their cells borrow."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.jobs import JobView


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
    #: What there is to know about its GPUs, where that is not as it was asked for; "" for nothing.
    note: str = ""
    #: Why the lab does not reach it although it runs; "" for nothing.
    trouble: str = ""
    #: Address of the cluster's node that it runs on, once it is ready; "" for the lab's own machine.
    host: str = ""


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
    #: How its state leaves its devices: "bus", "driver", "hold", or "" where nobody says; and why not over the bus.
    way: str = ""
    not_bus: str = ""
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


class Lending(Response):
    """Who has which GPU of one machine, who waits, whose state is where."""

    #: "suspend", "hold" or "simulated"; "" where nothing is lent.
    tier: str = ""
    simulated: bool = False
    devices: list[LentDevice] = Field(default_factory=list)
    tenants: list[TenantView] = Field(default_factory=list)
    leases: list[LeaseView] = Field(default_factory=list)
    queue: list[LeaseRequestView] = Field(default_factory=list)


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

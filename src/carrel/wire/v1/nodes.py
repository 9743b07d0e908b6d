"""Machines, who holds what on them, and when they are kept for somebody."""

from __future__ import annotations

from pydantic import Field

from carrel.wire.v1.base import Response


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
    #: "free", "held", "drained" or "withheld" (another lab on the machine has it).
    state: str
    #: Why nothing new gets it, a fault of it say; or None.
    drained: str | None = None
    #: True while the driver does not say whether it is well: that is no reason to drain it, and no sign that it is.
    unknown: bool = False
    holder: HolderView | None = None
    #: The waiting job that it is kept for while it is free: another job has it only if it ends before that one starts.
    kept_for: int | None = None


class NodeView(Response):
    """One machine."""

    name: str
    cpus: int
    cpus_free: int
    memory: int
    memory_free: int
    drained: str | None = None
    devices: list[DeviceView]


class ClusterNodeView(Response):
    """One machine of a Slurm cluster, as Slurm says: which jobs run there is Slurm's decision."""

    name: str
    #: Parts of the lab whose jobs may run there.
    partitions: list[str]
    cpus: int
    memory: int
    #: How many GPUs of which type it has.
    gpus: dict[str, int] = Field(default_factory=dict)
    #: Why nothing new starts there, or None.
    drained: str | None = None


class NodeList(Response):
    """All machines of the lab, and those of clusters as far as Slurm has said."""

    nodes: list[NodeView]
    cluster: list[ClusterNodeView] = Field(default_factory=list)

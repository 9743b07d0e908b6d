"""What the lab answers about logs and machines."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.job import Job
from carrel.domain.node import Device, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of the log of one attempt."""

    attempt: int
    #: Where `data` begins, in bytes.
    offset: int
    data: bytes
    #: Bytes of log so far.
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device, and who holds it."""

    device: Device
    #: None when it is free; the job's name and owner are blank where the caller may not see them.
    holder: Job | None = None
    #: True when another lab on the machine has it.
    withheld: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One machine, and what is free on it."""

    node: Node
    cpus_free: int
    memory_free: int
    devices: tuple[DeviceStatus, ...]

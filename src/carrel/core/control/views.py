"""What the lab answers about logs, machines and fair share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.core.domain.account import Standing
from carrel.core.domain.job import Job
from carrel.core.domain.node import Device, Node


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
    #: The waiting job that it is kept for while it is free.
    kept_for: int | None = None
    #: True while the driver does not say whether it is well.
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One machine, and what is free on it."""

    node: Node
    cpus_free: int
    memory_free: int
    devices: tuple[DeviceStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReport:
    """Fair share as one caller may see it."""

    standings: Sequence[Standing]
    #: Place of each (account, user) among `of`; 1 goes first.
    places: Mapping[tuple[str, str], int]
    of: int
    #: Seconds after which use counts half, and seconds of waiting that the best standing is ahead of the worst.
    half_life: float
    weight: float
    #: Charged seconds a second for what the caller holds now.
    held: float
    #: The caller's factor by account in an hour: when they keep what they hold, and when they release it now.
    kept: Mapping[str, float]
    released: Mapping[str, float]

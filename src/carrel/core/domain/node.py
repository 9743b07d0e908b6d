"""Machines and their devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.core.domain.errors import Invalid
from carrel.core.domain.noun import Moment, private

#: What the UUIDs of devices begin with that have no hardware behind them.
SIMULATED = "SIM-"
#: Characters of the reason for which a node is drained or reserved.
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one slice of a GPU, on a node."""

    #: The driver's own name for it ("GPU-…"), or "SIM-…" for a simulated one: unique in the world and stable.
    uuid: str
    #: Position on its node, for people; never used to address it.
    index: int
    #: Short type as used in requests: "h200", "a100", "simulated".
    type: str
    #: What the driver calls it: "NVIDIA H200".
    name: str
    #: Bytes of device memory.
    memory: int
    #: True when there is no hardware behind it; every screen says so.
    simulated: bool = False
    #: Why no job and no cell gets it now, or None.
    drained: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """What a job that runs on several nodes holds on one of them."""

    node: str
    #: UUIDs.
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Nothing new starts on a node or a GPU: an administrator wants it so, or the GPU has a fault. What runs there goes on."""

    #: Name of the node, or UUID of the GPU.
    node: str
    reason: str
    #: Subject of the administrator ("": the lab itself, for a fault), and when.
    by: str = private(default="")
    since: Moment = private(default=0.0)
    #: True when an administrator has returned the GPU: the lab does not drain it again for this fault, as long as it lasts.
    returned: bool = private(default=False)


def checked_reason(text: str) -> str:
    """Return why a node is drained or reserved, on one line. Raises `Invalid`."""
    reason = " ".join(text.split())
    if not reason or len(reason) > LONGEST_REASON:
        raise Invalid(
            f"The reason has {len(reason)} characters.",
            remedy=f"Say in 1 to {LONGEST_REASON} why: everybody who waits reads it.",
        )
    return reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    name: str
    cpus: int
    #: Bytes that jobs may use.
    memory: int
    devices: tuple[Device, ...] = ()
    #: Why nothing new starts here now ("drained by admin"), or None.
    drained: str | None = None
    #: Slurm's shares of its GPUs (gres/shard); 0 on the lab's own nodes.
    shards: int = 0
    #: Of a machine from parts, what records say of it: its "composition", and what a task says to have one like it ("compose").
    parts: Mapping[str, str] = field(default_factory=dict)

    def describe_gpus(self) -> str:
        """ "1 GPU", "4 GPUs (simulated)"."""
        count = len(self.devices)
        simulated = " (simulated)" if any(device.simulated for device in self.devices) else ""
        return f"{count} GPU{'' if count == 1 else 's'}{simulated}"


_BRANDS = {"nvidia", "tesla", "quadro", "geforce", "graphics", "generation", "gpu"}
_FORM = re.compile(r"(sxm\d*|pcie|nvl|hbm\d\w*|\d+gb|\d+g)")
_SLICE = re.compile(r"\bMIG\s+(\d+[cg]?\.?\d*[cg]?\.\d+gb\S*)", re.IGNORECASE)


def short_type(name: str) -> str:
    """Return the type that people ask for: "NVIDIA A100-SXM4-80GB" is "a100", "NVIDIA H200 MIG 1g.18gb" is "h200-1g.18gb"."""
    found = _SLICE.search(name)
    model = name[: found.start()] if found else name
    words = [word for word in re.split(r"[\s\-_]+", model.lower()) if word]
    kept = [word for word in words if word not in _BRANDS and not _FORM.fullmatch(word)]
    base = "-".join(kept) or "-".join(words) or "gpu"
    return f"{base}-{found[1].lower()}" if found else base

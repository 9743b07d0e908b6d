"""Pieces of messages: fields that the broker sends, and what it reads out of any message that it was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from carrel.core.domain.errors import Conflict
from carrel.core.domain.lease import LeaseState
from carrel.core.domain.node import Device
from carrel.core.domain.units import LATEST, format_duration
from carrel.node.broker.core.rows import LeaseRow, TenantRow

_LONGEST_NAME = 200
_MOST_WORDS = 64


class Peer(Protocol):
    """A process, as the kernel says who it is."""

    @property
    def name(self) -> str:
        """One name for this process, never used again on this machine until it boots."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def start(self) -> int:
        """Field 22 of proc_pid_stat(5)."""

    @property
    def uid(self) -> int:
        """Its user."""


def device_fields(device: Device) -> dict[str, Any]:
    """A device for a client."""
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "memory": device.memory,
        "simulated": device.simulated,
    }


def granted_fields(lease: LeaseRow, devices: Mapping[str, Device]) -> dict[str, Any]:
    """The fields of `granted` for a lease."""
    return {
        "request": lease.request,
        "lease": lease.id,
        "fence": lease.fence,
        "devices": [device_fields(devices[uuid]) for uuid in lease.devices if uuid in devices],
        "waited": round(lease.waited, 3),
        "resumed": lease.resumed,
        "state": (LeaseState.PAUSED if lease.pending else lease.state).value,
        "aside": lease.aside,
        "message": _granted(lease, devices),
    }


def _granted(lease: LeaseRow, devices: Mapping[str, Device]) -> str:
    text = f"on {named(lease.devices, devices)}"
    if lease.resumed:
        text += "; its state was brought back"
    if lease.waited >= 1:
        text += f"; waited {format_duration(lease.waited)}"
    return text


def named(uuids: Sequence[str], devices: Mapping[str, Device]) -> str:
    """Devices for people: "GPU 0 (NVIDIA H200)", "simulated GPUs 0 and 1"."""
    known = [devices[uuid] for uuid in uuids if uuid in devices]
    if not known:
        return "no GPU"
    indexes = " and ".join(str(device.index) for device in known)
    what = "GPU" if len(known) == 1 else "GPUs"
    if known[0].simulated:
        return f"simulated {what} {indexes}"
    return f"{what} {indexes} ({known[0].name})"


def lost_fields(row: TenantRow) -> dict[str, str]:
    """The fields of `refused` for a process whose state is lost."""
    return {"code": "lost", "message": f"The GPU state of this process is lost: {row.lost}", "remedy": "Restart the kernel."}


def beyond_home(gpus: int, row: TenantRow) -> Conflict:
    """The error for a cell that asks for more devices than its process has its state on."""
    return Conflict(
        f"The cell needs {gpus} GPUs, but the process has its state on {len(row.home)}.",
        remedy="Restart the kernel and say %gpu before anything uses CUDA.",
    )


def moment_of(message: Mapping[str, Any], name: str) -> float | None:
    """The Unix seconds in a field; None for what is no moment of this age."""
    value = message.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < LATEST else None


def text_of(message: Mapping[str, Any], name: str) -> str:
    """The text in a field, or "" when there is none; at most so long that nobody fills the journal with it."""
    value = message.get(name, "")
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def sizes_of(value: object, devices: Sequence[str]) -> dict[str, int]:
    """Bytes by device from a list in the order of `devices`; what is no number is left out."""
    if not isinstance(value, list):
        return {}
    return {uuid: size for uuid, size in zip(devices, value, strict=False) if type(size) is int and size > 0}


def words_of(value: object) -> tuple[str, ...]:
    """The texts in a list; what is no list, and what is no text, is left out."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(item[:_LONGEST_NAME] for item in value if isinstance(item, str))[:_MOST_WORDS]

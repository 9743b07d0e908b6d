"""Which devices this lab has."""

from __future__ import annotations

from carrel.core.domain.node import Device
from carrel.core.domain.units import GIB
from carrel.node.devices.nvml import list_gpus

#: Memory of a simulated device, in bytes.
SIMULATED_MEMORY = 16 * GIB


def discover(
    *, simulate: int | None = None, lab: str = "lab", memory: int = SIMULATED_MEMORY, visible: str | None = None
) -> tuple[Device, ...]:
    """Return the devices of this machine, in order of their index.

    With `simulate` (a number, 0 or more) that many devices without hardware are made up, each of `memory` bytes, with
    uuids that hold the lab's id `lab`; every text about them says so. Otherwise the driver is asked, and a machine without
    one has none. `visible` is the CUDA_VISIBLE_DEVICES under which the lab runs (a cluster's allocation): only those count.
    """
    if simulate is not None:
        return tuple(_simulated(lab, number, memory) for number in range(simulate))
    gpus = list_gpus()
    return gpus if visible is None else select_visible(gpus, visible)


def select_visible(gpus: tuple[Device, ...], visible: str) -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES (CUDA programming guide, "Environment variables") lets a program see.

    Entries are positions or (the start of) uuids; as in CUDA, the first one that names nothing ends the list.
    """
    seen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        matches = [
            gpu for gpu in gpus if (entry == str(gpu.index) if entry.isdigit() else bool(entry) and gpu.uuid.startswith(entry))
        ]
        if len(matches) != 1:
            break
        seen.append(matches[0])
    return tuple(seen)


def _simulated(lab: str, number: int, memory: int) -> Device:
    return Device(
        uuid=f"SIM-{lab}-{number}",
        index=number,
        type="simulated",
        name="simulated GPU (no hardware)",
        memory=memory,
        simulated=True,
    )

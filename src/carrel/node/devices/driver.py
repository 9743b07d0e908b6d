"""What driver this machine has, and what its devices are."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.node.devices.nvml import _text, nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One physical GPU."""

    uuid: str
    name: str
    #: Bytes.
    memory: int
    free: int
    #: True in MIG mode: what can be used of it are its slices.
    mig: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The driver and its devices, as NVML tells them."""

    #: "580.65.06".
    version: str
    gpus: tuple[GpuFacts, ...]


def driver_facts() -> DriverFacts | None:
    """Return the driver's version and its devices, or None where no driver answers. A device that does not answer is left out."""
    with nvml() as lib:
        if lib is None:
            return None
        gpus = []
        try:
            version = _text(lib.nvmlSystemGetDriverVersion())
            count = lib.nvmlDeviceGetCount()
        except lib.NVMLError:
            return None
        for position in range(count):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(position)
                memory = lib.nvmlDeviceGetMemoryInfo(handle)
                uuid, name = _text(lib.nvmlDeviceGetUUID(handle)), _text(lib.nvmlDeviceGetName(handle))
            except lib.NVMLError:  # fell off the bus
                continue
            try:
                mig = lib.nvmlDeviceGetMigMode(handle)[0] == lib.NVML_DEVICE_MIG_ENABLE
            except lib.NVMLError:  # not supported before Ampere
                mig = False
            gpus.append(GpuFacts(uuid=uuid, name=name, memory=int(memory.total), free=int(memory.free), mig=mig))
        return DriverFacts(version=version, gpus=tuple(gpus))

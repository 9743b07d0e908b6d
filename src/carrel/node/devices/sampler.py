"""How busy GPUs are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from carrel.node.devices.nvml import nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One reading; a device that does not answer is left out."""

    #: Percent of the last sample period in which a kernel ran, by the device's name (nvmlDeviceGetUtilizationRates).
    utilization: Mapping[str, float] = field(default_factory=dict)
    #: Bytes in use by everybody on the device, by its name.
    memory: Mapping[str, int] = field(default_factory=dict)


class GpuSampler:
    """Keeps NVML open for some devices; without a driver it reads nothing, at no cost."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` as in CUDA_VISIBLE_DEVICES: UUIDs, or positions among the devices that this process can see."""
        self._stack = ExitStack()
        self._lib: Any = None
        self._handles: dict[str, Any] = {}
        wanted = [name for name in names if not name.startswith("SIM-")]
        if not wanted:
            return
        self._lib = self._stack.enter_context(nvml())
        if self._lib is None:
            return
        for name in wanted:
            try:
                self._handles[name] = (
                    self._lib.nvmlDeviceGetHandleByIndex(int(name))
                    if name.isdecimal()
                    else self._lib.nvmlDeviceGetHandleByUUID(name)
                )
            except self._lib.NVMLError:  # lost or renamed: it cannot be read
                continue

    def read(self) -> GpuUse:
        """Return the use of every device that answers."""
        utilization: dict[str, float] = {}
        memory: dict[str, int] = {}
        for name, handle in self._handles.items():
            try:
                memory[name] = int(self._lib.nvmlDeviceGetMemoryInfo(handle).used)
                utilization[name] = float(self._lib.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._lib.NVMLError:  # slices (MIG) have no utilisation; a lost device has neither
                continue
        return GpuUse(utilization=utilization, memory=memory)

    def opened(self) -> bool | None:
        """Whether some process has one of the devices open for computing; None where none of them tells."""
        told: list[bool] = []
        for handle in self._handles.values():
            try:
                told.append(bool(self._lib.nvmlDeviceGetComputeRunningProcesses(handle)))
            except self._lib.NVMLError:
                continue
        return any(told) if told else None

    def close(self) -> None:
        """Let go of NVML."""
        self._handles = {}
        self._stack.close()

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

"""How busy GPUs are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from carrel.devices.nvml import nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One reading; a device that does not answer is left out."""

    #: Percent of the last sample period in which a kernel ran, by uuid (nvmlDeviceGetUtilizationRates).
    utilization: Mapping[str, float] = field(default_factory=dict)
    #: Bytes in use by everybody on the device, by uuid.
    memory: Mapping[str, int] = field(default_factory=dict)


class GpuSampler:
    """Keeps NVML open for the devices `uuids`; without a driver it reads nothing, at no cost."""

    def __init__(self, uuids: Iterable[str]) -> None:
        self._stack = ExitStack()
        self._lib: Any = None
        self._handles: dict[str, Any] = {}
        wanted = [uuid for uuid in uuids if not uuid.startswith("SIM-")]
        if not wanted:
            return
        self._lib = self._stack.enter_context(nvml())
        if self._lib is None:
            return
        for uuid in wanted:
            try:
                self._handles[uuid] = self._lib.nvmlDeviceGetHandleByUUID(uuid)
            except self._lib.NVMLError:  # lost or renamed: it cannot be read
                continue

    def read(self) -> GpuUse:
        """Return the use of every device that answers."""
        utilization: dict[str, float] = {}
        memory: dict[str, int] = {}
        for uuid, handle in self._handles.items():
            try:
                memory[uuid] = int(self._lib.nvmlDeviceGetMemoryInfo(handle).used)
                utilization[uuid] = float(self._lib.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._lib.NVMLError:  # slices (MIG) have no utilisation; a lost device has neither
                continue
        return GpuUse(utilization=utilization, memory=memory)

    def close(self) -> None:
        """Let go of NVML."""
        self._handles = {}
        self._stack.close()

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

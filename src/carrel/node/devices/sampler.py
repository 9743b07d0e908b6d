"""How busy GPUs are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
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
    #: Percent of the streaming multiprocessors that had work since the reading before (GPM), from Hopper on, of slices too.
    sm: Mapping[str, float] = field(default_factory=dict)
    #: Joules that the device has taken since its driver was loaded (nvmlDeviceGetTotalEnergyConsumption).
    energy: Mapping[str, float] = field(default_factory=dict)


class _SmActivity:
    """GPM samples of one device: two of them, of which the older one is written over."""

    def __init__(self, lib: Any, handle: Any) -> None:
        """Raises the driver's error where the device has no GPM."""
        self._lib, self._handle, self._slice = lib, handle, None
        with suppress(lib.NVMLError):
            self._handle = lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            self._slice = lib.nvmlDeviceGetGpuInstanceId(handle)
        if not lib.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise lib.NVMLError(lib.NVML_ERROR_NOT_SUPPORTED)
        self._before, self._spare = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
        self._take(self._before)

    def read(self) -> float | None:
        """Percent since the reading before; None where the driver cannot say it, as between two readings at once."""
        lib, asked = self._lib, self._lib.c_nvmlGpmMetricsGet_t()
        self._take(self._spare)
        asked.version, asked.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = self._before, self._spare
        asked.metrics[0].metricId = lib.NVML_GPM_METRIC_SM_UTIL
        self._before, self._spare = self._spare, self._before
        lib.nvmlGpmMetricsGet(asked)
        found = asked.metrics[0]
        return float(found.value) if found.nvmlReturn == lib.NVML_SUCCESS and 0 <= found.value <= 100 else None

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._before, self._spare):
            self._lib.nvmlGpmSampleFree(sample)

    def _take(self, sample: Any) -> None:
        if self._slice is None:
            self._lib.nvmlGpmSampleGet(self._handle, sample)
        else:
            self._lib.nvmlGpmMigSampleGet(self._handle, self._slice, sample)


class GpuSampler:
    """Keeps NVML open for some devices; without a driver it reads nothing, at no cost."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names` as in CUDA_VISIBLE_DEVICES: UUIDs, or positions among the devices that this process can see."""
        self._stack = ExitStack()
        self._lib: Any = None
        self._handles: dict[str, Any] = {}
        self._activities: dict[str, _SmActivity] = {}
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
            with suppress(self._lib.NVMLError):  # no GPM before Hopper, and in old drivers
                activity = self._activities[name] = _SmActivity(self._lib, self._handles[name])
                self._stack.callback(activity.close)

    def read(self) -> GpuUse:
        """Return the use of every device that answers."""
        utilization: dict[str, float] = {}
        memory: dict[str, int] = {}
        sm: dict[str, float] = {}
        energy: dict[str, float] = {}
        for name, handle in self._handles.items():
            with suppress(self._lib.NVMLError):  # GPUs before Volta, and slices
                energy[name] = self._lib.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
            with suppress(self._lib.NVMLError):
                if name in self._activities and (percent := self._activities[name].read()) is not None:
                    sm[name] = percent
            try:
                memory[name] = int(self._lib.nvmlDeviceGetMemoryInfo(handle).used)
                utilization[name] = float(self._lib.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._lib.NVMLError:  # slices (MIG) have no utilisation; a lost device has neither
                continue
        return GpuUse(utilization=utilization, memory=memory, sm=sm, energy=energy)

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

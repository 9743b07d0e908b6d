"""Who is on which GPU, as the driver says (NVML)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from carrel.node.devices.nvml import list_gpus, nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevices:
    """One reading. A device that did not answer is in `unread` and nowhere else: that it shows nobody means nothing then."""

    #: device UUID -> pid -> bytes; 0 where the driver does not tell how many. Pids are the driver's, of the host's namespace.
    processes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    #: device UUID -> bytes used by everybody, the driver included.
    used: Mapping[str, int] = field(default_factory=dict)
    #: device UUID -> what the driver said instead.
    unread: Mapping[str, str] = field(default_factory=dict)
    #: device UUID -> percent of the last moment in which a kernel ran; slices (MIG) have none.
    busy: Mapping[str, float] = field(default_factory=dict)


class DeviceProcesses:
    """Keeps NVML open for the devices `uuids` (default: all). Without a driver every device is unread.

    A driver that stops answering is asked anew, with new handles, at the next reading. Calls can block for as long as the driver
    likes: a caller that cannot wait makes them in a process that can be ended.
    """

    def __init__(self, uuids: Iterable[str] | None = None) -> None:
        wanted = (gpu.uuid for gpu in list_gpus()) if uuids is None else uuids
        self._uuids = tuple(uuid for uuid in wanted if not uuid.startswith("SIM-"))
        self._stack = ExitStack()
        self._lib: Any = None
        self._handles: dict[str, Any] = {}

    def read(self) -> OnDevices:
        """Ask the driver about every device."""
        if not self._uuids:
            return OnDevices()
        if self._lib is None:
            self._lib = self._stack.enter_context(nvml())
        if self._lib is None:
            return OnDevices(unread=dict.fromkeys(self._uuids, "no NVIDIA driver answers (NVML)"))
        processes: dict[str, Mapping[int, int]] = {}
        used: dict[str, int] = {}
        unread: dict[str, str] = {}
        busy: dict[str, float] = {}
        for uuid in self._uuids:
            try:
                handle = self._handle(uuid)
                with suppress(self._lib.NVMLError):
                    busy[uuid] = float(self._lib.nvmlDeviceGetUtilizationRates(handle).gpu)
                present = self._present(handle)
                used[uuid] = int(self._lib.nvmlDeviceGetMemoryInfo(handle).used)
                processes[uuid] = present
            except self._lib.NVMLError as error:
                unread[uuid] = str(error)
        if unread and not processes:
            self.close()
        return OnDevices(processes=processes, used=used, unread=unread, busy=busy)

    def name(self, pid: int) -> str:
        """Return the program of a process as the driver knows it, or "" (it is gone, or another user's)."""
        if self._lib is None:
            return ""
        try:
            name = self._lib.nvmlSystemGetProcessName(pid)
        except self._lib.NVMLError:
            return ""
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    def close(self) -> None:
        """Let go of NVML. Reading again opens it again."""
        self._handles = {}
        self._lib = None
        self._stack.close()

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._lib.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _present(self, handle: Any) -> dict[int, int]:
        return {
            int(process.pid): int(process.usedGpuMemory or 0)
            for process in self._lib.nvmlDeviceGetComputeRunningProcesses(handle)
        }

    def __enter__(self) -> DeviceProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

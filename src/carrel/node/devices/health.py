"""Whether GPUs are fit to work, as NVML tells: events while they happen, and what stays until a reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from carrel.core.domain.node import Device
from carrel.node.devices.nvml import _text, nvml
from carrel.node.devices.xids import fault_of

#: What the driver wants done before a GPU is used again (nvml.h, nvmlDeviceGpuRecoveryAction_t); others it may name later.
_RECOVERY = {1: "a reset of the GPU", 2: "a restart of the machine", 3: "the jobs beside it ended", 4: "jobs ended and a reset"}
#: Readings in a row in which the hardware slows itself down for heat, before that counts: a short one is no fault.
_HOT = 3


class DeviceHealth:
    """Keeps NVML open for the real ones of some devices. One thread at a time."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """A GPU that is divided (MIG) is read as a whole, and what it has concerns all its slices."""
        self._stack = ExitStack()
        #: Handles and slices of GPUs, by the UUID of the GPU.
        self._gpus: dict[str, tuple[Any, list[str]]] = {}
        #: Devices of which nothing is known: no driver, or no handle.
        self._unread: list[str] = [device.uuid for device in devices if not device.simulated]
        self._lib: Any = self._stack.enter_context(nvml()) if self._unread else None
        #: Uncorrected errors since the driver was loaded, at the first reading; and hot readings in a row.
        self._errors: dict[str, int] = {}
        self._hot: dict[str, int] = {}
        self._set: Any = None
        if self._lib is not None:
            for name in tuple(self._unread):
                self._find(name)
            self._listen()

    def heard(self, seconds: float) -> Mapping[str, str]:
        """Wait for one event; return what is wrong with the devices that it is about. {} for none, and for a program's own error.

        It may return at once, always so where the driver tells no events.
        """
        if self._set is None:
            return {}
        try:
            event = self._lib.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
            uuid = _text(self._lib.nvmlDeviceGetUUID(event.device))
        except self._lib.NVMLError_Timeout:
            return {}
        except self._lib.NVMLError:  # what there is to say about it, `read` says
            return {}
        double_bit = event.eventType == self._lib.nvmlEventTypeDoubleBitEccError
        why = fault_of(48 if double_bit else int(event.eventData))
        return dict.fromkeys(self._gpus.get(uuid, (None, []))[1], why) if why else {}

    def read(self) -> Mapping[str, str | None]:
        """Return for each real device what is wrong with it: "" for nothing, None where the driver does not say."""
        found: dict[str, str | None] = dict.fromkeys(self._unread)
        for uuid, (handle, parts) in self._gpus.items():
            found |= dict.fromkeys(parts, self._state(uuid, handle))
        return found

    def close(self) -> None:
        """Let go of NVML."""
        if self._set is not None:
            self._lib.nvmlEventSetFree(self._set)
            self._set = None
        self._stack.close()

    def __enter__(self) -> DeviceHealth:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _find(self, name: str) -> None:
        try:
            handle = self._lib.nvmlDeviceGetHandleByUUID(name)
            if name.startswith("MIG-"):
                handle = self._lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            uuid = _text(self._lib.nvmlDeviceGetUUID(handle))
        except self._lib.NVMLError:
            return
        self._gpus.setdefault(uuid, (handle, []))[1].append(name)
        self._unread.remove(name)

    def _listen(self) -> None:
        wanted = self._lib.nvmlEventTypeXidCriticalError | self._lib.nvmlEventTypeDoubleBitEccError
        listening = False
        try:
            self._set = self._lib.nvmlEventSetCreate()
        except self._lib.NVMLError:
            return
        for handle, _ in self._gpus.values():
            try:
                types = self._lib.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                self._lib.nvmlDeviceRegisterEvents(handle, types, self._set)
                listening = True
            except self._lib.NVMLError:  # too old for events; it is read all the same
                continue
        if not listening:
            self._lib.nvmlEventSetFree(self._set)
            self._set = None

    def _state(self, uuid: str, handle: Any) -> str | None:
        """The first fault that a reading tells; None where not even one of them could be made."""
        lib, made = self._lib, False
        readings: tuple[Callable[[str, Any], str], ...] = (self._recovery, self._rows, self._pages, self._uncorrected, self._heat)
        for reading in readings:
            try:
                if why := reading(uuid, handle):
                    return why
                made = True
            except lib.NVMLError_GpuIsLost:
                return fault_of(79)
            except (lib.NVMLError_NotSupported, lib.NVMLError_FunctionNotFound):
                continue
            except lib.NVMLError:
                return None
        return "" if made else None

    def _recovery(self, _uuid: str, handle: Any) -> str:
        (field,) = self._lib.nvmlDeviceGetFieldValues(handle, [self._lib.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if field.nvmlReturn:  # each field has a result of its own
            raise self._lib.NVMLError(field.nvmlReturn)
        action = int(field.value.uiVal)
        return f"the driver wants {_RECOVERY.get(action, f'recovery action {action}')}" if action else ""

    def _rows(self, _uuid: str, handle: Any) -> str:
        _, _, pending, failed = self._lib.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "a row of its memory could not be remapped"
        return "rows of its memory are to be remapped at the next reset" if pending else ""

    def _pages(self, _uuid: str, handle: Any) -> str:
        pending = self._lib.nvmlDeviceGetRetiredPagesPendingStatus(handle)
        return "pages of its memory are to be retired at the next reset" if pending else ""

    def _uncorrected(self, uuid: str, handle: Any) -> str:
        lib = self._lib
        count = lib.nvmlDeviceGetTotalEccErrors(handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC)
        more = count - self._errors.setdefault(uuid, count)
        return f"{more} uncorrected memory error{'' if more == 1 else 's'} (ECC)" if more > 0 else ""

    def _heat(self, uuid: str, handle: Any) -> str:
        lib = self._lib
        hot = lib.nvmlDeviceGetCurrentClocksEventReasons(handle) & lib.nvmlClocksEventReasonHwThermalSlowdown
        self._hot[uuid] = self._hot.get(uuid, 0) + 1 if hot else 0
        return "it is too hot, and slows itself down" if self._hot[uuid] >= _HOT else ""

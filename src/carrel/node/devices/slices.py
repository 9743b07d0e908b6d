"""GPUs in MIG mode, and the slices into which they are cut (NVML: GPU instances). MIG mode is read, and never switched.

A program runs on a slice only when it has a compute instance. Here each slice has one, which is all of it; one without is what
is left where somebody died between the two, and nothing can run there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Conflict, NotFound, Unavailable
from carrel.core.domain.fabric import SliceProfile
from carrel.core.domain.units import MIB
from carrel.node.devices.nvml import _text, nvml

#: What CUDA_VISIBLE_DEVICES calls a slice begins so.
MIG = "MIG-"
#: Nodes of /dev/nvidia-caps that change how GPUs are cut, and watch all: no job sees them.
_OF_ADMINISTRATORS = ("config", "monitor")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlice:
    """A slice that is there."""

    #: "1g.10gb".
    profile: str
    #: The memory slice at which it begins.
    start: int
    #: As CUDA_VISIBLE_DEVICES names it; "" where somebody has cut it further, so that it is several.
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedGpu:
    """A GPU in MIG mode."""

    uuid: str
    #: "NVIDIA H200".
    name: str
    #: Bytes.
    memory: int
    #: As in /dev/nvidia0; it stays while other GPUs come and go.
    number: int
    profiles: tuple[SliceProfile, ...]
    slices: tuple[GpuSlice, ...]


def sliced_gpus() -> Sequence[SlicedGpu]:
    """Return the GPUs in MIG mode. One that does not answer is left out. Raises `Unavailable` where the driver tells nothing."""
    with _driver() as lib:
        found = []
        for position in range(lib.nvmlDeviceGetCount()):
            try:
                gpu = _Gpu(lib, lib.nvmlDeviceGetHandleByIndex(position))
                if gpu.cut():
                    found.append(gpu.look())
            except lib.NVMLError_NoPermission:
                raise
            except lib.NVMLError:  # it fell off the bus; the others can still work
                continue
        return found


def create_slice(gpu: str, profile: str, start: int) -> None:
    """Make a slice; one that is there stays, and one that was half made is made to its end.

    Raises `Conflict` when the driver refuses it, `Unavailable` when it is not known whether it is made, `NotFound`.
    """
    with _gpu(gpu) as found:
        found.create(profile, start)


def destroy_slice(gpu: str, profile: str, start: int) -> None:
    """Take a slice away; one that is not there is away.

    Raises as `create_slice` does, and `Conflict` when something runs there.
    """
    with _gpu(gpu) as found:
        found.destroy(profile, start)


def device_nodes(uuids: Sequence[str], root: Path = _ROOT) -> frozenset[str]:
    """Return what programs on these GPUs and slices open below /dev: nodes of GPUs, and those that give the slices alone.

    ("Device Nodes and Capabilities" in NVIDIA's Multi-Instance GPU User Guide.) Raises `Unavailable`, `NotFound`.
    """
    if not uuids:
        return frozenset()
    minors, found = _minors(root), set()
    with _driver() as lib:
        for uuid in uuids:
            handle = lib.nvmlDeviceGetHandleByUUID(uuid)
            if not uuid.startswith(MIG):
                found.add(f"nvidia{lib.nvmlDeviceGetMinorNumber(handle)}")
                continue
            number = lib.nvmlDeviceGetMinorNumber(lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            there = f"gpu{number}/gi{lib.nvmlDeviceGetGpuInstanceId(handle)}"
            ways = (f"{there}/access", f"{there}/ci{lib.nvmlDeviceGetComputeInstanceId(handle)}/access")
            found |= {f"nvidia{number}", *(f"nvidia-caps/nvidia-cap{minors[way]}" for way in ways if way in minors)}
    return frozenset(found)


def nodes_of_all_slices(root: Path = _ROOT) -> Sequence[str]:
    """Return the nodes below /dev that give slices, of all there are."""
    return [f"nvidia-caps/nvidia-cap{minor}" for what, minor in _minors(root).items() if what not in _OF_ADMINISTRATORS]


def _minors(root: Path) -> dict[str, int]:
    try:
        text = (root / "proc/driver/nvidia-caps/mig-minors").read_text()
    except OSError:
        return {}
    return {what: int(minor) for what, minor in re.findall(r"^(\S+) (\d+)$", text, re.MULTILINE)}


@contextmanager
def _driver() -> Iterator[Any]:
    with nvml() as lib:
        if lib is None:
            raise Unavailable("No NVIDIA driver answers (NVML).", remedy="`carrel doctor` says more.")
        refused = {
            lib.NVML_ERROR_INVALID_ARGUMENT, lib.NVML_ERROR_NOT_SUPPORTED, lib.NVML_ERROR_IN_USE,
            lib.NVML_ERROR_INSUFFICIENT_RESOURCES,
        }  # fmt: skip
        try:
            yield lib
        except lib.NVMLError_NotFound:
            raise NotFound("The driver knows no such GPU or slice.", remedy="`carrel compose blocks` lists all.") from None
        except lib.NVMLError_NoPermission:
            remedy = "Run the lab as root, or let it open /proc/driver/nvidia/capabilities/mig/config (docs/composing.md)."
            raise Unavailable("The driver lets this user neither see nor cut slices.", remedy=remedy) from None
        except lib.NVMLError as error:
            if error.value in refused:
                raise Conflict(f"The driver refuses it: {error}.", remedy="`carrel compose blocks` shows what is free.") from None
            remedy = "It is looked at again; nvidia-smi shows what there is."
            raise Unavailable(f"The driver does not say whether it is done: {error}.", remedy=remedy) from None


@contextmanager
def _gpu(uuid: str) -> Iterator[_Gpu]:
    with _driver() as lib:
        found = _Gpu(lib, lib.nvmlDeviceGetHandleByUUID(uuid))
        if not found.cut():
            raise Conflict(f"{uuid} is not in MIG mode.", remedy="An administrator switches it: nvidia-smi -mig 1.")
        yield found


class _Gpu:
    """One GPU. Each call raises what NVML says."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib, self._handle = lib, handle

    def cut(self) -> bool:
        """True in MIG mode."""
        try:
            return bool(self._lib.nvmlDeviceGetMigMode(self._handle)[0] == self._lib.NVML_DEVICE_MIG_ENABLE)
        except self._lib.NVMLError_NotSupported:  # before Ampere
            return False

    def look(self) -> SlicedGpu:
        """All of it as it is now."""
        lib, handle = self._lib, self._handle
        known, found = self._devices(), []
        for info, profile in self._profiles():
            for instance in self._instances(info):
                about = lib.nvmlGpuInstanceGetInfo(instance)
                parts = self._parts(instance)
                if parts:
                    whole = [size for size, _ in parts] == [profile.compute]
                    uuid = known.get(about.id, "") if whole else ""
                    found.append(GpuSlice(profile=profile.name, start=about.placement.start, uuid=uuid))
        return SlicedGpu(
            uuid=_text(lib.nvmlDeviceGetUUID(handle)),
            name=_text(lib.nvmlDeviceGetName(handle)),
            memory=int(lib.nvmlDeviceGetMemoryInfo(handle).total),
            number=int(lib.nvmlDeviceGetMinorNumber(handle)),
            profiles=tuple(profile for _, profile in self._profiles()),
            slices=tuple(found),
        )

    def create(self, name: str, start: int) -> None:
        lib = self._lib
        info, profile = self._profile(name)
        instance = next((one for one in self._instances(info) if self._start(one) == start), None)
        if instance is None:
            self._clear(profile, start)
            if not lib.nvmlDeviceGetGpuInstanceRemainingCapacity(self._handle, info.id):
                raise Conflict(f"There is no room for {name} on this GPU.", remedy="Destroy a slice first.")
            place = lib.c_nvmlGpuInstancePlacement_t(start=start, size=profile.memory_slices)
            instance = lib.nvmlDeviceCreateGpuInstanceWithPlacement(self._handle, info.id, byref(place))
        if self._parts(instance):
            return
        sizes = (one for one in self._part_profiles(instance) if one.sliceCount == profile.compute)
        whole = max(sizes, key=lambda one: one.multiprocessorCount)  # of "1g.20gb" there is one with fewer, too
        try:
            lib.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        except lib.NVMLError:
            with suppress(lib.NVMLError):  # nothing runs where there is none; where there is one, the driver refuses
                lib.nvmlGpuInstanceDestroy(instance)
            raise

    def destroy(self, name: str, start: int) -> None:
        info, _ = self._profile(name)
        instance = next((one for one in self._instances(info) if self._start(one) == start), None)
        if instance is None:
            return
        number = self._lib.nvmlGpuInstanceGetInfo(instance).id
        for handle in self._slices():
            if self._lib.nvmlDeviceGetGpuInstanceId(handle) != number:
                continue
            if running := [process.pid for process in self._lib.nvmlDeviceGetComputeRunningProcesses(handle)]:
                words = f"Process {running[0]} runs on {name} at {start}."
                raise Conflict(words, remedy="Nothing that is in use is taken: wait until it has ended.")
        for _, part in self._parts(instance):
            self._lib.nvmlComputeInstanceDestroy(part)
        self._lib.nvmlGpuInstanceDestroy(instance)

    def _clear(self, wanted: SliceProfile, start: int) -> None:
        """Take away what was half made and lies in the way: nothing can run on it."""
        for info, profile in self._profiles():
            for instance in self._instances(info):
                begin = self._start(instance)
                beside = start + wanted.memory_slices <= begin or begin + profile.memory_slices <= start
                if not beside and not self._parts(instance):
                    self._lib.nvmlGpuInstanceDestroy(instance)

    def _profiles(self) -> Iterator[tuple[Any, SliceProfile]]:
        """Yield the driver's words about each profile, and the profile."""
        lib = self._lib
        for number in range(lib.NVML_GPU_INSTANCE_PROFILE_COUNT):
            with suppress(lib.NVMLError_NotSupported, lib.NVMLError_InvalidArgument):  # this GPU has no such profile
                info = lib.nvmlDeviceGetGpuInstanceProfileInfoV(self._handle, number)
                places = self._places(info)
                if places:
                    profile = SliceProfile(
                        name=_text(info.name).removeprefix("MIG "),
                        compute=info.sliceCount,
                        memory_slices=places[0].size,
                        memory=info.memorySizeMB * MIB,
                        starts=tuple(place.start for place in places),
                    )
                    yield info, profile

    def _profile(self, name: str) -> tuple[Any, SliceProfile]:
        found = next((one for one in self._profiles() if one[1].name == name), None)
        if found is None:
            raise NotFound(f"This GPU cannot be cut into {name}.", remedy="`carrel compose blocks` lists all.")
        return found

    def _places(self, info: Any) -> list[Any]:
        lib, count = self._lib, c_uint()
        lib.nvmlDeviceGetGpuInstancePossiblePlacements(self._handle, info.id, None, byref(count))
        return _listed(
            lib.c_nvmlGpuInstancePlacement_t,
            count.value,
            lambda them, many: lib.nvmlDeviceGetGpuInstancePossiblePlacements(self._handle, info.id, them, many),
        )

    def _instances(self, info: Any) -> list[Any]:
        lib = self._lib
        return _listed(
            lib.c_nvmlGpuInstance_t,
            info.instanceCount,
            lambda them, many: lib.nvmlDeviceGetGpuInstances(self._handle, info.id, them, many),
        )

    def _start(self, instance: Any) -> int:
        return int(self._lib.nvmlGpuInstanceGetInfo(instance).placement.start)

    def _part_profiles(self, instance: Any) -> Iterator[Any]:
        lib = self._lib
        for number in range(lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            with suppress(lib.NVMLError_NotSupported, lib.NVMLError_InvalidArgument):
                yield lib.nvmlGpuInstanceGetComputeInstanceProfileInfoV(
                    instance, number, lib.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )

    def _parts(self, instance: Any) -> list[tuple[int, Any]]:
        """Its compute instances, with how many compute slices each has."""
        lib = self._lib

        def of(info: Any) -> list[Any]:
            def fill(them: Any, many: Any) -> None:
                lib.nvmlGpuInstanceGetComputeInstances(instance, info.id, them, many)

            return _listed(lib.c_nvmlComputeInstance_t, info.instanceCount, fill)

        return [(int(info.sliceCount), part) for info in self._part_profiles(instance) for part in of(info)]

    def _slices(self) -> Iterator[Any]:
        lib = self._lib
        for number in range(lib.nvmlDeviceGetMaxMigDeviceCount(self._handle)):
            with suppress(lib.NVMLError_NotFound, lib.NVMLError_InvalidArgument):  # no slice with this number
                yield lib.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, number)

    def _devices(self) -> dict[int, str]:
        """UUIDs of slices by the number of the GPU instance."""
        lib = self._lib
        return {lib.nvmlDeviceGetGpuInstanceId(one): _text(lib.nvmlDeviceGetUUID(one)) for one in self._slices()}


def _listed(kind: Any, most: int, fill: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the values that NVML writes into an array of so many."""
    them, many = (kind * max(1, most))(), c_uint(most)
    fill(them, byref(many))
    return list(them[: many.value])

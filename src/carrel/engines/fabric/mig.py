"""Slices of this machine's own GPUs, made and destroyed through NVML. What there is says the driver alone."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Conflict, NotFound
from carrel.core.domain.fabric import Block, BlockKind, Change, Step, by_name, slice_name
from carrel.core.domain.node import Device, short_type
from carrel.node.devices.health import DeviceHealth
from carrel.node.devices.locks import DeviceLocks
from carrel.node.devices.slices import SlicedGpu, create_slice, destroy_slice, sliced_gpus

#: GPUs are called by this and their number.
GPU = "gpu"
_FURTHER = "somebody has cut it further"
_LIST = "`carrel compose blocks` lists all."


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine, and what it has for those who use slices."""

    name: str
    cpus: int
    #: Bytes.
    memory: int
    #: UUIDs of the GPUs of which slices are made and destroyed; none: of all in MIG mode.
    gpus: tuple[str, ...] = ()


class MigFabric:
    """Implements `carrel.core.control.composing.Fabric`. Thread-safe, also between labs of one home."""

    def __init__(self, path: Path, host: Host, *, locks: DeviceLocks | None = None) -> None:
        """`path` is the file with the number of the newest lab; its directory is there."""
        self._path, self._host, self._locks = path, host, locks or DeviceLocks()
        #: What reads whether GPUs are well, and of which it does: it compares with what it has read before.
        self._health: tuple[DeviceHealth, frozenset[str]] | None = None
        self._reading = threading.Lock()

    def blocks(self) -> Sequence[Block]:
        """The machine's processors, its GPUs in MIG mode, and their slices. Raises `Unavailable`."""
        host = self._host
        cpu = self._block(name=f"{host.name}-cpu", kind=BlockKind.CPU, size=host.cpus, memory=host.memory)
        gpus = self._gpus()
        faults = self._faults(frozenset(gpu.uuid for gpu in gpus))
        return [cpu, *(block for gpu in gpus for block in self._blocks_of(gpu, faults.get(gpu.uuid) or ""))]

    def do(self, change: Change, *, fence: int) -> None:
        """Make or destroy a slice. One on which something runs stays: `Conflict`."""
        with self._alone(fence):
            gpu = next((one for one in self._gpus() if _name(one) == change.of), None)
            if change.step not in (Step.CREATE_SLICE, Step.DESTROY_SLICE):
                raise NotFound(f'There is no block "{change.block}" that could be moved.', remedy=_LIST)
            if gpu is None:
                raise NotFound(f'There is no GPU "{change.of}" in MIG mode.', remedy=_LIST)
            there = by_name(self._blocks_of(gpu)).get(change.block)
            if change.step is Step.CREATE_SLICE:
                create_slice(gpu.uuid, change.profile, change.start)
                return
            if there is not None and not there.uuid:
                raise Conflict(f"{there.name}: {_FURTHER}.", remedy="Whoever did that undoes it: nvidia-smi mig.")
            if there is not None and self._locks.is_held(_device(there.uuid)):
                raise Conflict(f"A job runs on {there.name}.", remedy="Nothing that is in use is taken.")
            destroy_slice(gpu.uuid, change.profile, change.start)

    def _gpus(self) -> Sequence[SlicedGpu]:
        return [gpu for gpu in sliced_gpus() if not self._host.gpus or gpu.uuid in self._host.gpus]

    def _faults(self, gpus: frozenset[str]) -> Mapping[str, str | None]:
        with self._reading:
            if self._health is None or self._health[1] != gpus:
                if self._health is not None:
                    self._health[0].close()
                self._health = DeviceHealth([_device(uuid) for uuid in sorted(gpus)]), gpus
            return self._health[0].read()

    def _blocks_of(self, gpu: SlicedGpu, fault: str = "") -> Sequence[Block]:
        kind = short_type(gpu.name)
        largest = max(gpu.profiles, key=lambda one: one.memory_slices, default=None)
        whole = self._block(
            name=_name(gpu),
            kind=BlockKind.GPU,
            type=kind,
            size=gpu.memory,
            uuid=gpu.uuid,
            profiles=gpu.profiles,
            compute_slices=largest.compute if largest else 0,
            memory_slices=largest.memory_slices if largest else 0,
            whole=False,
            fault=fault,
        )
        sizes = {profile.name: profile.memory for profile in gpu.profiles}
        return [
            whole,
            *(
                self._block(
                    name=slice_name(whole.name, one.profile, one.start),
                    kind=BlockKind.GPU,
                    type=kind,
                    size=sizes[one.profile],
                    uuid=one.uuid,
                    of=whole.name,
                    profile=one.profile,
                    start=one.start,
                    fault=fault if one.uuid else _FURTHER,
                )
                for one in gpu.slices
            ),
        ]

    def _block(self, **about: object) -> Block:
        return Block(zone=self._host.name, machine=self._host.name, fixed=True, **about)  # type: ignore[arg-type]

    @contextmanager
    def _alone(self, fence: int) -> Iterator[None]:
        """One change at a time, and none of a lab that was replaced."""
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            newest = int(file.read() or 0)
            if fence < newest:
                raise Conflict(
                    f"The change comes from a lab that was replaced ({fence}, after {newest}).",
                    remedy="Nothing was changed; the lab that runs now makes its own changes.",
                )
            if fence > newest:
                file.truncate(0)
                file.write(str(fence))
                file.flush()
            yield


def _name(gpu: SlicedGpu) -> str:
    return f"{GPU}{gpu.number}"


def _device(uuid: str) -> Device:
    return Device(uuid=uuid, index=0, type="", name=uuid, memory=0)

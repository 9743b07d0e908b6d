"""What a job uses: processor, memory, GPUs."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING

from carrel.domain.launch import Usage
from carrel.domain.node import Device
from carrel.runner.cgroups import JobCgroup
from carrel.runner.tree import descendants, measure

if TYPE_CHECKING:
    from carrel.devices.sampler import GpuSampler


class Sampler:
    """Samples everything below this process, which must have become a subreaper and have no other children."""

    def __init__(self, devices: Sequence[Device], cgroup: JobCgroup | None) -> None:
        self._uuids = [device.uuid for device in devices if not device.simulated]
        self._cgroup = cgroup
        self._gpus: GpuSampler | None = None
        self._base = _children_cpu()
        self._largest_before = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self._cpu = 0.0
        self._memory = 0
        self._peak = 0
        #: Processes at the last look.
        self.processes: list[int] = []

    def look(self) -> int:
        """Measure processor and memory, and return the bytes in use."""
        self.processes = descendants(os.getpid())
        use = measure(self.processes)
        self._cpu = max(self._cpu, use.cpu_seconds + _children_cpu() - self._base)
        self._memory = self._cgroup.memory() if self._cgroup else use.memory
        self._peak = max(self._peak, self._memory)
        return self._memory

    def take(self) -> Usage:
        """Return a sample of everything."""
        self.look()
        utilization: dict[str, float] = {}
        memory: dict[str, int] = {}
        if self._uuids:
            if self._gpus is None:
                from carrel.devices.sampler import GpuSampler

                self._gpus = GpuSampler(self._uuids)
            use = self._gpus.read()
            utilization, memory = dict(use.utilization), dict(use.memory)
        return Usage(
            cpu_seconds=round(self._cpu, 3),
            memory=self._memory,
            memory_peak=self._peak,
            gpu_utilization=utilization,
            gpu_memory=memory,
        )

    def total(self, peak: int = 0) -> Usage:
        """Return the sum, after every process was waited for; `peak` is a larger peak if somebody knows one."""
        use = resource.getrusage(resource.RUSAGE_CHILDREN)
        # getrusage(2) knows only the largest child ever, and a child counts as its own what the runner had when it forked:
        # the figure says something about the job only when it is larger than all that.
        largest = use.ru_maxrss * 1024 if use.ru_maxrss > self._largest_before else 0
        cpu = max(self._cpu, use.ru_utime + use.ru_stime - self._base)
        return Usage(cpu_seconds=round(cpu, 3), memory_peak=max(self._peak, largest, peak))


def _children_cpu() -> float:
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime

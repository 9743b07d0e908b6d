"""What a job uses: processor, memory, GPUs."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from carrel.core.domain.launch import Launch, Usage
from carrel.node.runner.cgroups import JobCgroup
from carrel.node.runner.file_memory import FileMemory
from carrel.node.runner.tree import descendants, measure

if TYPE_CHECKING:
    from carrel.node.devices.sampler import GpuSampler

N = TypeVar("N", int, float)


class Mean:
    """The mean percentage of each GPU over its samples."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, percents: Mapping[str, float]) -> None:
        """Count one sample of each."""
        for name, percent in percents.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + percent, count + 1)

    def read(self) -> dict[str, float]:
        """The means so far."""
        return {name: round(total / count, 2) for name, (total, count) in self._sums.items()}


class GpuWatch:
    """How busy some GPUs are. The driver's library is loaded at the first look."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: what CUDA_VISIBLE_DEVICES calls each GPU, by what it is to be called in samples."""
        self._names = names
        self._sampler: GpuSampler | None = None

    def read(self) -> Usage:
        """What there is to say about GPUs; nothing without a driver."""
        if not self._names:
            return Usage()
        if self._sampler is None:
            from carrel.node.devices.sampler import GpuSampler

            self._sampler = GpuSampler(self._names.values())
        use = self._sampler.read()
        return Usage(
            gpu_utilization=self._called(use.utilization),
            gpu_memory=self._called(use.memory),
            gpu_sm=self._called(use.sm),
            gpu_energy=self._called(use.energy),
        )

    def _called(self, by_name: Mapping[str, N]) -> dict[str, N]:
        return {called: by_name[name] for called, name in self._names.items() if name in by_name}

    def opened(self) -> bool | None:
        """Whether some process has one of them open; None where nobody can say."""
        return None if self._sampler is None else self._sampler.opened()


def gpus_on(node: str, visible: Sequence[str]) -> dict[str, str]:
    """How GPUs of a cluster's node are called in samples: by node and position, as Slurm names those of all nodes alike."""
    return {f"{node}/gpu{position}": name for position, name in enumerate(visible)}


def sampler_of(launch: Launch, cgroup: JobCgroup | None, elsewhere: Callable[[], Usage] | None, *, cluster: bool) -> Sampler:
    """What samples an attempt's use; where its processes are on several nodes, agents do it, and `elsewhere` tells."""
    uuids = [device.uuid for device in launch.devices if not device.simulated]
    names = gpus_on(launch.node, uuids) if cluster else {uuid: uuid for uuid in uuids}
    return Sampler(GpuWatch(names if elsewhere is None else {}), cgroup, elsewhere=elsewhere)


class Sampler:
    """Samples everything below this process, which must have become a subreaper and have no other children."""

    def __init__(
        self,
        gpus: GpuWatch,
        cgroup: JobCgroup | None,
        *,
        elsewhere: Callable[[], Usage] | None = None,
    ) -> None:
        """`elsewhere` tells the use of what belongs to the job and is not below this process."""
        self._elsewhere = elsewhere or Usage
        self._cgroup = cgroup
        self.gpus = gpus
        self._base = _children_cpu()
        self._largest_before = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        self._cpu = 0.0
        self._memory = 0
        self._peak = 0
        self._far = Usage()
        self._busy, self._sm = Mean(), Mean()
        self._samples = 0
        #: Of each GPU, the most bytes, the joules that are the job's, and what it had taken at the last look.
        self._gpu_peak: dict[str, int] = {}
        self._energy: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        #: Processes at the last look, and the bytes that they held in files in memory.
        self.processes: list[int] = []
        self.in_files = 0
        self.files = FileMemory()

    def look(self) -> int:
        """Measure processor and memory, and return the bytes in use."""
        self.processes = descendants(os.getpid())
        use = measure(self.processes)
        self._far = far = self._elsewhere()
        self._cpu = max(self._cpu, use.cpu_seconds + _children_cpu() - self._base + far.cpu_seconds)
        if self._cgroup:
            self._memory = self._cgroup.memory() + far.memory
        else:
            self.in_files = self.files.look(self.processes)
            self._memory = use.memory - use.shared + max(use.shared, self.in_files) + far.memory
        self._peak = max(self._peak, self._memory)
        return self._memory

    def take(self, *, stopped: bool = False) -> Usage:
        """Return a sample of everything. While the job is `stopped` others may have its GPUs: that is no use of its own."""
        self.look()
        gpus = self.gpus.read()
        utilization = {**gpus.gpu_utilization, **self._far.gpu_utilization}
        memory = {**gpus.gpu_memory, **self._far.gpu_memory}
        sm = {**gpus.gpu_sm, **self._far.gpu_sm}
        if not stopped:
            self._samples += bool(utilization)
            self._busy.add(utilization)
            self._sm.add(sm)
            self._gpu_peak |= {name: max(most, self._gpu_peak.get(name, 0)) for name, most in memory.items()}
        self._count_energy({**gpus.gpu_energy, **self._far.gpu_energy}, stopped=stopped)
        return Usage(
            cpu_seconds=round(self._cpu, 3),
            memory=self._memory,
            memory_peak=self._peak,
            gpu_utilization=utilization,
            gpu_memory=memory,
            gpu_sm=sm,
            **self._kept(),
        )

    def _count_energy(self, taken: Mapping[str, float], *, stopped: bool) -> None:
        """Add what each GPU took since the last look, unless others had it.

        A driver that was loaded again counts from zero: then a GPU has taken less than before, and nothing is added.
        """
        for name, joules in taken.items():
            before = self._taken.get(name, joules)
            if not stopped:
                self._energy[name] = self._energy.get(name, 0.0) + max(0.0, joules - before)
        self._taken |= taken

    def _kept(self) -> dict[str, Any]:
        """What is known of GPUs over all samples."""
        return {
            "gpu_mean": self._busy.read(),
            "gpu_samples": self._samples,
            "gpu_sm_mean": self._sm.read(),
            "gpu_memory_peak": dict(self._gpu_peak),
            "gpu_energy": {name: round(joules, 1) for name, joules in self._energy.items()},
        }

    def total(self, peak: int = 0) -> Usage:
        """Return the sum, after every process was waited for; `peak` is a larger peak if somebody knows one."""
        use = resource.getrusage(resource.RUSAGE_CHILDREN)
        # getrusage(2) knows only the largest child ever, and a child counts as its own what the runner had when it forked:
        # the figure says something about the job only when it is larger than all that.
        largest = use.ru_maxrss * 1024 if use.ru_maxrss > self._largest_before else 0
        cpu = max(self._cpu, use.ru_utime + use.ru_stime - self._base + self._elsewhere().cpu_seconds)
        return Usage(
            cpu_seconds=round(cpu, 3),
            memory_peak=max(self._peak, largest, peak),
            **self._kept(),
        )


def _children_cpu() -> float:
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime

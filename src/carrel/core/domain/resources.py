"""What a job asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_duration, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job asks for, on each of its nodes, for how long."""

    #: Nodes that it runs on at the same time; cpus, memory and gpus are had on each of them.
    nodes: int = 1
    #: Whole processors. 0 only where placement counts a session, which takes what is idle.
    cpus: int = 1
    #: Bytes of host memory.
    memory: int = 2 * 1024**3
    #: Whole GPUs.
    gpus: int = 0
    #: The GPU's type as `carrel doctor` prints it ("h200"), or None when any will do.
    gpu_type: str | None = None
    #: Bytes of memory that each GPU must have at least; 0 when any will do.
    gpu_memory: int = 0
    #: Walltime limit in seconds, counted from the start of the user's command.
    time: int = 3600
    #: What the machine has beside that is made from parts for it (`carrel.core.domain.parts`); "": it goes where there is room.
    compose: str = ""

    @property
    def total_gpus(self) -> int:
        """GPUs over all nodes."""
        return self.gpus * self.nodes

    @property
    def borrows(self) -> bool:
        """True for a session without GPUs of its own: its cells borrow some."""
        return not (self.cpus or self.gpus)

    @property
    def kept_while_suspended(self) -> Resources:
        """What is kept for a job while it is stopped: its memory."""
        return replace(self, cpus=0, gpus=0, gpu_type=None, gpu_memory=0)

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise Invalid(f"nodes is {self.nodes}.", remedy="A job needs at least 1.")
        if self.cpus < 0:
            raise Invalid(f"cpus is {self.cpus}.", remedy="A job needs at least 1.")
        if self.memory < 1024**2:
            raise Invalid(f"memory is {self.memory} bytes.", remedy='A job needs at least "1M".')
        if self.gpus < 0:
            raise Invalid(f"gpus is {self.gpus}.", remedy="Ask for 0 or more.")
        if self.gpu_type is not None and self.gpus == 0:
            raise Invalid(f'gpu_type is "{self.gpu_type}" but gpus is 0.', remedy="Ask for gpus too, or leave the type out.")
        if self.gpu_memory < 0:
            raise Invalid(f"gpu_memory is {self.gpu_memory} bytes.", remedy='Ask for "0" or more.')
        if self.gpu_memory and self.gpus == 0:
            raise Invalid(
                f"gpu_memory is {format_size(self.gpu_memory)} but gpus is 0.",
                remedy="Ask for gpus too, or leave the memory out.",
            )
        if self.time < 1:
            raise Invalid(f"time is {self.time} s.", remedy='A job needs at least "1s".')

    def describe_gpus(self) -> str:
        """The GPUs on each node: "2 GPUs", "1 GPU (h200)", "2 GPUs with 40G"."""
        kind = f" ({self.gpu_type})" if self.gpu_type else ""
        least = f" with {format_size(self.gpu_memory)}" if self.gpu_memory else ""
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}{least}"

    def describe(self) -> str:
        """One phrase for messages: "2 GPUs (h200), 8 CPUs, 16G for 2 h"."""
        gpus = f"{self.describe_gpus()}, " if self.gpus else ""
        nodes = f"{self.nodes} nodes with " if self.nodes > 1 else ""
        cpus = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}"
        return f"{nodes}{gpus}{cpus}, {format_size(self.memory)} for {format_duration(self.time)}"

"""Resources of which only some are said."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from carrel.core.domain.resources import Resources
from carrel.core.submission.kinds import COUNT, DURATION, GPUS, PARTS, SIZE, WORD
from carrel.core.submission.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """What one source (a file, a backend config, a request) says about resources; what is None comes from a less specific one."""

    nodes: int | None = option(kind=COUNT, flags=("--nodes",), help="How many nodes, at the same time; the rest is for each.")
    gpus: int | None = option(
        kind=GPUS,
        flags=("--gpus", "--gpus-per-node"),
        synonym="gpus_per_node",
        help="How many GPUs, whole and its own, on each node.",
    )
    gpu_type: str | None = option(
        kind=WORD, flags=("--gpu-type",), metavar="TYPE", help="Which type of GPU; `carrel nodes` lists them."
    )
    #: Bytes.
    gpu_memory: int | None = option(kind=SIZE, flags=("--gpu-memory",), help='Memory that each GPU has at least, such as "40G".')
    cpus: int | None = option(kind=COUNT, flags=("--cpus",), help="How many processors.")
    #: Bytes.
    memory: int | None = option(kind=SIZE, flags=("--memory",), help='How much memory, such as "8G".')
    #: Seconds.
    time: int | None = option(kind=DURATION, flags=("--time",), help='Walltime, such as "2h" or "02:30:00".')

    compose: str | None = option(
        kind=PARTS,
        flags=("--compose",),
        help="Make a machine from parts for it; it has these beside, such as nvme=2 (docs/composing.md).",
    )

    def over(self, other: ResourceOptions) -> ResourceOptions:
        """Return these, with what they leave open taken from `other`. No GPUs here means no kind of GPU from there."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other if self.gpus != 0 else replace(other, gpu_type=None, gpu_memory=None), **said)

    def resources(self, default: Resources) -> Resources:
        """Return complete resources, with what these leave open taken from `default`; raise `Invalid` as `Resources` does."""
        base = ResourceOptions(**{field.name: getattr(default, field.name) for field in fields(ResourceOptions)})
        complete = self.over(base)
        said = {field.name: getattr(complete, field.name) for field in fields(complete)}
        return replace(default, **{**said, "gpu_memory": complete.gpu_memory or 0, "compose": complete.compose or ""})

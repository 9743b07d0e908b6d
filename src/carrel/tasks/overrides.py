"""Resources of which only some are said; what is None comes from somewhere less specific."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from carrel.domain.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOverrides:
    """What one source (a file, a backend config, a command line) says about resources, and no more."""

    nodes: int | None = None
    #: On each node.
    gpus: int | None = None
    gpu_type: str | None = None
    #: Bytes that each GPU has at least.
    gpu_memory: int | None = None
    cpus: int | None = None
    #: Bytes.
    memory: int | None = None
    #: Seconds.
    time: int | None = None

    def over(self, other: ResourceOverrides) -> ResourceOverrides:
        """Return these, with what they leave open taken from `other`. No GPUs here means no kind of GPU from there."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other if self.gpus != 0 else replace(other, gpu_type=None, gpu_memory=None), **said)

    def resources(self, default: Resources) -> Resources:
        """Return complete resources, with what these leave open taken from `default`; raise `Invalid` as `Resources` does."""
        base = ResourceOverrides(**{field.name: getattr(default, field.name) for field in fields(ResourceOverrides)})
        complete = self.over(base)
        said = {field.name: getattr(complete, field.name) for field in fields(complete)}
        return replace(default, **{**said, "gpu_memory": complete.gpu_memory or 0})

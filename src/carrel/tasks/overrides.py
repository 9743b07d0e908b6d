"""Resources of which only some are said; what is None comes from somewhere less specific."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from carrel.domain.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOverrides:
    """What one source (a file, a backend config, a command line) says about resources, and no more."""

    gpus: int | None = None
    gpu_type: str | None = None
    cpus: int | None = None
    #: Bytes.
    memory: int | None = None
    #: Seconds.
    time: int | None = None

    def over(self, other: ResourceOverrides) -> ResourceOverrides:
        """Return these, with what they leave open taken from `other`. No GPUs here means no GPU type from there."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other if self.gpus != 0 else replace(other, gpu_type=None), **said)

    def resources(self, default: Resources) -> Resources:
        """Return complete resources, with what these leave open taken from `default`; raise `Invalid` as `Resources` does."""
        base = ResourceOverrides(
            gpus=default.gpus, gpu_type=default.gpu_type, cpus=default.cpus, memory=default.memory, time=default.time
        )
        complete = self.over(base)
        return Resources(**{field.name: getattr(complete, field.name) for field in fields(complete)})

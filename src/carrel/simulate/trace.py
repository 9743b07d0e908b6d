"""What a simulation is fed with, jobs and machines, and what came out of it, from which everything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace."""

    #: Unique in its trace; the file's own number where it has one.
    id: int
    #: Seconds after the beginning of the trace.
    submitted: float
    #: Seconds that it runs when it has what it asks for; the lab's scheduler does not know this number before it has ended.
    duration: float
    #: GPUs over all nodes together.
    gpus: int
    #: Their type, or None when any will do.
    gpu_type: str | None = None
    cpus: int = 0
    #: Bytes of host memory.
    memory: int = 0
    #: Walltime that was asked for, in seconds; None when the trace does not say.
    time: int | None = None
    user: str = "user"
    account: str = ""
    #: Jobs of one user with one name are taken to be alike.
    name: str = "job"
    #: Class of service, or None for the scheduler's default.
    qos: str | None = None
    kind: JobKind = JobKind.TASK

    def __post_init__(self) -> None:
        if self.submitted < 0 or self.duration < 0:
            raise Invalid(
                f"Job {self.id} is submitted at {self.submitted:g} s and runs {self.duration:g} s.",
                remedy="Neither may be negative.",
            )
        if self.gpus < 0:
            raise Invalid(f"Job {self.id} asks for {self.gpus} GPUs.", remedy="Ask for 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in the order of submission; ties in the order of the file."""

    #: What it is, in a few words: the file's name, or how it was generated.
    name: str
    jobs: Sequence[TraceJob]
    #: Where it was recorded, when that is known.
    cluster: Cluster | None = None
    #: What a reader has to know about it: lines left out, what was assumed.
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """How it went for one job. Times are seconds after the beginning of the trace."""

    id: int
    user: str
    gpus: int
    submitted: float
    #: When it first got what it asked for.
    start: float
    end: float
    #: Seconds for which it had its GPUs, all pieces together; more than its duration when work was lost.
    ran: float
    #: How often it was stopped or suspended before its end.
    preemptions: int = 0

    @property
    def wait(self) -> float:
        """Seconds in line: before its first start, and after each time that it was stopped."""
        if not self.preemptions:
            return self.start - self.submitted
        return max(0.0, self.completion - self.ran)

    @property
    def completion(self) -> float:
        """Seconds from submission to end: the field's JCT."""
        return self.end - self.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One trace under one policy."""

    policy: str
    trace: str
    #: GPUs that there were.
    gpus: int
    #: In the order of the trace.
    runs: Sequence[Run]
    #: Jobs that could never start (too large, not admitted), with the reason.
    refused: Sequence[tuple[int, str]] = ()

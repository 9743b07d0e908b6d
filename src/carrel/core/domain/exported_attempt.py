"""One attempt with its job, as formats of others want to know it."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.job import ENDED, JobState
from carrel.core.domain.qos import JobKind

_ENDED = frozenset(state.value for state in ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedAttempt:
    """One attempt; or a job that has none yet, or that ended without one, with number 0. Times are Unix seconds."""

    job: int
    #: Of an element of an array: the array's number and the index.
    array: int | None = None
    index: int | None = None
    attempt: int
    kind: str
    owner: str
    account: str
    qos: str
    #: "" in a lab without partitions.
    partition: str
    name: str
    #: What the lab knows of where it was; "" before it had a place.
    node: str
    #: True where the engine chose its node, as on a Slurm cluster.
    on_cluster: bool
    #: What follows was asked for on each of them.
    nodes: int
    cpus: int
    #: Bytes.
    memory: int
    gpus: int
    #: Walltime in seconds.
    time: int
    #: As the store has it; of an attempt number 0 that of its job.
    state: str
    exit_code: int | None = None
    signal: int | None = None
    #: True when its job waited for other jobs before this attempt.
    depends: bool
    #: True when another attempt followed.
    followed: bool
    #: When it got in line: the first attempt with the submission of its job, each other one with the end of that before it.
    submitted_at: float
    #: Since when it had its place; None: it had none.
    since: float | None = None
    #: None: it is not over.
    ended_at: float | None = None
    #: For how long it was stopped, and others had its GPUs.
    stopped: float
    #: Largest resident memory that was seen, bytes; 0: not known.
    memory_peak: int

    @property
    def had_place(self) -> bool:
        """True when something was ever kept for it."""
        return self.since is not None

    @property
    def is_session(self) -> bool:
        """True of a session."""
        return self.kind == JobKind.SESSION

    @property
    def slurm_state(self) -> str:
        """Its state in accounting, in Slurm's words: what is prepared there is running, and what was given up was lost."""
        if self.ended_at is not None:
            return self.state if self.state in _ENDED else JobState.NODE_FAIL.value
        if self.since is None:
            return JobState.PENDING.value
        return JobState.SUSPENDED.value if self.state == JobState.SUSPENDED else JobState.RUNNING.value

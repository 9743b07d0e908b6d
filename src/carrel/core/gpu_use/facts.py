"""What is known of one attempt, of one lease of a cell or call, and of one start. Times are Unix seconds.

They are tuples in the order of the store's columns: a year of a lab has a million of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from carrel.core.domain.job import JobState
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.qos import JobKind


class End(StrEnum):
    """What came of the GPU time that an attempt held."""

    #: The command ended well.
    COMPLETED = "completed"
    #: It reached its walltime, and another attempt went on from its checkpoint.
    CONTINUED = "continued"
    #: The command failed, or used too much memory.
    FAILED = "failed"
    #: It reached its walltime, and nothing went on.
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    #: Another job took its place, or its node or runner was lost. What it had written down itself is not lost.
    LOST = "lost"
    #: It is not over.
    RUNNING = "running"
    #: A session, which somebody ends when they like.
    SESSION = "session"


#: By the state of an attempt that is over.
_ENDS: Mapping[str, End] = {
    JobState.COMPLETED: End.COMPLETED,
    JobState.FAILED: End.FAILED,
    JobState.OUT_OF_MEMORY: End.FAILED,
    JobState.TIMEOUT: End.TIMEOUT,
    JobState.CANCELLED: End.CANCELLED,
    JobState.NODE_FAIL: End.LOST,
    JobState.PREEMPTED: End.LOST,
}


class AttemptFacts(NamedTuple):
    """One attempt with its job; or a job that has none yet, with number 0."""

    owner: str
    account: str
    qos: str
    kind: str
    #: On all nodes together.
    gpus: int
    submitted_at: float
    #: When the job ended; None: it has not.
    job_ended_at: float | None
    #: Number of the job's last attempt.
    last: int
    number: int
    #: True of one attempt of each job, or of the job that has none.
    first: bool
    node: str
    leased_at: float
    started_at: float | None
    ended_at: float | None
    #: As the store has it; "" for a job without an attempt.
    state: str
    #: What its cells and calls were charged: devices × seconds.
    lease_seconds: float
    #: For how long it was stopped, and since when it is.
    suspended_seconds: float
    suspended_at: float | None
    #: For how much of the time its GPUs were busy while its command ran and was not stopped, in percent; None: not measured. The
    #: same of their streaming multiprocessors.
    busy: float | None = None
    sm: float | None = None
    #: Joules that its GPUs took.
    energy: float | None = None
    #: Bytes of host memory that it asked for on all nodes, and the most that it used; the same of GPUs, where it had those.
    memory: int = 0
    memory_peak: int | None = None
    gpu_memory: int | None = None
    gpu_memory_peak: int | None = None
    #: Its walltime in seconds.
    time: float = 0.0
    #: As people ask for it ("h200"); "": none, or not known.
    gpu_type: str = ""
    #: Its experiment; without one, its name.
    project: str = ""

    @property
    def on_cluster(self) -> bool:
        """True where another queue chose its node: it had nothing before it started."""
        return bool(read_cluster(self.node)[0])

    @property
    def is_session(self) -> bool:
        """True of a session."""
        return self.kind == JobKind.SESSION

    def place(self, now: float) -> tuple[float, float, float]:
        """Since when it had its place, when its command began there, and until when; one that is not over has it until `now`."""
        until = now if self.ended_at is None else self.ended_at
        # Clocks of several machines may say that it began before it had a place, or ended before it began.
        began = until if self.started_at is None else min(self.started_at, until)
        since = min(began if self.on_cluster else self.leased_at, until)
        return since, max(began, since), until

    def stopped_for(self, now: float) -> float:
        """Seconds for which it was stopped, and others had its GPUs."""
        going_on = self.ended_at is None and self.suspended_at is not None
        return self.suspended_seconds + (max(0.0, now - (self.suspended_at or now)) if going_on else 0.0)

    @property
    def end(self) -> End:
        """What came of it."""
        if self.is_session:
            return End.SESSION
        if self.ended_at is None:
            return End.RUNNING
        # An attempt that is over in any other state was given up, and nobody knows how it ended.
        found = _ENDS.get(self.state, End.LOST)
        goes_on = self.number < self.last or self.job_ended_at is None
        return End.CONTINUED if found is End.TIMEOUT and goes_on else found


class LentFacts(NamedTuple):
    """GPUs of one type that cells or calls of one job had: one of them, or those that lie in one week of the range, together."""

    owner: str
    account: str
    qos: str
    kind: str
    cells: int
    #: When GPUs were asked for first, given last, and given back last.
    asked_at: float
    since: float
    until: float
    #: Seconds for which they waited, computed and were paused, and GPUs × seconds in which they computed.
    waited: float
    computed: float
    paused: float
    lent: float
    gpu_type: str = ""
    node: str = ""
    project: str = ""


class HeldFacts(NamedTuple):
    """Which GPUs an attempt, a cell or a call had."""

    owner: str
    account: str
    #: UUIDs.
    devices: Sequence[str]
    since: float
    #: None: it has them.
    until: float | None
    #: Seconds between those two in which it was stopped, and others had them; and since when it is.
    stopped: float
    stopped_since: float | None


class WaitFacts(NamedTuple):
    """What the owner of a waiting job was told."""

    qos: str
    job: int
    #: The code of the reason, as docs/states.md has them.
    reason: str
    since: float
    #: When the job got its next place, or ended; None: neither.
    until: float | None


class StartFacts(NamedTuple):
    """How the first attempt of a job began."""

    qos: str
    kind: str
    node: str
    submitted_at: float
    leased_at: float
    started_at: float | None
    #: When the lab saw the first of its output, and the first metric that it logged.
    output_at: float | None
    metric_at: float | None = None

"""What the loop is given where the lab is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from carrel.core.control.job_machines import JobMachines
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.ports import OutboxEntry
from carrel.core.control.rules import RuleBook
from carrel.core.control.start_ranges import StartRangeStore, Unwritten
from carrel.core.domain.job import Job, Reason
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.task import TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What the loop is given at its composition."""

    rules: RuleBook
    launch: LaunchSettings
    #: Key of the job tokens.
    secret: bytes
    #: Seconds for which standings are used again.
    rank_seconds: float = 5.0
    #: Says which nodes and GPUs are drained.
    drained: Callable[[tuple[Node, ...]], tuple[Node, ...]] = tuple
    #: Says which fault one of these GPUs has had since then; "": none.
    fault: Callable[[Sequence[str], float], str] = lambda _devices, _since: ""
    #: Says which nodes are kept for whom; the very same answer while nothing has changed.
    reserved: Callable[[], Sequence[Reservation]] = tuple
    #: Makes machines for jobs.
    machines: JobMachines = field(default_factory=JobMachines)
    #: What there is to tell the tracking server about a job that ended while it waited.
    withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = lambda _job, _task: ()
    #: Says why nothing of a user's may start, by their subjects; the very same answer while nothing has changed.
    held: Callable[[], Mapping[str, Reason]] = dict
    #: Says why nothing may start at the moment (a disk is full), or None.
    halted: Callable[[], Reason | None] = lambda: None
    #: Says whether the environment of a launch is there; where nobody does, environments are built in their jobs' places.
    built: Callable[[Launch], bool] = lambda _launch: True
    #: Remembers what people saw of start times.
    start_ranges: StartRangeStore = field(default_factory=Unwritten)
    #: False where nobody asks why a job waits: then no picture of the queue is kept for the answer.
    tells: bool = True

"""What the inner rooms need from the outer ones, as small protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState

#: Unix seconds. Only the composition root passes `time.time`.
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Names one attempt of a job."""

    job_id: int
    number: int
    #: Bytes of its journal that are recorded already.
    offset: int = 0


class Engine(Protocol):
    """Starts jobs on nodes and tells what becomes of them. `carrel.testing.engine_contract` is its public test suite.

    An engine never decides that a job ended: it passes on what the runner wrote, or the evidence that the runner is gone.
    """

    def nodes(self) -> tuple[Node, ...]:
        """The machines and their devices, as they are now."""

    def withheld(self) -> frozenset[str]:
        """UUIDs of devices that nobody may be given now (another lab holds them)."""

    def gpu_state(self) -> GpuState:
        """GPU state of sessions that lies on devices which no lease occupies; nothing where devices are not lent to cells."""

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with news, in order for each attempt, from a thread of the engine's, until `close`."""

    def start(self, launch: Launch, *, token: str) -> None:
        """Start a runner for the attempt and return at once. Calling it again for the same attempt starts nothing twice.

        Raises `Unavailable` when the node cannot take it now; then no runner exists and none will.
        """

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """After a restart: watch these attempts again. One that was recorded but never started is started now
        (hence the launch and the job's token); one whose runner is gone without an end is reported as gone."""

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end the job. Returns at once; the end comes as an observation. Unknown attempts are ignored."""

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Ask the runner to end or stop its job as `preemption` says, or, with None, to go on where it was stopped. Returns at
        once.

        That it is stopped, goes on, or has ended comes as an observation. Unknown attempts are ignored, and asking twice does
        no harm.
        """

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded: stop watching it, and remove what only a running job needs.

        Unless the job is `over`, what its attempts keep for each other stays.
        """

    def close(self) -> None:
        """Stop observing. Runners go on."""

"""Machines that run nothing: a job on them ends when its time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

from carrel.domain.job import JobState, Preemption, Reason
from carrel.domain.launch import Ended, Journaled, Launch, Observation, Started
from carrel.domain.node import Device, Node
from carrel.domain.ports import Attempt
from carrel.simulate.trace import Cluster

#: What a node has for each of its GPUs, so that a trace which does not speak of them is not bound by them.
CPUS_PER_GPU = 64
MEMORY_PER_GPU = 1024**4
GPU_MEMORY = 80 * 1024**3

_COMPLETED = Reason(code="Completed", message="It ran as long as the trace says.")
_TIMEOUT = Reason(code="TimeLimit", message="It reached its walltime.")


def nodes_of(cluster: Cluster, gpu_type: str = "simulated") -> tuple[Node, ...]:
    """Equal nodes, all idle."""
    return tuple(
        Node(
            name=f"node{number:05}",
            cpus=cluster.gpus_per_node * CPUS_PER_GPU,
            memory=cluster.gpus_per_node * MEMORY_PER_GPU,
            devices=tuple(
                Device(uuid=f"SIM-{number}-{index}", index=index, type=gpu_type, name=gpu_type, memory=GPU_MEMORY, simulated=True)
                for index in range(cluster.gpus_per_node)
            ),
        )
        for number in range(cluster.nodes)
    )


class VirtualMachines:
    """An engine (`carrel.domain.ports.Engine`) whose time stands in `now`."""

    def __init__(self, nodes: tuple[Node, ...], durations: Mapping[int, float]) -> None:
        """`durations` are the seconds that each job runs unless its walltime ends it."""
        self.now = 0.0
        self._nodes = nodes
        self._durations = durations
        #: End, job, attempt, start, how it ends.
        self._ends: list[tuple[float, int, int, float, bool]] = []

    @property
    def next_end(self) -> float | None:
        """When the next job ends, or None when nothing runs."""
        return self._ends[0][0] if self._ends else None

    def ended(self) -> list[Observation]:
        """News of all attempts that have ended by `now`: that they started, and how they ended."""
        news = []
        while self._ends and self._ends[0][0] <= self.now:
            end, job_id, attempt, start, complete = heappop(self._ends)
            over = Ended(
                state=JobState.COMPLETED if complete else JobState.TIMEOUT,
                reason=_COMPLETED if complete else _TIMEOUT,
                exit_code=0 if complete else None,
            )
            entries = (Journaled(at=start, record=Started(pid=0)), Journaled(at=end, record=over))
            news.append(Observation(job_id=job_id, attempt=attempt, entries=entries, offset=len(entries)))
        return news

    # ---- what an engine does

    def nodes(self) -> tuple[Node, ...]:
        """The machines."""
        return self._nodes

    def withheld(self) -> frozenset[str]:
        """Nobody else is here."""
        return frozenset()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """News is asked for, by `ended`."""

    def start(self, launch: Launch, *, token: str) -> None:  # noqa: ARG002 - nobody is there who would need the token
        """The attempt runs from now on."""
        seconds, limit = self._durations[launch.job_id], launch.resources.time
        end = self.now + min(seconds, limit)
        heappush(self._ends, (end, launch.job_id, launch.attempt, self.now, seconds <= limit))

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """There was no server before."""

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Nobody cancels anything in a trace."""

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """To come."""

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """Nothing of it is kept."""

    def close(self) -> None:
        """Nothing is open."""

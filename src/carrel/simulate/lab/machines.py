"""Machines that run nothing: a job on them ends when its time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from carrel.core.domain.job import JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, Launch, Observation, Resumed, Started, Suspended
from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt
from carrel.core.domain.qos import PreemptMode
from carrel.simulate.trace import Cluster

#: What a node has for each of its GPUs, so that a trace which does not speak of them is not bound by them.
CPUS_PER_GPU = 64
MEMORY_PER_GPU = 1024**4
GPU_MEMORY = 80 * 1024**3

_COMPLETED = Reason(code="Completed", message="It ran as long as the trace says.")
_PREEMPTED = Reason(code="Preempted", message="Another took its place.")
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


@dataclass(slots=True)
class Piece:
    """An attempt, and how far it is."""

    #: When it was started, and since when it has run without a pause, or has paused.
    start: float
    since: float
    #: Seconds that it has still to run, as of `since`.
    left: float
    #: False when its walltime ends it.
    complete: bool
    paused: bool = False
    #: Records that were reported of it.
    told: int = 0
    #: Its place among the ends; another one there is of the past.
    turn: int = 0


@dataclass(slots=True)
class JobHistory:
    """What became of a job, all attempts together."""

    #: When it was first started.
    start: float
    #: Seconds that it had its GPUs.
    ran: float = 0.0
    #: How often it gave way.
    preemptions: int = 0


class VirtualMachines:
    """An engine (`carrel.core.domain.ports.Engine`) whose time stands in `now`.

    A job that is preempted ends or stops at once. One that is requeued begins anew: that it writes checkpoints is not assumed.
    One that was stopped has its GPUs for a while before it goes on.
    """

    def __init__(self, nodes: tuple[Node, ...], durations: Mapping[int, float], *, move: float = 0.0) -> None:
        """`durations` are the seconds that each job runs unless its walltime ends it, `move` what it takes to go on."""
        self._move = move
        self.now = 0.0
        #: By job.
        self.stories: dict[int, JobHistory] = {}
        self._nodes = nodes
        self._durations = durations
        self._pieces: dict[tuple[int, int], Piece] = {}
        #: End, job, attempt, turn.
        self._ends: list[tuple[float, int, int, int]] = []
        self._said: list[Observation] = []
        #: Who goes on, when: moment, job, attempt.
        self._moving: list[tuple[float, int, int]] = []

    @property
    def next_end(self) -> float | None:
        """When there is news, or None when nothing runs."""
        if self._said:
            return self.now
        while self._ends and not self._is_due(self._ends[0]):
            heappop(self._ends)
        return min((entries[0][0] for entries in (self._ends, self._moving) if entries), default=None)

    def ended(self) -> list[Observation]:
        """News of all attempts that have ended by `now`, or gave way: that they started, and what happened."""
        while self._moving and self._moving[0][0] <= self.now:
            at, job_id, attempt = heappop(self._moving)
            piece = self._pieces[job_id, attempt]
            self._said.append(self._say(job_id, attempt, at, Resumed(seconds=at - piece.since)))
            self.stories[job_id].ran += self._move
            piece.paused = False
            self._run_on(job_id, attempt)
        news, self._said = self._said, []
        while self._ends and self._ends[0][0] <= self.now:
            end, job_id, attempt, turn = heappop(self._ends)
            if self._is_due((end, job_id, attempt, turn)):
                complete = self._pieces[job_id, attempt].complete
                over = Ended(
                    state=JobState.COMPLETED if complete else JobState.TIMEOUT,
                    reason=_COMPLETED if complete else _TIMEOUT,
                    exit_code=0 if complete else None,
                )
                news.append(self._say(job_id, attempt, end, over))
        return news

    def _is_due(self, entry: tuple[float, int, int, int]) -> bool:
        piece = self._pieces.get(entry[1:3])
        return piece is not None and piece.turn == entry[3] and not piece.paused

    def _say(self, job_id: int, attempt: int, at: float, record: Ended | Suspended | Resumed) -> Observation:
        """What is reported of an attempt to which this happens, and what that means for it."""
        piece, story = self._pieces[job_id, attempt], self.stories[job_id]
        entries = [] if piece.told else [Journaled(at=piece.start, record=Started(pid=0))]
        entries.append(Journaled(at=at, record=record))
        piece.told += len(entries)
        if not piece.paused:
            story.ran += at - piece.since
            piece.left -= at - piece.since
        piece.since = at
        if isinstance(record, Ended):
            del self._pieces[job_id, attempt]
        return Observation(job_id=job_id, attempt=attempt, entries=tuple(entries), offset=piece.told)

    def _run_on(self, job_id: int, attempt: int) -> None:
        piece = self._pieces[job_id, attempt]
        piece.turn += 1
        heappush(self._ends, (self.now + piece.left, job_id, attempt, piece.turn))

    # ---- what an engine does

    def nodes(self) -> tuple[Node, ...]:
        """The machines."""
        return self._nodes

    def withheld(self) -> frozenset[str]:
        """Nobody else is here."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """No sessions are here."""
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """News is asked for, by `ended`."""

    def start(self, launch: Launch, *, token: str) -> None:  # noqa: ARG002 - nobody is there who would need the token
        """The attempt runs from now on."""
        seconds, limit = self._durations[launch.job_id], launch.resources.time
        self._pieces[launch.job_id, launch.attempt] = Piece(self.now, self.now, min(seconds, limit), seconds <= limit)
        self.stories.setdefault(launch.job_id, JobHistory(self.now))
        self._run_on(launch.job_id, launch.attempt)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """There was no server before."""

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Nobody cancels anything in a trace."""

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Done at once; the news of it is there at the same moment."""
        key = (job_id, attempt)
        piece = self._pieces.get(key)
        if piece is None:
            return
        if preemption is None:
            if piece.paused:
                heappush(self._moving, (self.now + self._move, *key))
            return
        self.stories[job_id].preemptions += 1
        if preemption.mode is PreemptMode.SUSPEND:
            self._said.append(self._say(*key, self.now, Suspended()))
            piece.paused = True
        else:
            self._said.append(self._say(*key, self.now, Ended(state=JobState.PREEMPTED, reason=_PREEMPTED)))

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """Nothing of it is kept."""

    def close(self) -> None:
        """Nothing is open."""

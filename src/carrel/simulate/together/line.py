"""Tasks that wait behind the notebooks, and which of them starts where: by the lab's own placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice

from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import Holding, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.order import Order
from carrel.core.policy.placer import Placer
from carrel.simulate.lab.machines import CPUS_PER_GPU, MEMORY_PER_GPU
from carrel.simulate.lab.walltime import usual_walltime
from carrel.simulate.together.mode import MEMORY
from carrel.simulate.trace import TraceJob

#: So many tasks of the queue are looked at: backfill finds what fits among them.
AHEAD = 60
#: Users that tasks are spread over where the trace names one.
USERS = 20
#: What a session asks for; nobody knows when it will be shut down.
SESSION_TIME = 365 * 24 * 3600
_TASKS, _SESSIONS = "normal", "interactive"
#: Sessions go before every task, however long that has waited.
_QOS = {_TASKS: QoS(name=_TASKS), _SESSIONS: QoS(name=_SESSIONS, priority=1_000_000)}
_NODE = "node"


def endless(tasks: Sequence[TraceJob]) -> Iterator[TraceJob]:
    """Yield the tasks again and again, each time with new numbers: the queue never runs dry."""
    users = len({task.user for task in tasks})
    for number, task in zip(count(), _cycled(tasks), strict=False):
        user = task.user if users > 1 else f"user-{number % USERS}"
        yield replace(task, id=number, user=user)


def _cycled(tasks: Sequence[TraceJob]) -> Iterator[TraceJob]:
    while tasks:
        yield from tasks


class Line:
    """Who waits for GPUs of their own, and who has them. All GPUs are in one node, as for the cells."""

    def __init__(self, tasks: Iterable[TraceJob], devices: Sequence[str]) -> None:
        self._tasks = iter(tasks)
        self._waiting: dict[int, Waiting] = {}
        self._holding: dict[int, Holding] = {}
        self.traced: dict[int, TraceJob] = {}
        self._node = Node(
            name=_NODE,
            cpus=len(devices) * CPUS_PER_GPU,
            memory=len(devices) * MEMORY_PER_GPU,
            devices=tuple(
                Device(uuid=uuid, index=index, type="simulated", name="simulated", memory=MEMORY, simulated=True)
                for index, uuid in enumerate(devices)
            ),
        )
        self._uuids = frozenset(devices)
        self._held: set[str] = set()
        self._placer = Placer()
        self._placer.rules(_QOS, Order(_QOS, {}, age_weight=600.0, share_weight=0.0, size_weight=0.0))
        self._asked: object = None
        self._changes = 0

    @property
    def has_free(self) -> bool:
        """True when some device is held by no job."""
        return len(self._held) < len(self._uuids)

    def may_start(self, withheld: set[str]) -> bool:
        """True when devices are free that were not when `starts` was asked last, or the queue is another."""
        free = self._uuids - withheld - self._held
        return bool(free) and (self._changes, free) != self._asked

    def add_session(self, number: int, gpus: int, now: float) -> None:
        """A session asks for GPUs of its own; its job's number is -1 - `number`."""
        self._add(-1 - number, f"session-{number}", _SESSIONS, gpus, SESSION_TIME, now)

    def _add(self, job: int, owner: str, qos: str, gpus: int, time: int, now: float) -> None:
        wanted = Resources(nodes=1, gpus=gpus, cpus=0, memory=1024**2, time=time)
        self._waiting[job] = Waiting(id=job, owner=owner, qos=qos, resources=wanted, submitted_at=now)
        self._placer.wait(self._waiting[job])
        self._changes += 1

    def end(self, job: int) -> None:
        """The job gives its GPUs back."""
        self._held.difference_update(self._holding.pop(job).devices)
        self._placer.forget(job)
        self._changes += 1

    def starts(
        self, now: float, withheld: frozenset[str], moves: Mapping[str, int], paused: Mapping[int, float]
    ) -> Sequence[Start]:
        """Who starts now, and where.

        `withheld`: devices that are kept for cells; `moves`: bytes of idle state on devices; `paused`: seconds for which each
        task was paused, in which its walltime stood still.
        """
        short = AHEAD - len(self._waiting)
        for task in islice(self._tasks, max(0, short)):
            self.traced[task.id] = task
            self._add(task.id, task.user, _TASKS, task.gpus, usual_walltime(task.duration), 0.0)
        free = self._uuids - withheld - self._held
        if not free:
            return ()
        for job, held in self._holding.items():
            if paused.get(job):
                self._placer.hold(replace(held, ends_by=held.ends_by + paused[job]))
        self._placer.nodes((self._node,), withheld - self._held, moves)
        found = self._placer.place(now)
        for start in found:
            waiting = self._waiting.pop(start.job_id)
            self._holding[waiting.id] = Holding(
                id=waiting.id,
                owner=waiting.owner,
                qos=waiting.qos,
                resources=waiting.resources,
                node=_NODE,
                devices=start.devices,
                ends_by=now + waiting.resources.time,
                started_at=now,
            )
            self._held.update(start.devices)
            self._changes += 1
        self._asked = (self._changes, free - {uuid for start in found for uuid in start.devices})
        return found

"""One walk through the queue: which waiting job starts now, who is promised what, and why each of the others waits.

The rules, with an example, are in `docs/scheduling.md`. First in line first. A job that a limit keeps out is passed over; a job
that fits starts; the first of each partition that waits for room gets a promise (or the first few), and from then on a job starts
only where promises are kept. A promise is made for the first moment at which both room and limits are free if holders use their
walltimes; until then both are for jobs that are over by then. In a partition of a Slurm cluster the limits alone hold a job back:
what passes them is handed over, and where and when it runs is Slurm's decision.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

from carrel.core.domain.node import NodePart
from carrel.core.domain.placement import Holding, Kind, Start, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.backfill import Slot, rooms_for, slot, start_in
from carrel.core.policy.fit import Fit
from carrel.core.policy.limits import Limit, Limits
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.promises import Promise, Promises

BEGIN_TIME = "BeginTime"
INVALID_QOS = "InvalidQOS"
PARTITION_DOWN = "PartitionDown"
#: Nothing but room was missing; what exactly is told when somebody asks.
BLOCKED = ""


class Alike:
    """The jobs of one kind that wait, with what limits them and where they may run."""

    __slots__ = ("allowed_nodes", "gpus", "jobs", "kind", "limits", "offset", "refusal", "turn")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.gpus = kind.resources.total_gpus
        #: How many there are.
        self.jobs = 0
        #: None when there is no such QoS.
        self.limits: Limits | None = None
        #: None when there is no such partition.
        self.allowed_nodes: AllowedNodes | None = None
        #: Seconds by which they stand behind their submission (`Order.offset`).
        self.offset = 0.0
        #: The walk in which one of them was refused last, and why.
        self.turn = 0
        self.refusal: tuple[str, int | None] = (BLOCKED, None)


#: Place in line and id of a job, the job, and those like it. The smallest is first in line.
Entry = tuple[float, int, Waiting, Alike]


class Passed(NamedTuple):
    """A job that does not start, and why."""

    job: Waiting
    code: str
    #: The job for which what it needs within the limit is kept, where the limit is not used up without that.
    ahead: int | None = None


class Lab(Protocol):
    """What a walk needs of the lab; it takes from the rooms what it gives away."""

    fit: Fit
    #: How many jobs of each partition get a promise.
    most: int

    @property
    def line(self) -> Sequence[Entry]:
        """Those who wait, first in line first."""

    @property
    def kept(self) -> Collection[int]:
        """The jobs that were promised something in the walk before."""


class Walk:
    """One walk, and what came of it."""

    def __init__(self, lab: Lab, now: float, turn: int, *, explains: bool = False) -> None:
        """`turn` tells this walk from others. With `explains`, `passed` is filled."""
        self._lab, self._now, self._turn, self._explains = lab, now, turn, explains
        self.starts: list[Start] = []
        #: What those that start hold from now on.
        self.started: list[Holding] = []
        self.promises = Promises(lab.most)
        #: Those that do not start, in the order of the line.
        self.passed: list[Passed] = []
        #: Those that only wait for the machine that is made for them.
        self.without_machine: list[Waiting] = []
        #: The limits that have refused a job.
        self.refusing: set[Limit] = set()
        #: The partitions that have all their promises.
        self._full: set[str] = set()
        self._claimed: list[Limits] = []
        self._free, self._looked_at = self._most_free(), 0

    def run(self) -> None:
        """Go through the line."""
        turn, kept, explains, now = self._turn, self._lab.kept, self._explains, self._now
        for _, job_id, job, alike in self._lab.line:
            if alike.turn == turn and job_id not in kept and not explains:
                continue
            if alike.limits is None:
                self._pass(job, INVALID_QOS)
            elif alike.allowed_nodes is None:
                self._pass(job, PARTITION_DOWN)
            elif job.not_before > now:
                self._pass(job, BEGIN_TIME)
            elif alike.turn == turn and job_id not in kept:
                self._pass(job, *alike.refusal)
            else:
                self._consider(job, alike, alike.limits, alike.allowed_nodes)
        for limits in self._claimed:
            limits.unclaim()

    def _pass(self, job: Waiting, code: str, ahead: int | None = None) -> None:
        if self._explains:
            self.passed.append(Passed(job, code, ahead))

    def _consider(self, job: Waiting, alike: Alike, limits: Limits, allowed_nodes: AllowedNodes) -> None:
        """Start the job, promise it something, or pass it over."""
        wanted, (gpus, cpus, memory) = job.resources, self._free
        refusal = limits.refuses(alike.gpus, self._now + alike.kind.seconds)
        if refusal is None:
            if allowed_nodes.cluster:
                self._start(job, limits, [NodePart(node=allowed_nodes.cluster)])
                return
            if wanted.gpus <= gpus and wanted.cpus <= cpus and wanted.memory <= memory:
                rooms = self._rooms_for(job, allowed_nodes)
                if len(rooms) == wanted.nodes:
                    self._start(job, limits, start_in(rooms, job, self._now + job.seconds, self._lab.fit, self.promises))
                    return
            if job.node == "":
                self.without_machine.append(job)
                limits.claim(job, self._now)  # a machine is not made for one that a limit would keep off it
                self._claimed.append(limits)
                self._pass(job, BLOCKED)
                return
        # A promise that was made stays, though others use the limit until it is time.
        is_next = refusal is None or job.id in self._lab.kept
        if is_next and job.partition not in self._full and self._promise(job, alike, limits, allowed_nodes):
            self._pass(job, BLOCKED)
            return
        alike.turn, alike.refusal = self._turn, (BLOCKED, None)
        if refusal is not None:
            limit, (code, claim) = refusal
            alike.refusal = code, None if claim is None else claim.job.id
            self.refusing.add(limit)
            if limit.first is None:
                self._wait_for(job, alike, limits, allowed_nodes)
        self._pass(job, *alike.refusal)

    # ---- starts

    def _most_free(self) -> tuple[int, int, int]:
        """Return the most GPUs, cpus and memory that are free on one node: who asks for more cannot start."""
        rooms = self._lab.fit.rooms
        return (
            max((room.free_gpus for room in rooms), default=0),
            max((room.cpus for room in rooms), default=0),
            max((room.memory for room in rooms), default=0),
        )

    def _rooms_for(self, job: Waiting, allowed_nodes: AllowedNodes) -> Sequence[NodeCapacity]:
        wanted = job.resources
        rooms = rooms_for(wanted, self._now, (job.seconds, job.longest), self._lab.fit, allowed_nodes, self.promises)
        if len(rooms) < wanted.nodes and len(self.starts) > self._looked_at:
            # Less is free than before; to look after each start would take longer than it saves.
            self._free, self._looked_at = self._most_free(), len(self.starts) * 5 // 4
        return rooms

    def _start(self, job: Waiting, limits: Limits, shares: Sequence[NodePart]) -> None:
        first, *others = shares
        held = Holding(
            id=job.id,
            owner=job.owner,
            name=job.name,
            qos=job.qos,
            resources=job.resources,
            node=first.node,
            devices=first.devices,
            others=tuple(others),
            ends_by=self._now + job.longest,
            due=self._now + job.seconds,
            account=job.account,
            partition=job.partition,
            array=job.array,
        )
        limits.charge(job.id, job.resources.total_gpus, held.over_by)
        self.started.append(held)
        self.starts.append(Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others)))

    # ---- what is kept for those who wait

    def _promise(self, job: Waiting, alike: Alike, limits: Limits, allowed_nodes: AllowedNodes) -> bool:
        """Promise the job the first moment at which room and limits are free; return whether there is one."""
        found = self._slot(job, alike, limits, allowed_nodes)
        if found is None:
            return False
        self.promises.make(Promise(job, *found, job.seconds))
        limits.claim(job, found[0])
        self._claimed.append(limits)
        if not self.promises.wants(job.partition):
            self._full.add(job.partition)
        return True

    def _slot(self, job: Waiting, alike: Alike, limits: Limits, allowed_nodes: AllowedNodes) -> Slot | None:
        if allowed_nodes.cluster:
            return None
        after = limits.opens(alike.gpus, job.seconds, self._now)
        while after < inf:
            found = slot(job.resources, (job.seconds, job.longest), allowed_nodes, self.promises, self._now, after)
            if found is None:
                return None
            after = limits.opens(alike.gpus, job.seconds, found[0])
            if after == found[0]:
                return found
        return None

    def _wait_for(self, job: Waiting, alike: Alike, limits: Limits, allowed_nodes: AllowedNodes) -> None:
        """Keep what the job needs within its limits from when they are free on: it is the first that waits for one of them.

        Otherwise a stream of small jobs would keep a large one waiting for ever. A job that no node could hold keeps nothing, and
        none keeps anything within a limit that is free before one of those inside it.
        """
        if not allowed_nodes.cluster and not enough(job.resources, allowed_nodes.rooms):
            return
        opens = limits.opens(alike.gpus, job.seconds, self._now)
        if opens < inf:
            parts = limits.up_to_last(alike.gpus, job.seconds, self._now)
            limits.claim(job, opens, parts)
            for limit in parts:
                limit.first = limit.first or job
            self._claimed.append(limits)


def enough(wanted: Resources, rooms: Sequence[NodeCapacity]) -> bool:
    """True when as many rooms as `wanted` has nodes could hold it if nothing else ran."""
    fitting = (room for room in rooms if room.could_hold(wanted))
    return next(islice(fitting, wanted.nodes - 1, None), None) is not None

"""Workers of pools are jobs like others, submitted for the pool's owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from carrel.core.control.lab import Lab
from carrel.core.control.sessions import Sessions
from carrel.core.domain.call import WorkerPool
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.resources import Resources
from carrel.core.domain.user import Caller
from carrel.core.policy.pool_gpus import most_that_compute, shared_nodes, without_gpus
from carrel.lab.gateway.submission import Submissions
from carrel.wire.v1 import TaskRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkers:
    """Implements `carrel.core.control.pool_ports.Workers`."""

    lab: Lab
    submissions: Submissions
    #: They know which brokers lend GPUs. None in a lab without sessions: there GPUs are not lent.
    sessions: Sessions | None = None

    def settle(self, caller: Caller, pool: WorkerPool) -> WorkerPool:
        """The pool as it can be here: with GPUs that are reserved where none are lent, and no more workers than can compute.

        Raises what keeps such a worker from being submitted by the caller.
        """
        request = TaskRequest.model_validate(pool.task)
        task, asked, chosen = self.submissions.check(caller, request)
        most = 0 if pool.reserve else most_that_compute(task, asked, self._lending(caller, asked, chosen))
        if not most:
            return replace(pool, reserve=True)
        self.submissions.check(caller, request.model_copy(update={"partition": chosen or None}), without_gpus)
        return replace(
            pool,
            min_workers=min(pool.min_workers, most),
            max_workers=min(pool.max_workers, most),
            # Without GPUs in what it asks for, it could come to where none are.
            task={**pool.task, "partition": chosen} if chosen else pool.task,
        )

    def start(self, pool: WorkerPool, key: str) -> int:
        """Submit a worker of the pool for its owner; the same key is the same job. Returns its number."""
        caller = self.lab.for_owner(pool.owner, pool.created_at)
        request = TaskRequest.model_validate(pool.task)
        submitted, _ = self.submissions.submit(caller, request, key, pool=pool.id, borrows=not pool.reserve, parent=pool.parent)
        return submitted.job.id

    def _lending(self, caller: Caller, asked: Resources, chosen: str) -> Sequence[Node]:
        """Nodes of the partition whose brokers lend GPUs to calls."""
        if self.sessions is None:
            return ()
        partition: Partition | None = self.lab.policy.partitions.get(chosen)
        if partition is not None and partition.cluster:
            current = {one.node.partition(".")[0] for one in self.sessions.nodes(caller) if one.current}
            return shared_nodes(asked, self.lab.policy.cluster(partition), current)
        own = [node for node in self.lab.engine.nodes() if partition is None or partition.has(node.name)]
        return own if self.sessions.lends else ()

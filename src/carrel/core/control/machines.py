"""The lab's machines, and who holds what on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from carrel.core.control.drains import Drains
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.loop import ControlLoop
from carrel.core.control.ports import JobFilter, JobStore
from carrel.core.control.views import DeviceStatus, NodeStatus
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.node import Node
from carrel.core.domain.ports import Engine
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed, of_job

#: Jobs in line that are looked at for a page.
_IN_LINE = 500


class Machines:
    """What callers may see of the machines."""

    def __init__(
        self,
        jobs: JobStore,
        engine: Engine,
        loop: ControlLoop,
        drains: Drains,
        policy: LabPolicy,
        unknown: Callable[[], Collection[str]],
    ) -> None:
        """`unknown`: devices of which the driver does not say whether they are well."""
        self._jobs, self._engine, self._loop, self._drains, self._policy = jobs, engine, loop, drains, policy
        self._unknown = unknown

    def devices(self, caller: Caller) -> Sequence[NodeStatus]:
        """The machines, and who holds what on them; the jobs of others are shown without name and owner."""
        # The end of a job is in the store, and pages hear of it, a moment before the loop's own picture has it.
        holding = [held for held in self._loop.holding() if not self._has_ended(held.id)]
        withheld, kept, unknown = self._engine.withheld(), self.kept_devices(), self._unknown()
        holders = {uuid: held.id for held in holding for uuid in held.devices}
        statuses = []
        for node in self._drains.apply(self._engine.nodes()):
            here = [held for held in holding if held.node == node.name]
            devices = tuple(
                DeviceStatus(
                    device=device,
                    holder=self._holder(caller, holders.get(device.uuid)),
                    withheld=device.uuid in withheld and device.uuid not in holders,
                    kept_for=kept.get(device.uuid),
                    unknown=device.uuid in unknown,
                )
                for device in node.devices
            )
            statuses.append(
                NodeStatus(
                    node=node,
                    cpus_free=node.cpus - sum(held.resources.cpus for held in here),
                    memory_free=node.memory - sum(held.resources.memory for held in here),
                    devices=devices,
                )
            )
        return statuses

    def kept_devices(self) -> Mapping[str, int]:
        """The waiting job for which a free device is kept, by the device: another job has it only if it ends in time."""
        return self._loop.kept_devices()

    def cluster_nodes(self) -> Sequence[tuple[Node, Sequence[str]]]:
        """The machines of clusters as their engines know them, and the parts of the lab whose jobs may run there."""
        found: dict[str, tuple[Node, list[str]]] = {}
        for partition in self._policy.partitions.values():
            for node in self._policy.cluster(partition) if partition.cluster else ():
                found.setdefault(node.name, (node, []))[1].append(partition.name)
        return list(found.values())

    def jobs_in_line(self, caller: Caller) -> tuple[Sequence[Job], int]:
        """Jobs that wait for GPUs, first those of the caller's that came first; and how many there are of others."""
        which = JobFilter(states=frozenset({JobState.PENDING}))
        waiting = [job for job in self._jobs.list(which, before=None, limit=_IN_LINE) if job.resources.gpus]
        seen = [job for job in reversed(waiting) if allowed(caller, Action.SEE_JOB, of_job(job))]
        return seen, len(waiting) - len(seen)

    def _has_ended(self, job_id: int) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.state.ended

    def _holder(self, caller: Caller, job_id: int | None) -> Job | None:
        job = self._jobs.get(job_id) if job_id is not None else None
        if job is None or job.state is JobState.PENDING:
            return None
        return job if allowed(caller, Action.SEE_JOB, of_job(job)) else replace(job, name="", owner="")

"""Jobs of before, again: as they were, or with something changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carrel.core.control.lab_files import LabFiles, blob_file, lock_text
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.ports import JobStore, Submitted
from carrel.core.control.produced import FindJob
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job
from carrel.core.domain.node import Node
from carrel.core.domain.parts import read_compose, write_compose
from carrel.core.domain.ports import Clock
from carrel.core.domain.qos import QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, TaskSpec
from carrel.core.domain.user import Caller
from carrel.core.domain.visible import Visible
from carrel.core.policy.access import Action

#: Environments that come out otherwise when they are resolved again.
_RESOLVED = (EnvironmentKind.REQUIREMENTS, EnvironmentKind.CONDA, EnvironmentKind.IMAGE)
#: How often a run that says nothing is submitted again.
_AGAIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeating:
    """Submits what was submitted before, under the name of who asks."""

    jobs: JobStore
    people: UserStore
    policy: LabPolicy
    files: LabFiles
    clock: Clock
    #: As `carrel.core.control.lab.Lab` has them.
    submit: Callable[..., Submitted]
    job: FindJob
    task: Callable[[Caller, int], TaskSpec]
    has_snapshot: Callable[[Caller, str], bool]
    nodes: Callable[[], Sequence[Node]]

    def rerun(self, caller: Caller, job_id: int, *, fresh: bool = False, key: str | None = None) -> Job:
        """The same task again: same code, same environment lock, same parameters; under the caller's name. Of no sweep.

        `fresh`: with its environment resolved anew, which repeats nothing; raises `Invalid` where there is nothing to resolve.
        The same `key` of the same caller gives the same job again.
        """
        job, task = self.job(caller, job_id, Action.REPEAT_JOB), self.task(caller, job_id)
        if task.session is not None:
            raise Invalid(f"Job {job_id} is a session.", remedy="Start another: `carrel notebook` finds the same files.")
        if task.pool is not None:
            raise Invalid(f"Job {job_id} is a worker of pool {task.pool}.", remedy="Submit the calls again that it carried out.")
        if not self.has_snapshot(caller, task.snapshot):  # an administrator repeats somebody else's job
            self.people.add_snapshot(caller.user.subject, task.snapshot, now=self.clock())
        if fresh:
            again = replace(task, rerun_of=None, environment=_anew(job, task.environment, key or ""), notes=(_fresh_note(job),))
        else:
            environment = replace(task.environment, lock=self._lock_of(job) or task.environment.lock)
            again = replace(task, rerun_of=job.id, environment=environment)
        return self._again(
            caller,
            job,
            replace(again, tracking=None, sweep=None, trial=None),
            resources=self._resources_again(job),
            retries=job.retries_left + max(0, job.attempt - 1),
            key=key,
        )

    def vary(self, caller: Caller, job_id: int, spec: TaskSpec, resources: Resources, *, key: str) -> Job:
        """A task made of that job's, where that job was submitted; the same key of the same caller gives the same job again."""
        return self._again(caller, self.job(caller, job_id, Action.REPEAT_JOB), spec, resources=resources, retries=0, key=key)

    def varied(self, caller: Caller, what: str, says_nothing: Callable[[Job], bool]) -> tuple[str, Job | None]:
        """The key under which the caller submits `what`, and the job that has it, if it is there.

        A job that `says_nothing`, since it was cancelled or its node lost it, is passed over: the next one has another key.
        """
        for again in range(_AGAIN):
            key = f"varied:{hashlib.sha256(f'{what}:{again}'.encode()).hexdigest()}"
            job = self.jobs.submitted_as(caller.user.subject, key)
            if job is None or not says_nothing(job):
                break
        return key, job

    def _again(self, caller: Caller, job: Job, spec: TaskSpec, **options: Any) -> Job:
        qos = self.policy.choose(job.qos if job.qos in self.policy.qos else None, job.kind)
        return self.submit(
            caller,
            spec,
            name=job.name,
            qos=qos,
            partition=self._partition_again(job, qos),
            account=job.account if self.policy.admits(job.account, caller.user) and caller.account is None else None,
            preemptible=job.preemptible,
            visible=job.visible if job.owner == caller.user.subject else Visible.OWNER,
            array=job.element.array if job.element is not None else "",
            only=job.element.index if job.element is not None else None,
            **options,
        ).job

    def _partition_again(self, job: Job, qos: QoS) -> str | None:
        """The job's partition, while it is there and takes such work."""
        part = self.policy.partitions.get(job.partition)
        return part.name if part is not None and part.takes(qos.name) else None

    def _resources_again(self, job: Job) -> Resources:
        """What it asked for; where it ran on a machine from parts that is there no more, another one like that."""
        row = self.jobs.attempt(job.id, job.attempt)
        like = "" if row is None else row.hardware.get("compose", "")
        if row is None or job.resources.compose or not like or any(node.name == row.node for node in self.nodes()):
            return job.resources
        return replace(job.resources, compose=write_compose(read_compose(like)))

    def _lock_of(self, job: Job) -> str | None:
        """The lock that the job's last attempt ran with, or None when it never had an environment."""
        row = self.jobs.attempt(job.id, job.attempt)
        if row is None or not row.environment_lock:
            return None
        return lock_text(blob_file(self.files.blobs, row.environment_lock))


def _anew(job: Job, recipe: EnvironmentRecipe, what_for: str) -> EnvironmentRecipe:
    """The recipe, to be resolved as of now."""
    if recipe.kind not in _RESOLVED:
        has = "the packages of its uv.lock" if recipe.kind is EnvironmentKind.UV_LOCK else "no packages of its own"
        raise Invalid(f"Job {job.id} has {has}: there is nothing to resolve anew.", remedy="Run it again as it was.")
    return replace(recipe, lock=None, as_of=None, anew=what_for)


def _fresh_note(job: Job) -> str:
    return f"Job {job.id} again, with its environment resolved anew."

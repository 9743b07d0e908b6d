"""The lab as its callers see it: every call is made by somebody, and what is not theirs does not exist for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, TypeVar

from carrel.core.control.administration import Administration
from carrel.core.control.cells import Cells
from carrel.core.control.collecting import Collecting
from carrel.core.control.dependents import settle_dependency
from carrel.core.control.drains import Drains
from carrel.core.control.event_ports import Event, EventStore
from carrel.core.control.gpu_use import GpuUse
from carrel.core.control.held_users import held_by
from carrel.core.control.job_machines import JobMachines
from carrel.core.control.keeper import Keeper
from carrel.core.control.lab_files import LabFiles
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.launching import read_job_token
from carrel.core.control.loop import ControlLoop
from carrel.core.control.machines import Machines
from carrel.core.control.pipelines import StepStatus, pipeline_of, starts_after
from carrel.core.control.ports import AttemptRow, JobFilter, JobStore, NewJob, OutboxEntry, Submitted, untold
from carrel.core.control.produced import Produced
from carrel.core.control.repeating import Repeating
from carrel.core.control.retention import Retention
from carrel.core.control.secrets import Secrets
from carrel.core.control.session_limit import check_jobs_of_jobs
from carrel.core.control.storage import StorageWatch
from carrel.core.control.tokens import Tokens, check_state, day
from carrel.core.control.usage import share_report, standing_of
from carrel.core.control.user_port import UserStore
from carrel.core.control.users import Users
from carrel.core.control.verifications import Verifications
from carrel.core.control.views import ShareReport
from carrel.core.control.weekly import Weekly
from carrel.core.domain.account import Standing
from carrel.core.domain.array import read_array
from carrel.core.domain.cache_key import HALF
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Impossible, NotFound, Unauthenticated
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.noun import Noun
from carrel.core.domain.nouns import SECRETS
from carrel.core.domain.parts import MACHINE, without_parts
from carrel.core.domain.placement import FreeGpus, Wait, Waiting
from carrel.core.domain.ports import Clock, Engine
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.sweep import Sweep
from carrel.core.domain.task import TaskSpec, VariantOf
from carrel.core.domain.user import Caller, User
from carrel.core.domain.visible import Visible
from carrel.core.policy.access import Action, Resource, allowed, of_job

T = TypeVar("T")
#: Stands for the number of a job that there is not: it comes after all that are in line.
_NOT_SUBMITTED = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything that a caller can do. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    jobs_store: JobStore
    event_store: EventStore
    people: UserStore
    tokens: Tokens
    users: Users
    administration: Administration
    keepers: Sequence[Keeper[Any]]
    engine: Engine
    loop: ControlLoop
    policy: LabPolicy
    files: LabFiles
    retention: Retention
    collecting: Collecting
    cells: Cells
    gpu_use: GpuUse
    clock: Clock
    #: Key of the job tokens.
    secret: bytes
    lab_id: str
    #: Why nothing of a user's starts, by their subjects.
    held: Callable[[], Mapping[str, Reason]] = dict
    #: Machines that are made for jobs.
    job_machines: JobMachines = field(default_factory=JobMachines)
    #: Jobs that a session may have at once, of those that its token submits.
    session_jobs: int = 32
    #: Jobs of a user at once, of those that tasks submit.
    task_jobs: int = 2000
    #: Devices of which the driver does not say whether they are well, by their UUIDs.
    unknown_devices: Callable[[], Collection[str]] = frozenset
    storage: StorageWatch
    weekly: Weekly = field(default_factory=Weekly)
    verifications: Verifications
    #: What there is to tell the tracking server about a new job.
    describe_submission: Callable[[Job, TaskSpec, User], Sequence[OutboxEntry]] = untold
    #: The same about the state of a sweep, by a job of it; and about a job that ended while it waited.
    describe_sweep: Callable[[Job, TaskSpec, Sweep], Sequence[OutboxEntry]] = untold
    describe_withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = untold
    #: Tell it that a search for a cause has ended, by the last job of it: with which answer, in which words.
    tell_search: Callable[[Job, TaskSpec, VariantOf, str, str], object] = untold
    #: What the tracking server said of things about a job that it refused for good.
    refused_by_tracking: Callable[[int], Sequence[str]] = untold

    def keeper(self, noun: Noun[T]) -> Keeper[T]:
        """What callers do with the records of a noun."""
        return next(one for one in self.keepers if one.noun is noun)

    def worth_changing(self, caller: Caller) -> str:
        """What the caller may want to change, by the tasks of their last seven days; "" for nothing."""
        return self.weekly.of(caller.user.subject, self.jobs_store, self.clock())

    @property
    def secrets(self) -> Secrets:
        """What users keep for their jobs."""
        found = self.keeper(SECRETS)
        assert isinstance(found, Secrets)
        return found

    # ---- who calls

    def authenticate(self, token: str) -> Caller:
        """Whose token it is. Raises `Unauthenticated` for anything that is not a valid token of this lab now."""
        named = read_job_token(self.secret, token)
        return self._member(self.tokens.authenticate(token)) if named is None else self._job(*named)

    def still(self, caller: Caller) -> Caller:
        """The caller as they are now. Raises as `authenticate` when they are let in no more."""
        if caller.job_id is not None and caller.attempt is not None:
            return self._job(caller.job_id, caller.attempt)
        return self._member(self.tokens.by_number(caller.token_id or 0))

    def for_owner(self, subject: str, since: float) -> Caller:
        """The user for whom the lab goes on with what they began at `since`. Raises `NotFound`, `Unauthenticated`."""
        user = self.people.get(subject)
        if user is None:
            raise NotFound(f"There is no user {subject} any more.")
        if user.revoked_at is not None and since <= user.revoked_at:
            raise Unauthenticated(f"All tokens of {user.name} were revoked on {day(user.revoked_at)}.", remedy="Begin it again.")
        return self._member(Caller(user=user))

    def _job(self, job_id: int, attempt: int) -> Caller:
        job = self.jobs_store.get(job_id)
        # Attempt 0 fetches the inputs of a job that waits.
        lives = job is not None and (job.state.holds_resources or (job.state is JobState.PENDING and attempt == 0))
        if job is None or job.attempt != attempt or not lives:
            raise Unauthenticated("The job that this token belongs to is over.", remedy="Use a token of your own.")
        caller = self.for_owner(job.owner, job.submitted_at)
        check_state(caller.user)
        # What a job submits is charged as the job is.
        return replace(caller, job_id=job.id, attempt=job.attempt, account=job.account)

    def recognize(self, token: str) -> Caller | None:
        """The same where that takes no waiting, or None. Raises as `authenticate`."""
        if (named := read_job_token(self.secret, token)) is not None:
            job = self.jobs_store.known(named[0])
            return None if job is None or self.people.known(job.owner) is None else self._job(*named)
        caller = self.tokens.recognize(token)
        return None if caller is None else self._member(caller)

    def _member(self, caller: Caller) -> Caller:
        return replace(caller, accounts=self.policy.accounts_of(caller.user))

    # ---- jobs

    def submit(
        self,
        caller: Caller,
        spec: TaskSpec,
        *,
        name: str,
        resources: Resources,
        qos: QoS,
        account: str | None = None,
        retries: int = 0,
        preemptible: bool = True,
        visible: Visible = Visible.OWNER,
        kind: JobKind = JobKind.TASK,
        partition: str | None = None,
        dependency: str = "",
        array: str = "",
        only: int | None = None,
        cache: bool = False,
        any_code: bool = False,
        key: str | None = None,
        parent: int | None = None,
    ) -> Submitted:
        """Write the job down and put it in line, after what it waits for; or all elements of an array, or `only` that one.

        It can run here, its code is there, what it waits for can happen: otherwise it is refused now. `cache`: an earlier job of
        the owner's with the same code, parameters, environment and inputs is returned instead, if all that it left is there; with
        `any_code` else the newest whose code was another.
        `parent`: the job for which it is submitted, where the caller is not one.
        """
        about: Any = {"qos": qos, "kind": kind, "partition": partition, "account": account}
        chosen, resources = self.check(caller, spec, resources=resources, **about)
        indices = () if not array else read_array(array).indices if only is None else (only,)
        parent = caller.job_id if parent is None else parent
        new = NewJob(
            partition=chosen,
            kind=kind,
            owner=caller.user.subject,
            account=self._account(account, caller),
            name=name,
            qos=qos.name,
            resources=resources,
            retries=retries,
            task=spec,
            preemptible=preemptible,
            visible=visible,
            dependency=settle_dependency(
                dependency,
                indices,
                self.jobs_store,
                lambda job: bool(allowed(caller, Action.SEE_JOB, of_job(job))),
                step=spec.step is not None,
            ),
            array=array,
            indices=indices,
            parent=parent,
        )
        if cache and new.cache_key:
            if (earlier := self._same_as(new.owner, new.cache_key)) is not None:
                return Submitted(job=earlier, created=False, cached=True)
            if any_code and (earlier := self._same_as(new.owner, new.cache_key[:HALF])) is not None:
                return Submitted(job=earlier, created=False, cached=True, other_code=True)
        submitted = self.jobs_store.submit(
            new,
            now=self.clock(),
            key=key,
            request=_request_digest(new) if key is not None else "",
            outbox=lambda job: self.describe_submission(job, spec, caller.user) if spec.session is None else (),
            admit=partial(
                check_jobs_of_jobs,
                more=max(1, len(indices)),
                session_jobs=self.session_jobs,
                task_jobs=self.task_jobs,
            ),
        )
        if submitted.created:
            self.loop.changed(*submitted.made)
        return submitted

    def preview(
        self,
        caller: Caller,
        spec: TaskSpec,
        *,
        name: str,
        resources: Resources,
        qos: QoS,
        account: str | None = None,
        partition: str | None = None,
        preemptible: bool = True,
    ) -> Wait | None:
        """Return where such a job would stand in line if it were submitted now, or None where it would start.

        Raises what `submit` would raise. What a job waits for before it is in line (other jobs, its environment, its inputs) is
        not foreseen.
        """
        chosen, resources = self.check(caller, spec, resources=resources, qos=qos, partition=partition, account=account)
        return self.loop.preview(
            Waiting(
                id=_NOT_SUBMITTED,
                owner=caller.user.subject,
                account=self._account(account, caller),
                qos=qos.name,
                resources=without_parts(resources),
                submitted_at=self.clock(),
                name=name,
                partition=chosen,
                preemptible=preemptible,
                node="" if resources.compose else None,
            )
        )

    def free(self, caller: Caller) -> tuple[Sequence[FreeGpus], bool]:
        """What is free of each type of GPU for a task of the caller's that names no class of service and no partition.

        Nothing where they may start none, and where too many wait for it to be worked out. False: it was so some seconds ago.
        """
        qos = self.policy.choose(None, JobKind.TASK)
        asked = Resources(gpus=1, time=qos.max_time or qos.default_time)
        try:
            partition = self.policy.check(asked, JobKind.TASK, qos, self.engine.nodes(), owner=caller.user.subject)
            account = self._account(None, caller)
        except CarrelError:
            return (), True
        return self.loop.free_for(
            Waiting(
                id=_NOT_SUBMITTED,
                owner=caller.user.subject,
                account=account,
                qos=qos.name,
                resources=asked,
                submitted_at=self.clock(),
                partition=partition,
            )
        )

    def _same_as(self, owner: str, key: str) -> Job | None:
        """The newest job whose key begins so and whose outputs are all there, or None."""
        for job in self.jobs_store.same_as(owner, key):
            if all(file.removed_at is None for file in self.jobs_store.outputs(job.id, job.attempt)):
                return job
        return None

    def check(
        self,
        caller: Caller,
        spec: TaskSpec,
        *,
        resources: Resources,
        qos: QoS,
        kind: JobKind = JobKind.TASK,
        partition: str | None = None,
        account: str | None = None,
    ) -> tuple[str, Resources]:
        """Raise what keeps such a job from being submitted now; return the partition that it would go to, and what it asks for.

        Where no machine has that, it asks for one from parts, too.
        """
        allowed(caller, Action.SUBMIT if spec.session is None else Action.START_SESSION).check()
        self.storage.check()
        check_state(caller.user)  # a job of somebody who is suspended goes on, and starts nothing
        if spec.session is None and not self.has_snapshot(caller, spec.snapshot):
            raise NotFound(f"There is no code {spec.snapshot} of yours.", remedy="Upload the snapshot first.")
        if spec.session is None:
            self.retention.check_room(caller)
        self.secrets.check(caller, spec, None if caller.job_id is None else self.task(caller, caller.job_id))
        account = self._account(account, caller)

        def partition_for(asked: Resources) -> str | CarrelError:
            try:
                nodes = self.job_machines.nodes_for(self.engine.nodes(), caller.user.subject, account, asked)
                return self.policy.check(without_parts(asked), kind, qos, nodes, partition, spec.asks, owner=caller.user.subject)
            except CarrelError as error:
                return error

        chosen, with_machine = partition_for(resources), replace(resources, compose=MACHINE)
        if isinstance(chosen, Impossible) and not resources.compose and spec.session is None:
            made = partition_for(with_machine)
            if isinstance(made, str):
                chosen, resources = made, with_machine
        if isinstance(chosen, CarrelError):
            raise chosen
        if resources.compose and chosen and self.policy.partitions[chosen].cluster:
            raise Impossible(
                f'No machine is made from parts in partition "{chosen}", which is one of a cluster.',
                remedy="Name a partition of the lab's own machines, or leave compose out.",
            )
        if spec.session is None or spec.environment.wanted:
            self.policy.preparable(spec, self.policy.partitions.get(chosen), resources.nodes)
        return chosen, resources

    def _account(self, name: str | None, caller: Caller) -> str:
        if caller.account is not None and name not in (None, caller.account):
            raise Denied(
                f'This token is for account "{caller.account}" alone, and not for "{name}".',
                remedy="Leave --account out, or use a token without an account.",
            )
        return self.policy.account(caller.account or name, caller.user)

    def cancel(self, caller: Caller, job_id: int) -> Job:
        """Ask for the job's end. A waiting job ends at once, a running one when its processes are gone."""
        return self._end(self.job(caller, job_id, Action.CANCEL_JOB), by=caller.user.name)

    def array(self, caller: Caller, array_id: int, index: int | None = None, action: Action = Action.SEE_JOB) -> Sequence[Job]:
        """The jobs of an array with which the caller may do `action`, by index, or that of one index."""
        found = self.jobs_store.elements(array_id, index)
        what = f"array {array_id}" if index is None else f"element {index} of an array {array_id}"
        missing = NotFound(f"There is no {what}.", remedy="`carrel ps --all` lists your jobs.")
        if not found:
            raise missing
        allowed(caller, action, of_job(found[0])).check(missing)
        return found

    def cancel_array(self, caller: Caller, array_id: int) -> Sequence[Job]:
        """Ask for the end of all elements, the last ones first, so that none of them takes the place of another."""
        return [self._end(job, by=caller.user.name) for job in reversed(self.array(caller, array_id, action=Action.CANCEL_JOB))][
            ::-1
        ]

    def end_idle(self, job: Job, *, by: str) -> None:
        """The lab itself asks for the end of a session that nobody uses; `by` says what for."""
        self._end(job, by=by)

    def _end(self, job: Job, *, by: str) -> Job:
        reason = Reason(code="Cancelled", message=f"Cancelled by {by} before it started.")
        after = self.jobs_store.request_cancel(job.id, by=by, reason=reason, now=self.clock(), outbox=self.describe_withdrawal)
        if after is None:  # pragma: no cover - jobs are never deleted
            raise NotFound(f"There is no job {job.id}.")
        self.loop.changed(after)
        return after

    def job(self, caller: Caller, job_id: int, action: Action = Action.SEE_JOB) -> Job:
        """The job, if the caller may do `action` with it. Raises `NotFound`, and `Denied` if they may see it but not do that."""
        missing = NotFound(f"There is no job {job_id}.", remedy="`carrel ps --all` lists your jobs.")
        job = self.jobs_store.get(job_id)
        if job is None:
            raise missing
        allowed(caller, action, of_job(job)).check(missing)
        return job

    def may_read(self, caller: Caller, job_id: int) -> bool:
        """True when the caller may read the log of this job, which they may see."""
        return bool(allowed(caller, Action.READ_JOB, of_job(self.job(caller, job_id))))

    def task(self, caller: Caller, job_id: int) -> TaskSpec:
        """What the job was asked to do. Users who may see it but not read it get the names of its variables, not their values."""
        job = self.job(caller, job_id)
        task = self.jobs_store.task(job_id)
        if task is None:  # pragma: no cover - the column is NOT NULL
            raise NotFound(f"Job {job_id} has no description.")
        if not allowed(caller, Action.READ_JOB, of_job(job)):
            return replace(task, variables=dict.fromkeys(task.variables, ""))
        return task

    def jobs(self, caller: Caller, which: JobFilter, *, before: int | None = None, limit: int = 50) -> Sequence[Job]:
        """Newest first. Everybody's are those of their accounts for account managers."""
        mine = which.owner == caller.user.subject
        if not mine and not allowed(caller, Action.LIST_JOBS):
            theirs = {name for name in caller.accounts if allowed(caller, Action.LIST_JOBS, Resource(account=name))}
            if not theirs:
                allowed(caller, Action.LIST_JOBS).check()
            which = replace(which, accounts=frozenset(theirs))
        return self.jobs_store.list(which, before=before, limit=limit)

    def steps(self, caller: Caller, job: Job) -> Sequence[StepStatus]:
        """The steps of the job's pipeline, in the order in which they were submitted, as far as the caller may see them."""
        found = pipeline_of(job, self.jobs_store)
        return [one for one in found if allowed(caller, Action.SEE_JOB, of_job(one.job))]

    def check_wait(self, parent: int, child: Job) -> None:
        """Raise `Conflict` when the job `parent` would wait for `child` for ever."""
        if self.loop.waits_already(child.id, parent):
            raise Conflict(
                f"Job {child.id} waits for job {parent}, which would wait for it for ever.", remedy="Let one of the two go on."
            )
        if starts_after(child, parent, self.jobs_store.get):
            raise Conflict(
                f"Job {child.id} starts only when job {parent} has ended, which would wait for it for ever.",
                remedy="Do not wait for it, or submit it without that dependency.",
            )

    def waiting(self, job_id: int, *, alternatives: bool = False) -> Wait | None:
        """Where a waiting job stood when the last cycle looked, or None; with `alternatives` that would start it sooner."""
        return self.loop.wait_of(job_id, alternatives=alternatives)

    def as_told(self, job: Job) -> Job:
        """The job with its reason while its owner is held, what it needs is not here, or it waits for its child."""
        held = held_by(self.held(), job) or self.loop.kept_back(job.id) if job.state is JobState.PENDING else None
        reason = self.loop.with_parent(job.id, held or job.reason)
        return job if reason is job.reason else replace(job, reason=reason)

    def attempts(self, caller: Caller, job_id: int) -> Sequence[AttemptRow]:
        """All attempts, first to last."""
        self.job(caller, job_id)
        return self.jobs_store.attempts(job_id)

    @property
    def produced(self) -> Produced:
        """What jobs produced."""
        refused = self.refused_by_tracking
        return Produced(
            self.jobs_store, self.files, self.collecting, lab_id=self.lab_id, job=self.job, task=self.task, refused=refused,
            verified=self.verifications.of,
        )  # fmt: skip

    @property
    def repeating(self) -> Repeating:
        """Jobs of before, again."""
        return Repeating(
            jobs=self.jobs_store, people=self.people, policy=self.policy, files=self.files, clock=self.clock,
            submit=self.submit, job=self.job, task=self.task, has_snapshot=self.has_snapshot, nodes=self.engine.nodes,
        )  # fmt: skip

    @property
    def machines(self) -> Machines:
        """The lab's machines."""
        return Machines(
            self.jobs_store, self.engine, self.loop, Drains(self.administration.drains), self.policy, self.unknown_devices
        )

    # ---- fair share

    def shares(self, caller: Caller) -> ShareReport:
        """Where the caller stands on each of their accounts; administrators see everybody, managers those of their accounts."""
        return share_report(caller, self.policy, self.loop.use, self.clock())

    def standing(self, caller: Caller) -> Standing | None:
        """The caller's standing on the account that is charged if they name none; None where shares do not count."""
        return standing_of(caller, self.policy, self.loop.use, self.clock())

    # ---- events

    def events(self, caller: Caller, *, after: int, job_id: int | None = None, limit: int = 500) -> Sequence[Event]:
        """Events with larger ids: of one job, or of all that the caller may see."""
        if job_id is not None:
            self.job(caller, job_id)
        everything = job_id is not None or allowed(caller, Action.READ_ALL)
        owner = None if everything else caller.user.subject
        return self.event_store.after(after, job_id=job_id, owner=owner, limit=limit)

    def last_event_id(self) -> int:
        """Id of the newest event."""
        return self.event_store.last_id()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (from any thread) when there are new events, until the returned function is called."""
        return self.event_store.subscribe(callback)

    # ---- code

    def has_snapshot(self, caller: Caller, digest: str) -> bool:
        """True when the caller has uploaded this code and it is still there."""
        me = caller.user.subject
        owner = me if self.people.may_use_snapshot(me, digest) else None
        return bool(allowed(caller, Action.USE_CODE, Resource(owner=owner))) and self.files.code.has(digest)

    def add_snapshot(self, caller: Caller, digest: str, stream: BinaryIO) -> None:
        """Store code; the stream is read whole and checked even when the same content is there already."""
        allowed(caller, Action.UPLOAD_CODE).check()
        self.storage.check()
        self.retention.check_room(caller)
        self.files.code.add(digest, stream)
        self.people.add_snapshot(caller.user.subject, digest, now=self.clock(), size=self.files.code.size(digest))


def _request_digest(new: NewJob) -> str:
    text = json.dumps(to_plain(new), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""The lab as its callers see it: every call is made by somebody, and what is not theirs does not exist for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from carrel.core.control.administration import Administration
from carrel.core.control.cells import Cells
from carrel.core.control.collecting import Collecting
from carrel.core.control.lab_policy import LabPolicy
from carrel.core.control.launching import read_job_token
from carrel.core.control.loop import ControlLoop
from carrel.core.control.ports import (
    AttemptRow,
    Collected,
    Event,
    EventStore,
    JobFilter,
    JobStore,
    NewJob,
    OutboxEntry,
    Submitted,
)
from carrel.core.control.retention import Retention
from carrel.core.control.secrets import NoSecrets, Secrets
from carrel.core.control.starting_after import settle_dependency
from carrel.core.control.storage import AmpleStorage, Storage
from carrel.core.control.tokens import Tokens, check_state
from carrel.core.control.user_port import UserStore
from carrel.core.control.users import Users
from carrel.core.control.views import DeviceStatus, LogChunk, NodeStatus, ShareReport
from carrel.core.domain.account import Standing
from carrel.core.domain.array import read_array
from carrel.core.domain.errors import Denied, Invalid, NotFound, Unauthenticated
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.node import Node
from carrel.core.domain.placement import Wait
from carrel.core.domain.ports import Clock, Engine
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.units import format_size
from carrel.core.domain.user import Caller, User
from carrel.core.domain.visible import Visible
from carrel.core.policy.access import Action, Resource, allowed, of_job
from carrel.core.spool import Spool

#: How far ahead the lab says what keeping and releasing would do to one's standing, in seconds.
AN_HOUR = 3600.0


class CodeStore(Protocol):
    """Code snapshots by digest; `carrel.core.snapshots.SnapshotStore` is one."""

    def has(self, digest: str) -> bool:
        """True when the content is stored."""
        ...

    def add(self, digest: str, stream: BinaryIO) -> None:
        """Check and store the content."""
        ...

    def size(self, digest: str) -> int:
        """Its bytes on the disk; 0 when it is not stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFiles:
    """Where the lab keeps what is too large for the database."""

    spool: Spool
    blobs: Path
    code: CodeStore


def nothing_submitted(_job: Job, _task: TaskSpec, _user: User) -> Sequence[OutboxEntry]:
    """A lab without tracking has nobody to tell."""
    return ()


def nothing_refused(_job_id: int) -> Sequence[str]:
    """A lab without tracking is refused nothing."""
    return ()


def nothing_withdrawn(_job: Job, _task: TaskSpec) -> Sequence[OutboxEntry]:
    """A lab without tracking has nobody to tell."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything that a caller can do. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    jobs_store: JobStore
    event_store: EventStore
    people: UserStore
    tokens: Tokens
    users: Users
    administration: Administration
    engine: Engine
    loop: ControlLoop
    policy: LabPolicy
    files: LabFiles
    retention: Retention
    collecting: Collecting
    cells: Cells
    clock: Clock
    #: Key of the job tokens.
    secret: bytes
    lab_id: str
    #: Why nothing of a user's starts, by their subjects.
    held: Callable[[], Mapping[str, Reason]] = dict
    storage: Storage = field(default_factory=AmpleStorage)
    #: What users keep for their jobs.
    secrets: Secrets = field(default_factory=lambda: Secrets(store=NoSecrets(), clock=lambda: 0.0))
    #: What there is to tell the tracking server about a new job.
    describe_submission: Callable[[Job, TaskSpec, User], Sequence[OutboxEntry]] = nothing_submitted
    #: The same about a job that ended while it waited.
    describe_withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = nothing_withdrawn
    #: What the tracking server said of things about a job that it refused for good.
    refused_by_tracking: Callable[[int], Sequence[str]] = nothing_refused

    # ---- who calls

    def authenticate(self, token: str) -> Caller:
        """Whose token it is. Raises `Unauthenticated` for anything that is not a valid token of this lab now."""
        named = read_job_token(self.secret, token)
        if named is not None:
            job = self.jobs_store.get(named[0])
            user = self.people.get(job.owner) if job is not None else None
            # Attempt 0 fetches the inputs of a job that waits.
            lives = job is not None and (job.state.holds_resources or (job.state is JobState.PENDING and named[1] == 0))
            if job is not None and user is not None and job.attempt == named[1] and lives:
                return Caller(user=user, job_id=job.id, attempt=job.attempt, accounts=self.policy.accounts_of(user))
            raise Unauthenticated("The job that this token belongs to is over.", remedy="Use a token of your own.")
        caller = self.tokens.authenticate(token)
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
        key: str | None = None,
    ) -> Submitted:
        """Write the job down and put it in line, after what it waits for; or all elements of an array, or `only` that one.

        It can run here, its code is there, what it waits for can happen: otherwise it is refused now.
        """
        chosen = self.check(caller, spec, resources=resources, qos=qos, kind=kind, partition=partition, account=account)
        indices = () if not array else read_array(array).indices if only is None else (only,)
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
                dependency, indices, self.jobs_store, lambda job: bool(allowed(caller, Action.SEE_JOB, of_job(job)))
            ),
            array=array,
            indices=indices,
        )
        submitted = self.jobs_store.submit(
            new,
            now=self.clock(),
            key=key,
            request=_request_digest(new) if key is not None else "",
            outbox=lambda job: self.describe_submission(job, spec, caller.user) if spec.session is None else (),
        )
        if submitted.created:
            self.loop.changed(*submitted.made)
        return submitted

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
    ) -> str:
        """Raise what keeps such a job from being submitted now; return the partition that it would go to."""
        allowed(caller, Action.SUBMIT if spec.session is None else Action.START_SESSION).check()
        self.storage.check()
        check_state(caller.user)  # a job of somebody who is suspended goes on, and starts nothing
        if spec.session is None and not self.has_snapshot(caller, spec.snapshot):
            raise NotFound(f"There is no code {spec.snapshot} of yours.", remedy="Upload the snapshot first.")
        if spec.session is None:
            self.retention.check_room(caller)
        self.secrets.check(caller, spec, None if caller.job_id is None else self.task(caller, caller.job_id))
        chosen = self.policy.check(resources, kind, qos, self.engine.nodes(), partition, spec.asks, owner=caller.user.subject)
        if spec.session is None:
            self.policy.preparable(spec, self.policy.partitions.get(chosen))
        self._account(account, caller)
        return chosen

    def _account(self, name: str | None, caller: Caller) -> str:
        if caller.account is not None and name not in (None, caller.account):
            raise Denied(
                f'This token is for account "{caller.account}" alone, and not for "{name}".',
                remedy="Leave --account out, or use a token without an account.",
            )
        return self.policy.account(caller.account or name, caller.user)

    def rerun(self, caller: Caller, job_id: int) -> Job:
        """The same task again: same code, same environment lock, same parameters; under the caller's name."""
        job, task = self.job(caller, job_id, Action.REPEAT_JOB), self.task(caller, job_id)
        if task.session is not None:
            raise Invalid(f"Job {job_id} is a session.", remedy="Start another: `carrel notebook` finds the same files.")
        qos = self.policy.choose(job.qos if job.qos in self.policy.qos else None, job.kind)
        if not self.has_snapshot(caller, task.snapshot):  # an administrator repeats somebody else's job
            self.people.add_snapshot(caller.user.subject, task.snapshot, now=self.clock())
        environment = replace(task.environment, lock=self._lock_of(job) or task.environment.lock)
        spec = replace(task, rerun_of=job.id, tracking=None, environment=environment)
        return self.submit(
            caller,
            spec,
            name=job.name,
            resources=job.resources,
            qos=qos,
            partition=self._partition_again(job, qos),
            account=job.account if self.policy.admits(job.account, caller.user) and caller.account is None else None,
            retries=job.retries_left + max(0, job.attempt - 1),
            preemptible=job.preemptible,
            visible=job.visible if job.owner == caller.user.subject else Visible.OWNER,
            array=job.element.array if job.element is not None else "",
            only=job.element.index if job.element is not None else None,
        ).job

    def _partition_again(self, job: Job, qos: QoS) -> str | None:
        """The job's partition, while it is there and takes such work."""
        part = self.policy.partitions.get(job.partition)
        return part.name if part is not None and part.takes(qos.name) else None

    def _lock_of(self, job: Job) -> str | None:
        """The lock that the job's last attempt ran with, or None when it never had an environment."""
        row = self.jobs_store.attempt(job.id, job.attempt)
        if row is None or not row.environment_lock:
            return None
        path = blob_file(self.files.blobs, row.environment_lock)
        return path.read_text() if path.exists() else None

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

    def waiting(self, job_id: int) -> Wait | None:
        """Where a waiting job stood when the last cycle looked, or None."""
        return self.loop.wait_of(job_id)

    def as_told(self, job: Job) -> Job:
        """The job with its reason while its owner is suspended, or what it needs is not here."""
        reason = None
        if job.state is JobState.PENDING:
            reason = self.held().get(job.owner) or self.loop.kept_back(job.id)
        return job if reason is None else replace(job, reason=reason)

    def attempts(self, caller: Caller, job_id: int) -> Sequence[AttemptRow]:
        """All attempts, first to last."""
        self.job(caller, job_id)
        return self.jobs_store.attempts(job_id)

    # ---- what a job produced

    def outputs(self, caller: Caller, job_id: int) -> Sequence[StoredFile]:
        """Stored outputs of the last attempt."""
        job = self.job(caller, job_id, Action.READ_JOB)
        return self.jobs_store.outputs(job_id, job.attempt)

    def collect_outputs(self, caller: Caller, job_id: int) -> Collected:
        """Store what the last attempt left in its working directory because it could not be stored at its end."""
        return self.collecting.collect(self.job(caller, job_id, Action.CHANGE_JOB))

    def blob_path(self, caller: Caller, job_id: int, path: str) -> Path:
        """The file that holds the output `path` of the job."""
        for file in self.outputs(caller, job_id):
            if file.path == path:
                if file.removed_at is not None:
                    when = datetime.fromtimestamp(file.removed_at, UTC).date().isoformat()
                    raise NotFound(
                        f'The content of "{path}" was given up on {when}; its digest is {file.digest}.',
                        remedy=f"`carrel rerun {job_id}` makes it again.",
                    )
                return blob_file(self.files.blobs, file.digest)
        raise NotFound(f'Job {job_id} has no output "{path}".', remedy=f"`carrel outputs {job_id} --list` shows all.")

    def log_range(
        self, caller: Caller, job_id: int, *, attempt: int | None = None, offset: int = 0, limit: int = 1 << 20
    ) -> LogChunk:
        """Up to `limit` bytes of the log of an attempt (default: the last), from `offset`; a negative one counts from the end."""
        job = self.job(caller, job_id, Action.READ_JOB)
        number = job.attempt if attempt is None else attempt
        if number < 0 or number > job.attempt:
            raise NotFound(f"Job {job_id} has no attempt {number}.", remedy=f"It had {job.attempt}.")
        try:
            with self.files.spool.attempt(job_id, number).log.open("rb") as file:
                size = file.seek(0, 2)
                start = max(0, size + offset) if offset < 0 else min(offset, size)
                file.seek(start)
                return LogChunk(attempt=number, offset=start, data=file.read(limit), size=size)
        except FileNotFoundError:
            if job.state.ended and not self.files.spool.attempt(job_id, number).path.exists():
                self._check_log_was_empty(job_id, number)
            return LogChunk(attempt=number, offset=0, data=b"", size=0)

    def _check_log_was_empty(self, job_id: int, number: int) -> None:
        row = self.jobs_store.attempt(job_id, number)
        if row is not None and row.log_size:
            raise NotFound(
                f"The log of job {job_id} ({format_size(row.log_size)}) is not kept any more.",
                remedy="The lab removes logs some time after the end of their job (keep_logs).",
            )

    def record(self, caller: Caller, job_id: int) -> dict[str, Any]:
        """Everything needed to explain the job and to repeat it."""
        job, task = self.job(caller, job_id, Action.READ_JOB), self.task(caller, job_id)
        attempts = []
        for row in self.jobs_store.attempts(job_id):
            plain = to_plain(row)
            plain["outputs"] = [to_plain(file) for file in self.jobs_store.outputs(job_id, row.number)]
            if row.environment_lock is not None:
                lock = blob_file(self.files.blobs, row.environment_lock)
                plain["environment_lock_text"] = lock.read_text() if lock.exists() else None
            attempts.append(plain)
        # What the tracking server would not take is said here: the lab's own record is complete in any case.
        refused = list(self.refused_by_tracking(job_id))
        return {
            "lab": self.lab_id,
            "job": to_plain(job),
            "task": to_plain(task),
            "attempts": attempts,
            **({"refused_by_tracking": refused} if refused else {}),
        }

    # ---- fair share

    def shares(self, caller: Caller) -> ShareReport:
        """Where the caller stands on each of their accounts; administrators see everybody, managers those of their accounts."""
        now, rules, use = self.clock(), self.policy.rules.current, self.loop.use
        me = caller.user.subject
        others = [(self.policy.account(None, caller.user), me)]
        found = use.standings(now, others)
        seen = [row for row in found if allowed(caller, Action.SEE_SHARES, Resource(owner=row.user, account=row.account))]
        return ShareReport(
            standings=seen,
            places={(standing.account, standing.user): place for place, standing in enumerate(found, start=1)},
            of=len(found),
            half_life=rules.half_life,
            weight=rules.share_weight,
            held=use.held_by(me),
            kept=_factors(use.standings(now, others, ahead=AN_HOUR), me),
            released=_factors(use.standings(now, others, ahead=AN_HOUR, released=me), me),
        )

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

    # ---- code and machines

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

    def devices(self, caller: Caller) -> Sequence[NodeStatus]:
        """The machines, and who holds what on them; the jobs of others are shown without name and owner."""
        holding = self.loop.holding()
        withheld = self.engine.withheld()
        holders = {uuid: held.id for held in holding for uuid in held.devices}
        statuses = []
        for node in self.administration.drains.apply(self.engine.nodes()):
            here = [held for held in holding if held.node == node.name]
            devices = tuple(
                DeviceStatus(
                    device=device,
                    holder=self._holder(caller, holders.get(device.uuid)),
                    withheld=device.uuid in withheld and device.uuid not in holders,
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

    def cluster_nodes(self) -> Sequence[tuple[Node, Sequence[str]]]:
        """The machines of clusters as their engines know them, and the parts of the lab whose jobs may run there."""
        found: dict[str, tuple[Node, list[str]]] = {}
        for partition in self.policy.partitions.values():
            for node in self.policy.cluster(partition) if partition.cluster else ():
                found.setdefault(node.name, (node, []))[1].append(partition.name)
        return list(found.values())

    def _holder(self, caller: Caller, job_id: int | None) -> Job | None:
        job = self.jobs_store.get(job_id) if job_id is not None else None
        if job is None or job.state is JobState.PENDING:
            return None
        return job if allowed(caller, Action.SEE_JOB, of_job(job)) else replace(job, name="", owner="")


def _factors(standings: Sequence[Standing], user: str) -> Mapping[str, float]:
    return {standing.account: standing.factor for standing in standings if standing.user == user}


def blob_file(root: Path, digest: str) -> Path:
    """Where the content with this digest lies."""
    name = digest.removeprefix("sha256:")
    return root / name[:2] / name


def _request_digest(new: NewJob) -> str:
    text = json.dumps(to_plain(new), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

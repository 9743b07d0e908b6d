"""What MLflow gets of a job: from the lab's own values to items of the outbox. Nothing is sent or read here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.core.control.ports import AttemptChange, OutboxEntry
from carrel.core.domain.comparison import Verification
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import EnvironmentReady, Journaled, Observation, Sampled, Started, Usage
from carrel.core.domain.qos import JobKind
from carrel.core.domain.submit_limits import SUBMIT_LIMITS
from carrel.core.domain.sweep import Sweep
from carrel.core.domain.task import GitState, TaskSpec, VariantOf
from carrel.core.domain.user import User
from carrel.core.spool.layout import Spool
from carrel.lab.tracking.rest import PARAM_LENGTH, TAG_LENGTH
from carrel.lab.tracking.status import status_of, status_of_sweep

_MB = 1e6


class Describer:
    """Describes jobs for the outbox; called by the control loop, one job at a time.

    A task whose run is on somebody else's tracking server is not described: the lab has no business there.
    """

    def __init__(self, *, lab_id: str, spool: Spool, blob: Callable[[str], Path], url: str = "") -> None:
        """`blob` gives the path of a stored digest; `url` is where people reach the lab."""
        self._lab_id = lab_id
        self._spool = spool
        self._blob = blob
        self._url = url.rstrip("/")
        self._samples: dict[int, tuple[float, float]] = {}

    def submission(self, job: Job, task: TaskSpec, user: User) -> Sequence[OutboxEntry]:
        """A job was submitted: its run is made, or taken over from ``mlflow run``."""
        if not _described(job, task):
            return ()
        given = task.tracking.run_id if task.tracking else None
        adopted = given if job.element is None else None
        name, tags = job.name, self._tags(job, task, user, adopted=adopted is not None)
        if job.element is not None:
            name = f"{job.name}_{job.element.index}"
            tags |= {"carrel.array_job_id": str(job.element.array_id), "carrel.array_task_id": str(job.element.index)}
            if task.tracking is not None:  # made by `mlflow run`, for all of them
                tags["mlflow.parentRunId"] = task.tracking.run_id
        if task.sweep is not None:
            name = f"{job.name} {task.trial}"
            tags |= {"carrel.sweep": str(task.sweep), "carrel.trial": str(task.trial)}
        payload: dict[str, Any] = {
            "owner": job.owner,
            "user": user.name,
            "experiment": task.experiment,
            "run_name": name,
            "start_time": _ms(job.submitted_at),
            "params": {key: _cut(value, PARAM_LENGTH) for key, value in task.parameters.items()},
            "tags": _cut_all(tags),
        }
        if task.sweep is not None:
            payload["parent"] = self._parent(job, task)
        if task.variant_of is not None:
            payload["parent"] = self._search(job, task.variant_of)
        if job.element is not None and task.tracking is not None:
            payload["experiment_id"] = task.tracking.experiment_id
        entries = [OutboxEntry(kind="create_run", payload=payload | ({"adopt": adopted} if adopted else {}))]
        if task.git is not None and task.git.diff:
            text = {"owner": job.owner, "artifact_path": "carrel/uncommitted.diff", "text": task.git.diff}
            entries.append(OutboxEntry(kind="artifact", payload=text))
        return entries

    def change(self, job: Job, task: TaskSpec, change: AttemptChange, observation: Observation) -> Sequence[OutboxEntry]:
        """There was news of the present attempt of `job`, which is as it was before the news."""
        if not _described(job, task):
            return ()
        tags: dict[str, str] = {}
        metrics: list[dict[str, Any]] = []
        entries: list[OutboxEntry] = []
        began = job.started_at
        for entry in observation.entries:
            match entry.record:
                case EnvironmentReady() as ready:
                    tags |= {"carrel.environment": ready.digest, "carrel.python": ready.python}
                    if ready.lock:
                        entries.append(self._artifact(job, "carrel/environment.lock", self._blob(ready.lock)))
                case Started() as started:
                    began = entry.at
                    tags |= _start_tags(job, started)
                case Sampled():
                    metrics += self._metrics(job, entry, began)
        update = {"tags": _cut_all(tags), "metrics": metrics}
        filled = {key: value for key, value in update.items() if value}
        if filled:
            entries.insert(0, OutboxEntry(kind="update", payload={"owner": job.owner, **filled}))
        if change.ended_at is not None and (change.reason is None or change.reason.code not in SUBMIT_LIMITS):
            self._samples.pop(job.id, None)
            entries += self._end_of_attempt(job, change)
        return entries

    def withdrawn(self, job: Job, task: TaskSpec) -> Sequence[OutboxEntry]:
        """A job ended without an attempt: it was cancelled, or refused, while it waited."""
        if not _described(job, task) or job.ended_at is None:
            return ()
        return self._end(job, job.state, job.reason, job.ended_at, {})

    def verified(self, job: Job, task: TaskSpec, verification: Verification) -> Sequence[OutboxEntry]:
        """A job was repeated, and its results were compared."""
        if not _described(job, task):
            return ()
        tags = {"carrel.verified": verification.words}
        return [OutboxEntry(kind="update", payload={"owner": job.owner, "tags": _cut_all(tags)})]

    def sweep(self, job: Job, task: TaskSpec, sweep: Sweep) -> Sequence[OutboxEntry]:
        """A sweep has another state; `job` is one of its trials'."""
        if not _described(job, task):
            return ()
        payload = {
            "owner": job.owner,
            "experiment": task.experiment,
            "parent": self._parent(job, task),
            "status": status_of_sweep(sweep.state),
            "end_time": None if sweep.ended_at is None else _ms(sweep.ended_at),
        }
        return [OutboxEntry(kind="parent", payload=payload)]

    def search(self, job: Job, task: TaskSpec, search: VariantOf, answer: str, told: str) -> Sequence[OutboxEntry]:
        """A search for a cause has ended, with this answer and what it tells; `job` is the last of its runs."""
        if not _described(job, task):
            return ()
        payload = {
            "owner": job.owner,
            "experiment": task.experiment,
            "parent": self._search(job, search),
            "tags": _cut_all({"carrel.answer": answer, "mlflow.note.content": told}),
            "status": "FINISHED",
            "end_time": _ms(job.ended_at or job.submitted_at),
        }
        return [OutboxEntry(kind="parent", payload=payload)]

    def _tags(self, job: Job, task: TaskSpec, user: User, *, adopted: bool) -> dict[str, str]:
        tags = {
            "carrel.lab": self._lab_id,
            "carrel.job_id": str(job.id),
            "carrel.task": job.name,
            "carrel.account": job.account,
            "carrel.qos": job.qos,
            "carrel.resources": job.resources.describe(),
            "carrel.snapshot": task.snapshot,
            "carrel.command": task.command,
            "carrel.state": JobState.PENDING.value,
            "mlflow.project.entryPoint": task.entry_point,
        }
        if self._url:
            tags["carrel.url"] = f"{self._url}/jobs/{job.id}"
        if task.rerun_of is not None:
            tags["carrel.rerun_of"] = str(task.rerun_of)
        if task.variant_of is not None:
            tags["carrel.variant_of"] = f"{task.variant_of.first}, {task.variant_of.second}"
        if task.replay_of is not None:
            tags["carrel.replay_of"] = f"{task.replay_of.lab}/{task.replay_of.job}"
        if not adopted:
            tags |= {"mlflow.user": user.name, "mlflow.source.name": job.name, "mlflow.source.type": "PROJECT"}
        return tags | (_git_tags(task.git) if task.git else {})

    def _metrics(self, job: Job, entry: Journaled, began: float | None) -> list[dict[str, Any]]:
        assert isinstance(entry.record, Sampled)
        usage = entry.record.usage
        values = _usage_metrics(job, usage)
        before = self._samples.get(job.id)
        self._samples[job.id] = (entry.at, usage.cpu_seconds)
        # A requeued job starts from zero again.
        if before is not None and entry.at > before[0] and usage.cpu_seconds >= before[1]:
            share = (usage.cpu_seconds - before[1]) / (entry.at - before[0]) / (job.resources.cpus * job.resources.nodes)
            values["system/cpu_utilization_percentage"] = 100 * share
        step = max(0, int(entry.at - began)) if began is not None else 0
        return [{"key": key, "value": value, "timestamp": _ms(entry.at), "step": step} for key, value in values.items()]

    def _end_of_attempt(self, job: Job, change: AttemptChange) -> Sequence[OutboxEntry]:
        log = self._spool.attempt(job.id, job.attempt).log
        name = "carrel/log.txt" if change.state is not JobState.PENDING else f"carrel/attempt-{job.attempt}/log.txt"
        entries = [self._artifact(job, name, log)]
        if change.state is None or not change.state.ended or change.reason is None or change.ended_at is None:
            # It goes back to the queue.
            tags = {"carrel.state": JobState.PENDING.value, "carrel.reason": change.reason.message if change.reason else ""}
            return [*entries, OutboxEntry(kind="update", payload={"owner": job.owner, "tags": _cut_all(tags)})]
        tags = {"carrel.attempts": str(job.attempt), "carrel.outputs": str(len(change.outputs))}
        if change.exit_code is not None:
            tags["carrel.exit_code"] = str(change.exit_code)
        if change.signal is not None:
            tags["carrel.signal"] = str(change.signal)
        return [*entries, *self._end(job, change.state, change.reason, change.ended_at, tags)]

    def _parent(self, job: Job, task: TaskSpec) -> dict[str, Any]:
        """The run of the sweep, in which those of its trials are."""
        name, page = f"sweep {task.sweep}: {job.name}", f"/sweeps/{task.sweep}"
        return self._run_of_many(job, {"carrel.sweep_of_trials": str(task.sweep)}, name, page)

    def _search(self, job: Job, search: VariantOf) -> dict[str, Any]:
        """The run of a search for a cause, in which those of its variants are."""
        first, second = search.first, search.second
        page = f"/jobs/why?first={first}&second={second}"
        return self._run_of_many(job, {"carrel.why": f"{first}, {second}"}, f"why {first} {second}: {job.name}", page)

    def _run_of_many(self, job: Job, naming: Mapping[str, str], name: str, page: str) -> dict[str, Any]:
        naming = {"carrel.lab": self._lab_id, **naming}
        tags = {**naming, "carrel.task": job.name} | ({"carrel.url": f"{self._url}{page}"} if self._url else {})
        return {"naming": naming, "run_name": name, "tags": _cut_all(tags), "start_time": _ms(job.submitted_at)}

    def _end(self, job: Job, state: JobState, reason: Reason, at: float, tags: Mapping[str, str]) -> Sequence[OutboxEntry]:
        said = {**tags, "carrel.state": state.value, "carrel.reason": reason.message, "carrel.reason_code": reason.code}
        return [
            OutboxEntry(kind="update", payload={"owner": job.owner, "tags": _cut_all(said)}),
            OutboxEntry(kind="record", payload={"owner": job.owner, "artifact_path": "carrel/record.json"}),
            OutboxEntry(
                kind="end_run",
                payload={"owner": job.owner, "status": status_of(state), "end_time": _ms(at)},
            ),
        ]

    @staticmethod
    def _artifact(job: Job, name: str, path: Path) -> OutboxEntry:
        return OutboxEntry(kind="artifact", payload={"owner": job.owner, "artifact_path": name, "path": str(path)})


def _described(job: Job, task: TaskSpec) -> bool:
    return job.kind is JobKind.TASK and task.pool is None and (task.tracking is None or task.tracking.uri is None)


def _git_tags(git: GitState) -> dict[str, str]:
    tags = {"carrel.git.dirty": "true" if git.dirty else "false", "mlflow.source.git.commit": git.commit}
    if git.branch:
        tags["mlflow.source.git.branch"] = git.branch
    if git.remote:
        tags["mlflow.source.git.repoURL"] = git.remote
    return tags


def _start_tags(job: Job, started: Started) -> dict[str, str]:
    tags = {
        "carrel.state": JobState.RUNNING.value,
        "carrel.node": job.node or "",
        "carrel.gpus": ", ".join(job.devices) or "none",
        "carrel.attempt": str(job.attempt),
    }
    tags |= {f"carrel.hardware.{key}": value for key, value in started.hardware.items() if value}
    return tags | {f"carrel.seed.{key}": value for key, value in started.seeds.items() if value}


def _usage_metrics(job: Job, usage: Usage) -> dict[str, float]:
    """Under the names that MLflow's own system metrics have; CPU and memory are relative to what the job asked for."""
    values = {
        "system/system_memory_usage_megabytes": usage.memory / _MB,
        "system/system_memory_usage_percentage": 100 * usage.memory / (job.resources.memory * job.resources.nodes),
    }
    if not job.devices:
        return values | _gpu_metrics_of_nodes(usage, nodes=job.resources.nodes)
    for index, uuid in enumerate(job.devices):
        if uuid in usage.gpu_utilization:
            values[f"system/gpu_{index}_utilization_percentage"] = usage.gpu_utilization[uuid]
        if uuid in usage.gpu_memory:
            values[f"system/gpu_{index}_memory_usage_megabytes"] = usage.gpu_memory[uuid] / _MB
    return values


def _gpu_metrics_of_nodes(usage: Usage, *, nodes: int) -> dict[str, float]:
    """Of GPUs that are named by node and position; several nodes stand in the names as MLflow has them for runs on several."""
    values = {}
    for name in (*usage.gpu_utilization, *usage.gpu_memory):
        node, _, position = name.rpartition("/gpu")
        if not node or not position.isdecimal():
            continue
        prefix = f"system/{node}/gpu_{position}" if nodes > 1 else f"system/gpu_{position}"
        if name in usage.gpu_utilization:
            values[f"{prefix}_utilization_percentage"] = usage.gpu_utilization[name]
        if name in usage.gpu_memory:
            values[f"{prefix}_memory_usage_megabytes"] = usage.gpu_memory[name] / _MB
    return values


def _ms(at: float) -> int:
    return round(at * 1000)


def _cut(text: str, limit: int) -> str:
    """What is too long for MLflow ends in an ellipsis; the record has the whole."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cut_all(tags: Mapping[str, str]) -> dict[str, str]:
    return {key: _cut(value, TAG_LENGTH) for key, value in tags.items()}

"""The record of a job as a crate or a lab has it, checked, and the task that repeats the job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from carrel.core.domain.errors import Invalid
from carrel.core.domain.launcher import Launcher
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.task import LAB_SCHEMES, EnvironmentKind, InputSpec, TaskSpec
from carrel.wire import v1

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
T = TypeVar("T")
_VERSION = re.compile(r"[A-Za-z]+-(3\.[0-9]+)(?:\.[0-9]+)?\S*")


@cache
def _reader(kind: type[T]) -> TypeAdapter[T]:
    """Built at its first use: most commands read no record."""
    return TypeAdapter(kind)


class _Part(BaseModel):
    """Of what is beside the task, what a later version adds is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RecordedOutput(_Part):
    """One output."""

    path: str
    size: int = Field(ge=0)
    digest: str = Field(pattern=f"^{_DIGEST.pattern}$")
    removed_at: float | None = None


class RecordedAttempt(_Part):
    """One attempt, as far as it is compared or repeated."""

    number: int
    node: str
    state: str
    exit_code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    suspended_seconds: float = 0.0
    environment_lock: str | None = None
    environment_lock_text: str | None = None
    python: str | None = None
    hardware: dict[str, str] = Field(default_factory=dict)
    seeds: dict[str, str] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    input_sources: dict[str, str] = Field(default_factory=dict)
    uncollected: bool = False
    outputs: list[RecordedOutput] = Field(default_factory=list)


class RecordedElement(_Part):
    """Its place in an array."""

    index: int = Field(ge=0, le=10**9)


class RecordedJob(_Part):
    """The job, as far as it is compared or repeated."""

    id: int = Field(ge=1, le=2**63 - 1)
    name: str
    owner: str
    account: str
    qos: str
    state: str
    partition: str = ""
    resources: dict[str, Any]
    attempt: int
    retries_left: int = 0
    preemptible: bool = True
    element: RecordedElement | None = None
    run_id: str | None = None


class _Record(_Part):
    lab: str = Field(pattern="^[0-9A-Za-z_-]{1,64}$")
    job: RecordedJob
    task: dict[str, Any]
    attempts: list[RecordedAttempt] = Field(min_length=1, max_length=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A record that was checked."""

    lab: str
    job: RecordedJob
    task: TaskSpec
    resources: Resources
    #: The last one.
    attempt: RecordedAttempt

    @property
    def plain(self) -> dict[str, Any]:
        """What was checked of it, in the form of a record."""
        attempt = self.attempt.model_dump()
        job = {**self.job.model_dump(), "resources": to_plain(self.resources)}
        return {"lab": self.lab, "job": job, "task": to_plain(self.task), "attempts": [attempt]}

    @property
    def output_digests(self) -> dict[str, str]:
        """What it stored, by path."""
        return {one.path: one.digest for one in self.attempt.outputs}


def read_recorded(plain: Mapping[str, Any], where: str) -> Recorded:
    """Check a record. Raises `Invalid` for anything that is not as this version writes it; a task's every field counts."""
    try:
        found = _Record.model_validate(plain)
        task = _reader(TaskSpec).validate_python(found.task)
        resources = _reader(Resources).validate_python(found.job.resources)
        from_plain(TaskSpec, found.task)  # what is not known is not dropped
        from_plain(Resources, found.job.resources)
    except ValidationError as error:
        raise Invalid(f"{where}: {_fault(error)}.", remedy=_LATER) from None
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", remedy=_LATER) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Invalid(f"{where}: {str(error)[:200]}.", remedy=_LATER) from None
    attempt = found.attempts[-1]
    if task.session is not None or not _DIGEST.fullmatch(task.snapshot):
        raise Invalid(f"{where}: it is of a session, which has no code of its own.", remedy="Replay a task.")
    if task.pool is not None:
        raise Invalid(f"{where}: it is of a worker of a pool, which does what it is sent.", remedy="Replay a task.")
    text = attempt.environment_lock_text
    if text is not None and f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}" != attempt.environment_lock:
        raise Invalid(f"{where}: the lock of its environment has not the digest that it says.", remedy=_LATER)
    return Recorded(lab=found.lab, job=found.job, task=task, resources=resources, attempt=attempt)


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:100]}: {first['msg'][:200]}"


_LATER = "It is damaged, or a later version of Carrel wrote it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the repetition is to have otherwise. None: as the record has it, as far as that means something here."""

    qos: str | None = None
    partition: str | None = None
    account: str | None = None
    #: "any": no type in particular.
    gpu_type: str | None = None
    #: "any": the lab's own.
    python: str | None = None
    #: Addresses by the places of inputs.
    inputs: Mapping[str, str] = field(default_factory=dict)
    #: Of the secrets that the record names, those that the code of a crate may have.
    secrets: frozenset[str] = frozenset()


def task_again(recorded: Recorded, lab: str, changes: Changes) -> tuple[v1.TaskRequest, list[str]]:
    """Return the request that repeats the job in the lab with this id, and what has to be said of it.

    Raises `Invalid` for what cannot be had there.
    """
    task, job, lock = recorded.task, recorded.job, recorded.attempt.environment_lock_text
    if task.order_of is not None and recorded.lab != lab:
        raise Invalid(
            f"It has the order of samples of job {task.order_of} of the lab {recorded.lab}, which is not here.",
            remedy="Replay it there.",
        )
    inputs, staged = _inputs(recorded, lab, changes)
    made = recorded.resources.compose or recorded.attempt.hardware.get("compose", "")
    version = _VERSION.fullmatch(recorded.attempt.python or "")
    python = changes.python or (version[1] if version else None)
    try:
        request = v1.TaskRequest(
            snapshot=task.snapshot,
            entry_point=task.entry_point,
            directory=task.directory,
            parameters=dict(task.parameters),
            resources=_resources(replace(recorded.resources, compose=made if recorded.lab == lab else ""), changes),
            git=None if task.git is None else v1.GitRequest(**to_plain(task.git)),
            replay=v1.ReplayRequest(
                lab=recorded.lab,
                job=job.id,
                name=job.name,
                command=task.command,
                path_parameters=staged,
                inputs=inputs,
                outputs=list(task.outputs),
                environment=task.environment.wanted,
                lock=lock or None,
                python=None if python == "any" else python,
            ),
            qos=changes.qos,
            partition=changes.partition,
            account=changes.account,
            **_options(task, job),
        )
    except ValidationError as error:
        raise Invalid(f"The record cannot be repeated: {_fault(error)}.", remedy=_LATER) from None
    elsewhere = [f"It had a machine from parts ({made}); here it has what there is."] if made and recorded.lab != lab else []
    return request, [*_notes(task, job, lock), *elsewhere]


def _options(task: TaskSpec, job: RecordedJob) -> dict[str, Any]:
    """What was asked for beside the command, as people write it."""
    grouped = task.launcher is not Launcher.NONE
    return {
        "image": next(iter(task.environment.requirements), None) if task.environment.kind is EnvironmentKind.IMAGE else None,
        "resolve_as_of": task.environment.as_of,
        "array": str(job.element.index) if job.element is not None else None,
        "retries": min(100, job.retries_left + max(0, job.attempt - 1)),
        "requeue": task.requeue or None,
        "warning": None if task.warning is None else f"{task.warning}s",
        "network": None if task.network is None else task.network.value,
        "preemptible": job.preemptible,
        "deterministic": task.deterministic_seed is not None or None,
        "deterministic_seed": task.deterministic_seed,
        "order": task.order,
        "experiment": task.experiment,
        "variables": dict(task.variables),
        "secrets": list(task.secrets),
        "launcher": task.launcher.value if grouped else None,
        "tasks_per_node": task.tasks_per_node if grouped or task.tasks_per_node > 1 else None,
    }


def _notes(task: TaskSpec, job: RecordedJob, lock: str | None) -> Iterator[str]:
    """What is not as it was."""
    kind = task.environment.kind
    if kind in (EnvironmentKind.REQUIREMENTS, EnvironmentKind.IMAGE) and not lock:
        yield "The record has no lock: its environment is resolved anew."
    if kind is EnvironmentKind.CONDA:
        yield "conda's lock is for the record only: its environment is resolved anew."
    if task.slurm is not None or task.engines:
        yield "What it asked of its cluster is not asked here."
    if job.element is not None:
        yield "It was an element of an array: variables that tell the array's size and ends have other values."


def _resources(asked: Resources, changes: Changes) -> v1.ResourceRequest:
    kind = changes.gpu_type or asked.gpu_type
    return v1.ResourceRequest(
        nodes=asked.nodes,
        cpus=asked.cpus,
        gpus=asked.gpus,
        memory=f"{-(-asked.memory // 1024)}K",
        time=f"{asked.time}s",
        **({"gpu_type": kind} if kind and kind != "any" else {}),
        **({"compose": asked.compose} if asked.compose else {}),
        **({"gpu_memory": f"{-(-asked.gpu_memory // 1024)}K"} if asked.gpu_memory else {}),
    )


def _inputs(recorded: Recorded, lab: str, changes: Changes) -> tuple[list[v1.InputRequest], dict[str, str]]:
    """Its inputs, with the digests of what was there; and those path parameters of which no digest is known."""
    task, attempt = recorded.task, recorded.attempt
    asked = [*task.inputs, *(InputSpec(path=path, uri=uri) for path, uri in task.path_parameters.items())]
    unknown = [path for path in changes.inputs if path not in {one.path for one in asked}]
    if unknown:
        places = ", ".join(one.path for one in asked) or "none"
        raise Invalid(f'The job has no input "{unknown[0]}".', remedy=f"Its inputs: {places}.")
    inputs, staged, elsewhere = [], {}, []
    for one in asked:
        uri = changes.inputs.get(one.path) or attempt.input_sources.get(one.path, one.uri)
        if one.path not in changes.inputs and recorded.lab != lab and uri.partition(":")[0] in LAB_SCHEMES:
            elsewhere.append(f"{one.path} ({uri})")
        known = one.digest or attempt.inputs.get(one.path)
        digest = known if known and _DIGEST.fullmatch(known) else None
        if digest is None and one.path in task.path_parameters:
            staged[one.path] = uri
        else:
            inputs.append(v1.InputRequest(path=one.path, uri=uri, digest=digest))
    if elsewhere:
        raise Invalid(
            f"What it was given is kept by the lab {recorded.lab}: {', '.join(elsewhere)}.",
            remedy="Say where it is to be found here: --input PATH=URI. Its digest is checked.",
        )
    return inputs, staged

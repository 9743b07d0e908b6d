"""From a request to a job: reads the task's description out of the code, and settles what its sources leave open.

Each setting comes from the first of these that says it: the request itself, its backend config, the ``carrel:`` section of
the task's own file, the class of service.
"""

from __future__ import annotations

import posixpath
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import TypeVar

from pydantic_core import PydanticSerializationError

from carrel.control.lab import Lab
from carrel.control.ports import Submitted
from carrel.domain.errors import Invalid, NotFound
from carrel.domain.qos import JobKind, QoS
from carrel.domain.resources import Resources
from carrel.domain.task import EnvironmentRecipe, GitState, TaskSpec, TrackingTarget
from carrel.domain.units import parse_duration, parse_size
from carrel.domain.user import Caller
from carrel.snapshots import SnapshotStore
from carrel.tasks import BackendConfig, ResourceOverrides, TaskDescription, describe, read_backend_config
from carrel.tasks.section import MAX_RETRIES, check_variable
from carrel.wire.v1 import ResourceRequest, TaskRequest

T = TypeVar("T")
#: Longest name of a job, an account, an experiment.
_NAME = 255


class Submissions:
    """Takes task requests. Thread-safe."""

    def __init__(self, lab: Lab, snapshots: SnapshotStore, *, remembered: int) -> None:
        self._lab = lab
        self._snapshots = snapshots
        self._remembered = remembered
        self._guard = threading.Lock()
        self._described: OrderedDict[Hashable, TaskDescription] = OrderedDict()

    def submit(self, caller: Caller, request: TaskRequest, key: str | None) -> Submitted:
        """Make the job. Raises `Invalid` for what is wrong with request or code, `Impossible` for what can never run here."""
        _refuse_half_characters(request)
        # Before anything is read: the content of somebody else's code must not show in an error message.
        if not self._lab.has_snapshot(caller, request.snapshot):
            raise NotFound(f"There is no code {request.snapshot} of yours.", remedy="Upload the snapshot first.")
        config = read_backend_config(request.backend_config)
        described = self._describe(request)
        partition = _first(request.partition, config.partition, described.partition)
        named = _first(request.qos, config.qos)
        if partition is not None and not self._lab.policy.partitions:
            # A lab that is one has no partitions; where a QoS has the name, that is what was meant.
            named, partition = named or self._qos_of_partition(partition), None
        qos = self._lab.policy.choose(_first(named, described.qos), JobKind.TASK, partition)
        retries = _first(request.retries, described.retries) or 0
        if not 0 <= retries <= MAX_RETRIES:
            raise Invalid(f"retries is {retries}.", remedy=f"Ask for 0 to {MAX_RETRIES}.")
        return self._lab.submit(
            caller,
            _task(request, config, described),
            name=_printable("name", request.name or described.name),
            resources=_resources(request.resources, config.resources, described.resources, qos),
            qos=qos,
            partition=partition,
            account=_optional("account", _first(request.account, config.account, described.account)),
            retries=retries,
            preemptible=_first(request.preemptible, config.preemptible, described.preemptible) is not False,
            key=key,
        )

    def _describe(self, request: TaskRequest) -> TaskDescription:
        key = (
            request.snapshot,
            request.directory,
            request.entry_point,
            request.script,
            tuple(request.parameters.items()),
            tuple(request.arguments),
        )
        with self._guard:
            known = self._described.get(key)
            if known is not None:
                self._described.move_to_end(key)
                return known
        made = describe(
            self._snapshots.files(request.snapshot, _inside(request.directory)),
            entry_point=request.entry_point,
            script=request.script,
            parameters=request.parameters,
            arguments=request.arguments,
        )
        with self._guard:
            self._described[key] = made
            while len(self._described) > self._remembered:
                self._described.popitem(last=False)
        return made

    def _qos_of_partition(self, partition: str) -> str:
        if partition in self._lab.policy.qos:
            return partition
        raise Invalid(
            f'There is no partition "{partition}": this lab has none.',
            remedy=f"Leave it out, or name a QoS: {', '.join(self._lab.policy.qos)}.",
        )


def _refuse_half_characters(request: TaskRequest) -> None:
    """JSON can name one half of a surrogate pair, which is no text (RFC 8259, 8.2) and could not be written down."""
    try:
        request.model_dump_json()
    except (PydanticSerializationError, UnicodeError) as error:
        raise Invalid("The request has text with half a character (a lone surrogate).", remedy="Send UTF-8.") from error


def _task(request: TaskRequest, config: BackendConfig, described: TaskDescription) -> TaskSpec:
    git, tracking = request.git, request.tracking
    return TaskSpec(
        entry_point=described.entry_point,
        command=described.command,
        snapshot=request.snapshot,
        directory=_inside(request.directory),
        parameters=described.parameters,
        # MLflow's --env-manager local: the environment that is there, so nothing is built.
        environment=EnvironmentRecipe() if config.env_manager == "local" else described.environment,
        inputs=described.inputs,
        path_parameters=described.path_parameters,
        outputs=described.outputs,
        variables={**described.variables, **config.variables, **_variables(request.variables)},
        experiment=_optional("experiment", _first(request.experiment, described.experiment)),
        tracking=TrackingTarget(run_id=tracking.run_id, experiment_id=tracking.experiment_id, uri=tracking.uri)
        if tracking
        else None,
        git=GitState(**git.model_dump()) if git else None,
    )


def _resources(request: ResourceRequest, config: ResourceOverrides, described: ResourceOverrides, qos: QoS) -> Resources:
    asked = ResourceOverrides(
        cpus=request.cpus,
        memory=None if request.memory is None else parse_size(request.memory),
        gpus=request.gpus,
        gpu_type=request.gpu_type,
        gpu_memory=None if request.gpu_memory is None else parse_size(request.gpu_memory),
        time=None if request.time is None else parse_duration(request.time),
    )
    return asked.over(config).over(described).resources(Resources(time=qos.default_time))


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _variables(given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        fault = check_variable(name)
        if fault is not None or "\0" in value:
            raise Invalid(
                f'The variable "{name}" {fault or "has a value with a zero byte"}.', remedy="Correct it or leave it out."
            )
    return given


def _optional(what: str, text: str | None) -> str | None:
    return None if text is None else _printable(what, text)


def _printable(what: str, text: str) -> str:
    if not text.strip() or len(text) > _NAME or not text.isprintable():
        raise Invalid(f'The {what} "{text[:40]}" cannot be used.', remedy=f"Use 1 to {_NAME} printable characters.")
    return text


def _inside(directory: str) -> str:
    plain = posixpath.normpath(directory)
    if "\0" in directory or plain.startswith(("/", "..")):
        raise Invalid(
            f'"{directory[:100]}" is not a directory of the code.', remedy="Name one relative to the top of what was packed."
        )
    return plain

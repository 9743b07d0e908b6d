"""From a request to a job: reads the task's description out of the code, and settles what its sources leave open.

Each setting comes from the first of these that says it: the request itself, its backend config, the ``carrel:`` section of
the task's own file, the class of service.
"""

from __future__ import annotations

import posixpath
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TypeVar

from pydantic_core import PydanticSerializationError

from carrel.control.lab import Lab
from carrel.control.ports import Submitted
from carrel.domain.array import read_array
from carrel.domain.errors import Invalid, NotFound
from carrel.domain.job import Visible
from carrel.domain.network import read_network
from carrel.domain.qos import JobKind, QoS
from carrel.domain.resources import Resources
from carrel.domain.slurm import SlurmRequest
from carrel.domain.task import EnvironmentRecipe, GitState, Launcher, TaskSpec, TrackingTarget
from carrel.domain.units import parse_duration, parse_size
from carrel.domain.user import Caller
from carrel.snapshots import SnapshotStore
from carrel.tasks import BackendConfig, ResourceOverrides, TaskDescription, describe, read_backend_config
from carrel.tasks.environment import resolved_as_of
from carrel.tasks.image import read_image
from carrel.tasks.section import MAX_RETRIES, check_variable
from carrel.tasks.shape import one_of_gpus, read_launcher, tasks_on_each_node
from carrel.wire.v1 import ResourceRequest, TaskRequest
from carrel.wire.v1 import SlurmRequest as SlurmWish

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

    def submit(self, caller: Caller, request: TaskRequest, key: str | None) -> tuple[Submitted, tuple[str, ...]]:
        """Make the job; return it with what its submitter has to be told.

        Raises `Invalid` for what is wrong with request or code, `Impossible` for what can never run here.
        """
        _refuse_half_characters(request)
        # Before anything is read: the content of somebody else's code must not show in an error message.
        if not self._lab.has_snapshot(caller, request.snapshot):
            raise NotFound(f"There is no code {request.snapshot} of yours.", remedy="Upload the snapshot first.")
        config = read_backend_config(request.backend_config)
        described = self._describe(request)
        partition, renamed = self._lab.policy.partition_here(_first(request.partition, config.partition, described.partition))
        named = _first(request.qos, config.qos)
        if partition is not None and not self._lab.policy.partitions:
            # A lab that is one has no partitions; where a QoS has the name, that is what was meant.
            named, partition = named or self._qos_of_partition(partition), None
        qos = self._lab.policy.choose(_first(named, described.qos), JobKind.TASK, partition)
        retries = _first(request.retries, described.retries) or 0
        if not 0 <= retries <= MAX_RETRIES:
            raise Invalid(f"retries is {retries}.", remedy=f"Ask for 0 to {MAX_RETRIES}.")
        resources = _resources(request.resources, config.resources, described.resources, qos)
        asked, left_out = self._lab.policy.left_out(_slurm(request.slurm, config.slurm, described.slurm), partition)
        task = _task(request, config, described, resources)
        task = replace(task, slurm=asked, notes=(*task.notes, *([renamed] if renamed else []), *left_out))
        submitted = self._lab.submit(
            caller,
            task,
            name=_printable("name", request.name or config.name or described.name),
            resources=resources,
            qos=qos,
            partition=partition,
            account=_optional("account", _first(request.account, config.account, described.account)),
            retries=retries,
            preemptible=_first(request.preemptible, config.preemptible, described.preemptible) is not False,
            visible=Visible(request.visible or Visible.OWNER),
            dependency=(_first(request.dependency, config.dependency) or "").strip(),
            array=_array(_first(request.array, config.array, described.array), request),
            key=key,
        )
        return submitted, task.notes

    def _describe(self, request: TaskRequest) -> TaskDescription:
        key = (
            request.snapshot,
            request.directory,
            request.entry_point,
            request.script,
            tuple(request.parameters.items()),
            tuple(request.arguments),
            request.strict,
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
            strict=request.strict,
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
            remedy=f"Leave it out, or name a QoS: {', '.join(self._lab.policy.qos)}. "
            "An administrator can say what it is here, in [partition_names] of carrel.toml.",
        )


def _refuse_half_characters(request: TaskRequest) -> None:
    """JSON can name one half of a surrogate pair, which is no text (RFC 8259, 8.2) and could not be written down."""
    try:
        request.model_dump_json()
    except (PydanticSerializationError, UnicodeError) as error:
        raise Invalid("The request has text with half a character (a lone surrogate).", remedy="Send UTF-8.") from error


def _task(request: TaskRequest, config: BackendConfig, described: TaskDescription, resources: Resources) -> TaskSpec:
    git, tracking = request.git, request.tracking
    launcher = _first(None if request.launcher is None else read_launcher(request.launcher), described.launcher) or Launcher.NONE
    asked = _first(request.tasks_per_node, config.tasks_per_node, described.tasks_per_node)
    as_of = _first(request.resolve_as_of, config.resolve_as_of, described.resolve_as_of)
    return TaskSpec(
        entry_point=described.entry_point,
        command=described.command,
        snapshot=request.snapshot,
        directory=_inside(request.directory),
        parameters=described.parameters,
        # MLflow's --env-manager local: the environment that is there, so nothing is built.
        environment=resolved_as_of(_environment(request, config, described), as_of),
        inputs=described.inputs,
        path_parameters=described.path_parameters,
        outputs=described.outputs,
        launcher=launcher,
        tasks_per_node=tasks_on_each_node(asked, launcher, resources, described.command),
        variables={**described.variables, **config.variables, **_variables(request.variables)},
        secrets=tuple(dict.fromkeys([*described.secrets, *request.secrets])),
        experiment=_optional("experiment", _first(request.experiment, described.experiment)),
        tracking=TrackingTarget(run_id=tracking.run_id, experiment_id=tracking.experiment_id, uri=tracking.uri)
        if tracking
        else None,
        git=GitState(**git.model_dump()) if git else None,
        requeue=_requeue(_first(request.requeue, config.requeue, described.requeue)),
        warning=_first(None if request.warning is None else parse_duration(request.warning), config.warning, described.warning),
        network=_first(None if request.network is None else read_network(request.network), described.network),
        notes=(*described.notes, *config.notes),
    )


def _environment(request: TaskRequest, config: BackendConfig, described: TaskDescription) -> EnvironmentRecipe:
    if request.image is not None:
        return read_image(request.image)
    return EnvironmentRecipe() if config.env_manager == "local" else described.environment


def _slurm(request: SlurmWish | None, config: SlurmRequest, described: SlurmRequest) -> SlurmRequest | None:
    wish = SlurmRequest()
    if request is not None:
        wish = SlurmRequest(
            constraint=request.constraint or "",
            exclusive=request.exclusive or "",
            reservation=request.reservation or "",
            mail=request.mail or "",
            mail_events=tuple(request.mail_events or ()),
            modules=tuple(request.modules or ()),
            options=tuple(request.options),
        )
    asked = wish.over(config).over(described)
    if asked.mail and not asked.mail_events:  # Slurm would write to nobody
        asked = replace(asked, mail_events=("END", "FAIL"))
    return asked if asked.asked() else None


def _requeue(times: int | None) -> int:
    if times is not None and not 0 <= times <= MAX_RETRIES:
        raise Invalid(f"requeue is {times}.", remedy=f"Ask for 0 to {MAX_RETRIES}.")
    return times or 0


def _resources(request: ResourceRequest, config: ResourceOverrides, described: ResourceOverrides, qos: QoS) -> Resources:
    asked = ResourceOverrides(
        nodes=request.nodes,
        cpus=request.cpus,
        memory=None if request.memory is None else parse_size(request.memory),
        gpus=one_of_gpus(request.gpus, request.gpus_per_node),
        gpu_type=request.gpu_type,
        gpu_memory=None if request.gpu_memory is None else parse_size(request.gpu_memory),
        time=None if request.time is None else parse_duration(request.time),
    )
    return asked.over(config).over(described).resources(Resources(time=qos.default_time))


def _array(text: str | None, request: TaskRequest) -> str:
    if text is None:
        return ""
    read_array(text)
    if request.tracking is not None and request.tracking.uri is not None:
        raise Invalid(
            "Each element of an array has a run of its own, which the lab cannot make on another tracking server.",
            remedy="Track with the lab's own server, or leave array out.",
        )
    return text.replace(" ", "")


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

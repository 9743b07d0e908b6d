"""From a request to a job: reads the task's description out of the code, and settles what its sources leave open.

Each setting comes from the first of these that says it: the request itself, its backend config, the ``carrel:`` section of
the task's own file, the class of service.
"""

from __future__ import annotations

import json
import posixpath
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from carrel.core.control.history import of_name
from carrel.core.control.lab import Lab
from carrel.core.control.ports import Submitted
from carrel.core.domain.cache_key import changing_inputs
from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.placement import Wait
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.domain.task import (
    ORDER,
    EnvironmentKind,
    EnvironmentRecipe,
    GitState,
    Launcher,
    ReplayOf,
    StepOf,
    TaskSpec,
    TrackingTarget,
)
from carrel.core.domain.user import Caller
from carrel.core.domain.visible import Visible
from carrel.core.gpu_use.habits import habits
from carrel.core.policy.pool_gpus import without_gpus
from carrel.core.snapshots import SnapshotStore
from carrel.core.submission import ResourceOptions, SweepOptions, TaskOptions, options_of, read_engine_options
from carrel.core.submission.kinds import NAME
from carrel.core.tasks import BackendConfig, TaskDescription, describe, describe_sweep, read_backend_config
from carrel.core.tasks.command import script_command
from carrel.core.tasks.document import read_yaml
from carrel.core.tasks.environment import find_recipe, resolved_as_of
from carrel.core.tasks.files import ProjectFiles
from carrel.core.tasks.locks import with_lock
from carrel.core.tasks.mlproject import read_project
from carrel.core.tasks.section import DEFAULT_OUTPUTS, read_section
from carrel.core.tasks.shape import one_of_gpus, tasks_on_each_node
from carrel.wire.v1 import ReplayRequest, TaskRequest
from carrel.wire.v1.base import Request

T = TypeVar("T")


class Submissions:
    """Takes task requests. Thread-safe."""

    def __init__(self, lab: Lab, snapshots: SnapshotStore, *, remembered: int) -> None:
        self._lab = lab
        self._snapshots = snapshots
        self._remembered = remembered
        self._guard = threading.Lock()
        self._described: OrderedDict[Hashable, TaskDescription] = OrderedDict()

    def submit(
        self,
        caller: Caller,
        request: TaskRequest,
        key: str | None,
        *,
        pool: int | None = None,
        borrows: bool = False,
        parent: int | None = None,
        trial: tuple[int, int] | None = None,
        change: Callable[[TaskSpec], TaskSpec] = lambda task: task,
    ) -> tuple[Submitted, tuple[str, ...]]:
        """Make the job; return it with notes for its submitter. `pool`: it is a worker of that one, which may be one that
        `borrows` its GPUs; `parent`: which a job has opened. `trial`: of that sweep, the one with that number. `change` adds what
        the lab itself says of the task.

        Raises `Invalid` for what is wrong with request or code, `Impossible` for what can never run here.
        """
        task, options = self._read(caller, request)
        if borrows:
            task, options["resources"] = replace(task, borrows=options["resources"].gpus), without_gpus(options["resources"])
        sweep, number = trial or (None, None)
        submitted = self._lab.submit(
            caller, replace(change(task), pool=pool, sweep=sweep, trial=number), **options, key=key, parent=parent
        )
        return submitted, (*task.notes, *_said_of_cache(submitted, task, wanted=options["cache"]))

    def preview(self, caller: Caller, request: TaskRequest) -> tuple[Resources, Wait | None, tuple[str, ...]]:
        """Return what a job of this would ask for, where it would stand in line (None: it would start), and notes.

        Among the notes is what the last tasks of its name took, where this asks for much more.

        Raises what `submit` would raise. Nothing is submitted.
        """
        task, options = self._read(caller, request)
        asked = {key: options[key] for key in ("name", "resources", "qos", "account", "partition", "preemptible")}
        wait = self._lab.preview(caller, task, **asked)
        past = of_name(self._lab.jobs_store, caller.user.subject, options["name"])
        return options["resources"], wait, (*task.notes, *habits(past, options["resources"]))

    def check(
        self, caller: Caller, request: TaskRequest, change: Callable[[Resources], Resources] = lambda asked: asked
    ) -> tuple[TaskSpec, Resources, str]:
        """Raise what `submit` would raise of this request, as far as that can be said before; `change` what it asks for first.

        Returns what it is, what it asks for, and the partition that it would go to.
        """
        if request.replay is not None:
            raise Invalid("What a record has is repeated as one job: it has its whole command.", remedy="Send it to POST /jobs.")
        task, options = self._read(caller, request)
        resources = change(options["resources"])
        asked = {name: options[name] for name in ("qos", "partition", "account")}
        return task, resources, self._lab.check(caller, task, resources=resources, **asked)[0]

    def sweep_options(self, caller: Caller, request: TaskRequest) -> SweepOptions:
        """What the task's own file says of sweeps. Raises `NotFound` for code that is not the caller's."""
        self._check_snapshot(caller, request)
        return describe_sweep(self._snapshots.files(request.snapshot, _inside(request.directory)))

    def name_of(self, caller: Caller, request: TaskRequest) -> str:
        """What a job of this would be called."""
        self._check_snapshot(caller, request)
        name: str = NAME.read("name", request.name or self._describe(request).name)
        return name

    def _check_snapshot(self, caller: Caller, request: TaskRequest) -> None:
        if not self._lab.has_snapshot(caller, request.snapshot):
            raise NotFound(f"There is no code {request.snapshot} of yours.", remedy="Upload the snapshot first.")

    def _read(self, caller: Caller, request: TaskRequest) -> tuple[TaskSpec, dict[str, Any]]:
        """What the job is, and how it is submitted."""
        _refuse_half_characters(request)
        # Before anything is read: the content of somebody else's code must not show in an error message.
        self._check_snapshot(caller, request)
        said = read_request(request)
        config = read_backend_config(request.backend_config)
        described = self._describe(request)
        options = said.over(config.options).over(described.options)
        partition, renamed = self._lab.policy.partition_here(options.partition)
        named = _first(said.qos, config.options.qos)
        if partition is not None and not self._lab.policy.partitions:
            # A lab that is one has no partitions; where a QoS has the name, that is what was meant.
            named, partition = named or self._qos_of_partition(partition), None
        qos = self._lab.policy.choose(_first(named, described.options.qos), JobKind.TASK, partition)
        resources = options.resources.resources(Resources(time=qos.default_time))
        asked, left_out = self._lab.policy.left_out(_slurm(options.slurm), partition)
        environment = resolved_as_of(_environment(said, config, described), options.resolve_as_of)
        if request.replay is not None:
            environment = environment_again(environment, request.replay)
        task = _task(request, options, described, environment, resources)
        notes = (*described.notes, *config.notes, *([renamed] if renamed else []), *left_out)
        return replace(task, slurm=asked, notes=notes), {
            "name": NAME.read("name", options.name or described.name),
            "resources": resources,
            "qos": qos,
            "partition": partition,
            "account": options.account,
            "retries": options.retries or 0,
            "preemptible": options.preemptible is not False,
            "visible": options.visible or Visible.OWNER,
            "dependency": (options.dependency or "").strip(),
            "array": _array(options.array, request),
            "cache": options.cache is True,
            "any_code": request.step is not None and request.step.any_code,
        }

    def _describe(self, request: TaskRequest) -> TaskDescription:
        if request.replay is not None:
            return described_again(request, request.replay, self._snapshots.files(request.snapshot, _inside(request.directory)))
        key = (
            request.snapshot,
            request.directory,
            request.entry_point,
            request.script,
            tuple(request.parameters.items()),
            tuple(request.arguments),
            request.strict,
            (request.step.name, tuple(request.step.jobs.items())) if request.step is not None else None,
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
            step=request.step.name if request.step is not None else None,
            jobs=request.step.jobs if request.step is not None else None,
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


def _said_of_cache(submitted: Submitted, task: TaskSpec, *, wanted: bool) -> tuple[str, ...]:
    if submitted.cached:
        code, other = ("", "; its code was another") if submitted.other_code else ("code, ", "")
        return (f"Taken from the cache: job {submitted.job.id} had the same {code}parameters, environment and inputs{other}.",)
    changing = changing_inputs(task) if wanted else ()
    if changing:
        return (
            f"Not cached: {changing[0].uri} may name something else tomorrow. Say its digest, or name a job, run or version.",
        )
    return ()


def _refuse_half_characters(request: TaskRequest) -> None:
    """JSON can name one half of a surrogate pair, which is no text (RFC 8259, 8.2) and could not be written down."""
    try:
        request.model_dump_json()
    except (PydanticSerializationError, UnicodeError) as error:
        raise Invalid("The request has text with half a character (a lone surrogate).", remedy="Send UTF-8.") from error


def read_request(request: TaskRequest) -> TaskOptions:
    """Return what the request itself says; raise `Invalid` for a value that cannot be."""
    resources = request.resources.model_copy(
        update={"gpus": one_of_gpus(request.resources.gpus, request.resources.gpus_per_node)}
    )
    wish = request.slurm.model_dump(exclude_none=True) if request.slurm is not None else {}
    slurm: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in wish.items()}
    return TaskOptions(
        **_options_in(request, TaskOptions),
        resources=ResourceOptions(**_options_in(resources, ResourceOptions)),
        slurm=SlurmRequest(**slurm),
        engines=read_engine_options(request.engines),
    )


def _options_in(request: Request, declaration: type) -> dict[str, Any]:
    declared = {name: option for name, option in options_of(declaration).items() if option.in_requests}
    return {
        name: option.kind.read(name, value) for name, option in declared.items() if (value := getattr(request, name)) is not None
    }


def _task(
    request: TaskRequest,
    options: TaskOptions,
    described: TaskDescription,
    environment: EnvironmentRecipe,
    resources: Resources,
) -> TaskSpec:
    git, tracking = request.git, request.tracking
    launcher = options.launcher or Launcher.NONE
    return TaskSpec(
        entry_point=described.entry_point,
        command=described.command,
        snapshot=request.snapshot,
        directory=_inside(request.directory),
        parameters=described.parameters,
        environment=environment,
        inputs=described.inputs,
        path_parameters=described.path_parameters,
        outputs=described.outputs if options.order is None else with_order(described.outputs),
        launcher=launcher,
        tasks_per_node=tasks_on_each_node(options.tasks_per_node, launcher, resources, described.command),
        variables=options.variables,
        secrets=options.secrets,
        experiment=options.experiment,
        tracking=TrackingTarget(run_id=tracking.run_id, experiment_id=tracking.experiment_id, uri=tracking.uri)
        if tracking
        else None,
        git=GitState(**git.model_dump()) if git else None,
        requeue=options.requeue or 0,
        warning=options.warning,
        network=options.network,
        deterministic_seed=_seed(options),
        order=options.order,
        replay_of=origin(request.replay) if request.replay is not None else None,
        step=StepOf(**request.step.model_dump(exclude={"any_code"})) if request.step is not None else None,
        engines={name: asked for name, asked in options.engines.items() if asked} or None,
    )


def with_order(outputs: tuple[str, ...]) -> tuple[str, ...]:
    """The order of samples is an output, whatever else is one."""
    return outputs if outputs == DEFAULT_OUTPUTS else (*outputs, f"outputs/{ORDER}/**")


def _seed(options: TaskOptions) -> int | None:
    if options.deterministic:
        return options.deterministic_seed or 0
    if options.deterministic_seed is not None:
        raise Invalid(
            f"The seed {options.deterministic_seed} is that of --deterministic, which was not asked for.",
            remedy="Ask for it, or give your program the seed as a parameter (-P seed=…).",
        )
    return None


def _environment(said: TaskOptions, config: BackendConfig, described: TaskDescription) -> EnvironmentRecipe:
    if said.image is not None:
        return said.image
    # MLflow's --env-manager local: the environment that is there, so nothing is built.
    return EnvironmentRecipe() if config.env_manager == "local" else described.environment


def _slurm(asked: SlurmRequest) -> SlurmRequest | None:
    if asked.mail and not asked.mail_events:  # Slurm would write to nobody
        asked = replace(asked, mail_events=("END", "FAIL"))
    return asked if asked.asked() else None


def _array(text: str | None, request: TaskRequest) -> str:
    if text is None:
        return ""
    if request.tracking is not None and request.tracking.uri is not None:
        raise Invalid(
            "Each element of an array has a run of its own, which the lab cannot make on another tracking server.",
            remedy="Track with the lab's own server, or leave array out.",
        )
    return text.replace(" ", "")


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _inside(directory: str) -> str:
    plain = posixpath.normpath(directory)
    if "\0" in directory or plain.startswith(("/", "..")):
        raise Invalid(
            f'"{directory[:100]}" is not a directory of the code.', remedy="Name one relative to the top of what was packed."
        )
    return plain


_WHERE = "the record"


def described_again(request: TaskRequest, replay: ReplayRequest, files: ProjectFiles) -> TaskDescription:
    """Return the description of the task that is repeated. `files` are those of its code, which say how its environment is made.

    Raises `Invalid` as for a file that says the same.
    """
    besides = [name for name in ("script", "arguments", "strict", "step") if getattr(request, name)]
    if besides:
        raise Invalid(f"A record has the whole command; {besides[0]} says nothing beside it.", remedy="Leave it out.")
    texts = (replay.command, request.entry_point, *request.parameters, *request.parameters.values())
    if any("\0" in text for text in texts):
        raise Invalid("The command or a parameter has a zero byte.", remedy="Send it without.")
    inputs = [one.model_dump(exclude_none=True) for one in replay.inputs]
    staged = [{"path": path, "uri": uri} for path, uri in replay.path_parameters.items()]
    said = {"inputs": inputs + staged, "outputs": replay.outputs}
    # JSON is YAML: the same eyes read it that read the section of a project file.
    section = read_section(read_yaml(json.dumps({key: value for key, value in said.items() if value}), _WHERE))
    places = {one["path"] for one in staged}
    project = read_project(files)
    declared = project is not None and request.entry_point in (*project.entry_points, *project.steps)
    script = request.entry_point if not declared and script_command(request.entry_point) is not None else None
    return TaskDescription(
        name=replay.name,
        entry_point=request.entry_point,
        command=replay.command,
        parameters=dict(request.parameters),
        path_parameters={one.path: one.uri for one in section.inputs if one.path in places},
        environment=find_recipe(files, project, script) if replay.environment else EnvironmentRecipe(),
        inputs=tuple(one for one in section.inputs if one.path not in places),
        outputs=section.outputs if replay.outputs else (),
    )


def environment_again(recipe: EnvironmentRecipe, replay: ReplayRequest) -> EnvironmentRecipe:
    """Return the recipe with what it came to when the job ran: its lock, and its Python."""
    if replay.lock is not None:
        recipe = with_lock(recipe, replay.lock)
    own = recipe.kind in (EnvironmentKind.IMAGE, EnvironmentKind.CONDA)  # they bring a Python of their own
    if replay.python is None or own or not recipe.wanted:
        return recipe
    return replace(recipe, python=replay.python)


def origin(replay: ReplayRequest) -> ReplayOf:
    """Return which job it repeats."""
    return ReplayOf(lab=replay.lab, job=replay.job)

"""MLflow's backend-config JSON with Slurm's names, as used with ``mlflow run --backend-config``.

Source: sbatch(1) for the names and their meaning (``--mem`` without a unit is megabytes, ``--time`` without one is minutes);
MLflow 3.17 for the keys that it adds itself. What is not understood is refused, never dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.slurm import ENGINE, SlurmRequest
from carrel.core.domain.suggest import suggest
from carrel.core.domain.units import MIB, parse_duration, parse_size
from carrel.core.submission import Kind, ResourceOptions, SlurmOptions, TaskOptions, engine_options, options_of
from carrel.core.submission.kinds import check_variable

_OPTIONS = {name: option for name, option in options_of(TaskOptions).items() if option.in_config}
#: Keys with Slurm's names; a hyphen is as good as an underscore. `docs/tasks.md` describes each one.
SLURM_KEYS = (
    *(option.in_config for option in _OPTIONS.values()),
    "mem", "time", "gres", "gpus", "gpus_per_node", "cpus_per_task", "nodes", "ntasks", "ntasks_per_node",
    "environment", "exports", "detach", "nested", *(one.in_config for one in options_of(SlurmOptions).values() if one.in_config),
    "signal", "output", "error", "sbatch_script_file",
)  # fmt: skip
#: Keys that MLflow adds itself.
MLFLOW_KEYS = (
    "PROJECT_ENV_MANAGER", "ENV_MANAGER", "SYNCHRONOUS", "DOCKER_ARGS", "STORAGE_DIR", "build_image", "BUILD_IMAGE",
    "docker_auth", "DOCKER_AUTH",
)  # fmt: skip
#: Variable of a task whose own `mlflow.run` goes to the lab: the backend config of those runs.
NESTED = "CARREL_MLFLOW_NESTED"
_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>\d{1,6}))?")
_SIGNAL = re.compile(r"(?:[BR]*:)?(?:SIG)?(?P<name>[A-Z0-9]+)(?:@(?P<seconds>[0-9]{1,5}))?")
#: Slurm's own, where `--signal` names no time (sbatch(1)).
_SIGNAL_SECONDS = 60
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What a backend config says; None where it says nothing."""

    options: TaskOptions = field(default_factory=TaskOptions)
    #: What has another meaning in a lab than for Slurm: sentences for the submitter.
    notes: tuple[str, ...] = ()
    #: MLflow's ``--env-manager``: "local", "virtualenv", "uv", "conda".
    env_manager: str | None = None
    #: True when `mlflow run` shall return without waiting for the end.
    detach: bool = False


def read_backend_config(config: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> BackendConfig:
    """Return what `config` says; raise `Invalid` for a key or value that is not understood.

    A bare name under ``exports`` or ``environment`` takes its value from `environ`, where that is given.
    """
    slurm: dict[str, Any] = {}
    of_engines = _of_engines()
    for key, value in config.items():
        if key in MLFLOW_KEYS:
            continue
        name = str(key).replace("-", "_")
        if name not in SLURM_KEYS and name not in of_engines:
            valid = [*SLURM_KEYS, *MLFLOW_KEYS, *of_engines]
            raise Invalid(
                f'Backend config: "{key}" is not understood.', remedy=suggest(name, valid, what="Keys"), details={"key": str(key)}
            )
        if name in slurm and slurm[name] != value:
            raise Invalid(
                f'Backend config: "{name}" is there twice, as {slurm[name]!r} and {value!r}.', remedy="Remove one of them."
            )
        slurm[name] = value
    nodes, tasks_per_node = _shape(slurm)
    same = {
        name: _value(option.in_config, option.kind, slurm[option.in_config])
        for name, option in _OPTIONS.items()
        if slurm.get(option.in_config) is not None
    }
    options = TaskOptions(
        **same,
        resources=_resources(slurm, nodes, tasks_per_node),
        tasks_per_node=tasks_per_node,
        variables={**_variables(slurm, environ), **_nested(slurm.get("nested"), environ)},
        slurm=_slurm_request(slurm),
        engines=_asked_of_engines(slurm, of_engines),
        warning=_signal(slurm["signal"]) if slurm.get("signal") is not None else None,
    )
    return BackendConfig(
        options=options, notes=_notes(slurm), env_manager=_mlflow(config), detach=_truth(slurm.get("detach"), "detach")
    )


def _of_engines() -> Mapping[str, tuple[str, str, Kind]]:
    """The keys of other engines than Slurm: engine, option and kind of value."""
    return {
        option.in_config: (engine, name, option.kind)
        for engine, options in engine_options().items()
        for name, option in options.items()
        if option.in_config and engine != ENGINE
    }


def _asked_of_engines(config: Mapping[str, Any], keys: Mapping[str, tuple[str, str, Kind]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, (engine, name, kind) in keys.items():
        if config.get(key) is not None:
            found.setdefault(engine, {})[name] = _value(key, kind, config[key])
    return found


def _value(key: str, kind: Kind, value: Any) -> Any:
    """Return the value of an option that means the same for Slurm as here."""
    plain: Any
    if kind.plain is bool:
        plain = _truth(value, key)
    elif kind.plain is int:
        boolean = kind.truth is not None and isinstance(value, bool)
        plain = (kind.truth if value else 0) if boolean else _count(value, key, at_least=0)
    elif kind.plain is list:
        plain = _words({key: value}, key)
    else:
        plain = _word({key: value}, key)
    try:
        return kind.read(key, plain)
    except Invalid as error:
        raise Invalid(f"Backend config: {error.message}", remedy=error.remedy) from None


def _resources(slurm: Mapping[str, Any], nodes: int | None, tasks_per_node: int | None) -> ResourceOptions:
    cpus = slurm.get("cpus_per_task")
    resources = ResourceOptions(
        nodes=nodes,
        # The lab counts processors of a node, Slurm those of a process.
        cpus=None if cpus is None else _count(cpus, "cpus_per_task", at_least=1) * (tasks_per_node or 1),
        memory=_memory(slurm["mem"]) if slurm.get("mem") is not None else None,
        time=_time(slurm["time"]) if slurm.get("time") is not None else None,
    )
    asked = {key: _gpus(slurm[key], key) for key in ("gres", "gpus", "gpus_per_node") if slurm.get(key) is not None}
    if "gpus" in asked and (nodes or 1) > 1:  # Slurm's word for those of all nodes together
        number, kind = asked["gpus"]
        if number % (nodes or 1):
            raise Invalid(
                f"Backend config: gpus is {number}, which {nodes} nodes cannot share evenly.",
                remedy="Say gpus_per_node, which is for each node.",
            )
        asked["gpus"] = (number // (nodes or 1), kind)
    counts, kinds = {count for count, _ in asked.values()}, {kind for _, kind in asked.values() if kind}
    if len(counts) > 1 or len(kinds) > 1:
        raise Invalid(f"Backend config: {' and '.join(asked)} ask for different GPUs.", remedy="Keep one of them.")
    if not counts:
        return resources
    count = counts.pop()
    return replace(resources, gpus=count, gpu_type=kinds.pop() if kinds and count else None)


def _memory(value: Any) -> int:
    text = _text(value, "mem")
    if text.isascii() and text.isdigit():
        if int(text) == 0:
            raise Invalid("Backend config: mem is 0, which to Slurm means all memory of a node.", remedy='Say how much: "8G".')
        return int(text) * MIB
    return _named("mem", parse_size, text)


def _time(value: Any) -> int:
    text = _text(value, "time")
    if text.isascii() and text.isdigit():
        if int(text) == 0:
            raise Invalid("Backend config: time is 0, which to Slurm means no limit.", remedy='Say how long: "2:00:00".')
        return int(text) * 60
    if text.lower() in ("unlimited", "infinite"):
        raise Invalid(f"Backend config: time is {text}.", remedy='Say how long: "2:00:00". The longest is a matter of the QoS.')
    return _named("time", parse_duration, text)


def _named(key: str, parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(f"Backend config: {key}: {error.message}", remedy=error.remedy) from None


def _gpus(value: Any, key: str) -> tuple[int, str | None]:
    text = _text(value, key)
    match = (_GRES if key == "gres" else _GPUS).fullmatch(text)
    if match is None:
        example = '"gpu:2" or "gpu:a100:1"' if key == "gres" else '2 or "a100:2"'
        raise Invalid(
            f'Backend config: {key} is "{text}", which does not name GPUs.',
            remedy=f"Write it like {example}; there is nothing else.",
        )
    return int(match["count"] or 1), match["type"]


def _shape(slurm: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the nodes and the processes on each; None where nothing says so."""
    nodes, tasks, each = (
        None if slurm.get(key) is None else _count(_exactly(slurm[key], key), key, at_least=1)
        for key in ("nodes", "ntasks", "ntasks_per_node")
    )
    if tasks is None:
        return nodes, each
    if each is not None and nodes is None and tasks % each == 0:
        nodes = tasks // each
    if tasks % (nodes or 1) or each not in (None, tasks // (nodes or 1)):
        raise Invalid(
            f"Backend config: ntasks is {tasks}, with nodes {nodes or 1} and ntasks_per_node {each or 'not said'}.",
            remedy="ntasks is nodes times ntasks_per_node; leave one of them out.",
        )
    # One process for each node is what everybody writes who says nothing about processes.
    return nodes, each or (tasks // (nodes or 1) if tasks > (nodes or 1) else None)


def _exactly(value: Any, key: str) -> Any:
    """Slurm takes a range of nodes; a job of the lab has so many and no others."""
    least, dash, most = _text(value, key).partition("-")
    return least if dash and least == most else value


def _slurm_request(slurm: Mapping[str, Any]) -> SlurmRequest:
    exclusive = slurm.get("exclusive")
    if isinstance(exclusive, bool):
        exclusive = "exclusive" if exclusive else ""
    events = _words(slurm, "mail_type")
    return SlurmRequest(
        constraint=_word(slurm, "constraint") or "",
        exclusive="" if exclusive is None else _text(exclusive, "exclusive"),
        reservation=_word(slurm, "reservation") or "",
        mail=_word(slurm, "mail_user") or "",
        mail_events=tuple(event.strip().upper() for text in events for event in text.split(",") if event.strip()),
        modules=_words(slurm, "modules"),
    )


def _words(slurm: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts; a text alone is a list of one."""
    given = slurm.get(key)
    if given is None:
        return ()
    items = given if isinstance(given, (list, tuple)) else [given]
    words = tuple(_text(item, key) for item in items)
    if not all(words):
        raise Invalid(f"Backend config: {key} has an empty entry.", remedy="Write names, or leave it out.")
    return words


def _signal(value: Any) -> int:
    """Return how many seconds before the end a signal is wanted; it is always SIGTERM."""
    text = _text(value, "signal")
    match = _SIGNAL.fullmatch(text)
    if match is None or match["name"] not in ("TERM", "15"):
        raise Invalid(
            f'Backend config: signal is "{text}".', remedy='The lab sends SIGTERM before the end: write it like "TERM@300".'
        )
    return int(match["seconds"] or _SIGNAL_SECONDS)


def _notes(slurm: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what has to be said of keys that name files which nobody writes here."""
    kept = "the lab keeps standard output and error together as the log"
    notes = [f'{key} "{name}": no such file is written; {kept}.' for key in ("output", "error") if (name := _word(slurm, key))]
    if (name := _word(slurm, "sbatch_script_file")) is not None:
        notes.append(f'sbatch-script-file "{name}": no such file is written; the lab makes the batch script itself.')
    return tuple(notes)


def _variables(slurm: Mapping[str, Any], environ: Mapping[str, str] | None) -> dict[str, str]:
    variables: dict[str, str] = {}
    for key in ("environment", "exports"):
        given = slurm.get(key)
        if given is None:
            continue
        if isinstance(given, Mapping):
            pairs = [(str(name), value) for name, value in given.items()]
        elif isinstance(given, (list, tuple)) and all(isinstance(item, str) for item in given):
            pairs = [_pair(item, key, environ) for item in given]
        else:
            raise Invalid(f"Backend config: {key} must be an object or a list of texts.", remedy='Write it like ["NAME=value"].')
        for name, value in pairs:
            fault = check_variable(name)
            if fault:
                raise Invalid(f'Backend config: {key}: "{name}" {fault}.')
            text = _text(value, f"{key}: {name}")
            if variables.setdefault(name, text) != text:
                raise Invalid(f'Backend config: the variable "{name}" is there with two values.', remedy="Remove one of them.")
    return variables


def _pair(item: str, key: str, environ: Mapping[str, str] | None) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if equals:
        return name, value
    if environ is None or name not in environ:
        raise Invalid(f'Backend config: {key} names "{name}", which has no value here.', remedy=f'Write "{name}=value".')
    return name, environ[name]


def _nested(value: Any, environ: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variable by which the task's own `mlflow.run` knows that it goes to the lab, and with which backend config."""
    if value is None or value is False:
        return {}
    settings = {} if value is True else value
    if not isinstance(settings, Mapping):
        raise Invalid(
            f"Backend config: nested is {value!r}.",
            remedy='Write true, or the backend config of the nested runs: {"cache": true}.',
        )
    if "nested" in settings:
        raise Invalid(
            "Backend config: nested is inside of nested.", remedy="Leave it out there: it holds for their own runs, too."
        )
    try:
        read_backend_config(settings, environ=environ)
    except Invalid as error:
        raise Invalid(f"Backend config: nested: {error.message}", remedy=error.remedy) from None
    return {NESTED: json.dumps(settings, sort_keys=True)}


def _mlflow(config: Mapping[str, Any]) -> str | None:
    remedies = {
        "DOCKER_ARGS": "Containers are not used: take --docker-args out.",
        "docker_auth": "Containers are not used: take it out.",
        "DOCKER_AUTH": "Containers are not used: take it out.",
        "build_image": "Containers are not used: take --build-image out.",
        "BUILD_IMAGE": "Containers are not used: take --build-image out.",
        "STORAGE_DIR": "Inputs are staged in the task's working directory: take --storage-dir out.",
    }
    for key, remedy in remedies.items():
        if config.get(key):
            raise Invalid(f"Backend config: {key} is set.", remedy=remedy)
    _truth(config.get("SYNCHRONOUS"), "SYNCHRONOUS")
    managers = {config[key] for key in ("ENV_MANAGER", "PROJECT_ENV_MANAGER") if config.get(key) is not None}
    known = ("local", "virtualenv", "uv", "conda")
    for manager in managers:
        if manager not in known:
            raise Invalid(f'Backend config: "{manager}" is not an environment manager.', remedy=suggest(str(manager), known))
    if len(managers) > 1:
        raise Invalid("Backend config: two environment managers.", remedy="Keep one of them.")
    return str(managers.pop()) if managers else None


def _word(slurm: Mapping[str, Any], key: str) -> str | None:
    if slurm.get(key) is None:
        return None
    text = _text(slurm[key], key)
    if not text:
        raise Invalid(f"Backend config: {key} is empty.", remedy="Write a name, or leave it out.")
    return text


def _text(value: Any, key: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or "\0" in str(value):
        raise Invalid(f"Backend config: {key} is {value!r}, which is neither a text nor a whole number.")
    return str(value).strip()


def _count(value: Any, key: str, *, at_least: int) -> int:
    text = _text(value, key)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= at_least):
        raise Invalid(f'Backend config: {key} is "{text}".', remedy=f"Write a whole number from {at_least}.")
    return int(text)


def _truth(value: Any, key: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Invalid(f"Backend config: {key} is {value!r}.", remedy="Write true or false.")

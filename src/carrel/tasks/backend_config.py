"""MLflow's backend-config JSON with Slurm's names, as used with ``mlflow run --backend-config``.

Source: sbatch(1) for the names and their meaning (``--mem`` without a unit is megabytes, ``--time`` without one is minutes);
MLflow 3.17 for the keys that it adds itself. What is not understood is refused, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.domain.errors import Invalid
from carrel.domain.units import MIB, parse_duration, parse_size
from carrel.tasks.overrides import ResourceOverrides
from carrel.tasks.section import check_variable
from carrel.tasks.suggest import suggest

#: Keys with Slurm's names; a hyphen is as good as an underscore. `docs/tasks.md` describes each one.
SLURM_KEYS = (
    "mem", "time", "gres", "gpus", "gpus_per_node", "cpus_per_task", "nodes", "ntasks", "partition", "account", "qos",
    "environment", "exports", "preemptible", "detach",
)  # fmt: skip
#: Keys that MLflow adds itself.
MLFLOW_KEYS = (
    "PROJECT_ENV_MANAGER", "ENV_MANAGER", "SYNCHRONOUS", "DOCKER_ARGS", "STORAGE_DIR", "build_image", "BUILD_IMAGE",
    "docker_auth", "DOCKER_AUTH",
)  # fmt: skip
_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>\d{1,6}))?")
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What a backend config says; None where it says nothing."""

    resources: ResourceOverrides = field(default_factory=ResourceOverrides)
    qos: str | None = None
    account: str | None = None
    partition: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Whether somebody may take its place while it runs.
    preemptible: bool | None = None
    #: MLflow's ``--env-manager``: "local", "virtualenv", "uv", "conda".
    env_manager: str | None = None
    #: True when `mlflow run` shall return without waiting for the end.
    detach: bool = False


def read_backend_config(config: Mapping[str, Any], *, environ: Mapping[str, str] | None = None) -> BackendConfig:
    """Return what `config` says; raise `Invalid` for a key or value that is not understood.

    A bare name under ``exports`` or ``environment`` takes its value from `environ`, where that is given.
    """
    slurm: dict[str, Any] = {}
    for key, value in config.items():
        if key in MLFLOW_KEYS:
            continue
        name = str(key).replace("-", "_")
        if name not in SLURM_KEYS:
            valid = [*SLURM_KEYS, *MLFLOW_KEYS]
            raise Invalid(
                f'Backend config: "{key}" is not understood.', remedy=suggest(name, valid, what="Keys"), details={"key": str(key)}
            )
        if name in slurm and slurm[name] != value:
            raise Invalid(
                f'Backend config: "{name}" is there twice, as {slurm[name]!r} and {value!r}.', remedy="Remove one of them."
            )
        slurm[name] = value
    _only_one_process(slurm)
    return BackendConfig(
        resources=_resources(slurm),
        qos=_word(slurm, "qos"),
        account=_word(slurm, "account"),
        partition=_word(slurm, "partition"),
        variables=_variables(slurm, environ),
        preemptible=None if slurm.get("preemptible") is None else _truth(slurm["preemptible"], "preemptible"),
        env_manager=_mlflow(config),
        detach=_truth(slurm.get("detach"), "detach"),
    )


def _resources(slurm: Mapping[str, Any]) -> ResourceOverrides:
    cpus = slurm.get("cpus_per_task")
    resources = ResourceOverrides(
        cpus=None if cpus is None else _count(cpus, "cpus_per_task", at_least=1),
        memory=_memory(slurm["mem"]) if slurm.get("mem") is not None else None,
        time=_time(slurm["time"]) if slurm.get("time") is not None else None,
    )
    asked = {key: _gpus(slurm[key], key) for key in ("gres", "gpus", "gpus_per_node") if slurm.get(key) is not None}
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


def _only_one_process(slurm: Mapping[str, Any]) -> None:
    for key in ("nodes", "ntasks"):
        if slurm.get(key) is not None and _text(slurm[key], key) not in ("1", "1-1"):
            raise Invalid(
                f"Backend config: {key} is {slurm[key]}.", remedy="A task is one process on one node; it may start others there."
            )


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

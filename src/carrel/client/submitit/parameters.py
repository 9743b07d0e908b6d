"""submitit's parameters, and what they are in the lab. Pure: values in, values out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Parameters of every cluster, with the types that they take.
SHARED: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "timeout_min": (int, float),
    "mem_gb": (int, float),
    "nodes": (int,),
    "cpus_per_task": (int,),
    "gpus_per_node": (int,),
    "tasks_per_node": (int,),
    "stderr_to_stdout": (bool,),
}
#: A parameter of Slurm's -> the shared one that it goes before.
_SYNONYMS = {"job_name": "name", "time": "timeout_min", "ntasks_per_node": "tasks_per_node"}
#: A parameter of Slurm's -> the option of sbatch(1) that goes along; only a partition of a cluster takes it.
_OPTIONS = ("comment", "exclude", "nodelist", "wckey")
#: What is called the same in a task.
_OF_TASKS = ("name", "partition", "qos", "account", "dependency")
_SLURM = frozenset(
    [
        *SHARED,
        *_SYNONYMS,
        *_OPTIONS,
        *_OF_TASKS,
        *("constraint", "exclusive", "mail_user", "mail_type", "mem", "mem_per_cpu"),
        *("mem_per_gpu", "cpus_per_gpu", "gpus_per_task", "num_gpus", "gres", "array_parallelism", "signal_delay_s", "setup"),
        *("teardown", "additional_parameters"),
    ]
)
_LOCAL = frozenset([*SHARED, "signal_delay_s", "setup"])
#: A parameter that has no counterpart -> what to do instead.
_REFUSED = {
    "slurm_srun_args": "The lab starts the tasks of a job itself. Leave it out; carrel_launcher says what starts them.",
    "slurm_use_srun": "The lab starts the tasks of a job itself. Leave it out; carrel_launcher says what starts them.",
    "local_visible_gpus": "The lab chooses the GPUs of a job. Leave it out, and say gpus_per_node.",
}
#: Options of a task that are given as they are: carrel_variables={"A": "b"}.
_OWN = frozenset(
    [
        *("qos", "partition", "account", "retries", "network", "dependency", "preemptible", "visible", "experiment", "variables"),
        *("secrets", "resolve_as_of", "launcher", "gpu_type", "gpu_memory", "engines"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of the lab for each job."""

    #: Fields of a `TaskRequest`, without those of `resources` and `slurm`.
    options: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    slurm: Mapping[str, Any] = field(default_factory=dict)
    tasks: int = 1
    #: How many jobs of an array run at once, at most.
    parallel: int | None = None
    #: How long before the end a job is told, in seconds.
    warning: int = 90
    #: Lines of shell before and after the function.
    setup: Sequence[str] = ()
    teardown: Sequence[str] = ()
    one_stream: bool = False


def check(parameters: Mapping[str, Any]) -> None:
    """Raise `NameError` for a parameter that nobody knows or the lab refuses, `TypeError` for a wrong type."""
    for name, value in parameters.items():
        if name in _REFUSED:
            raise NameError(f"{name} means nothing in the lab. {_REFUSED[name]}")
        if name not in known():
            near = difflib.get_close_matches(name, sorted(known()), 3)
            hint = f"Near it are: {', '.join(near)}." if near else f"There are: {', '.join(sorted(known()))}."
            raise NameError(f"There is no parameter {name}. {hint}")
        kinds = SHARED.get(name)
        if kinds and value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise TypeError(f"{name} is {value!r}. It takes {' or '.join(kind.__name__ for kind in kinds)}.")


def known() -> set[str]:
    """Return the names of all parameters."""
    prefixed = {"slurm": _SLURM, "local": _LOCAL, "carrel": _OWN}
    return {*SHARED, *(f"{cluster}_{name}" for cluster, names in prefixed.items() for name in names)}


def wanted(parameters: Mapping[str, Any], cluster: str) -> Wanted:
    """Return what checked parameters ask for in a cluster: those with its prefix go before the shared ones."""
    prefix = "local_" if cluster == "local" else "slurm_"
    given = {name: value for name, value in parameters.items() if name in SHARED}
    given |= {_plain(name, prefix): value for name, value in parameters.items() if name.startswith(prefix)}
    more = {name.replace("-", "_"): value for name, value in (given.pop("additional_parameters", None) or {}).items()}
    given |= {_SYNONYMS.get(name, name): value for name, value in more.items() if name in _SLURM}
    given = {name: value for name, value in given.items() if value is not None}
    own = {name[7:]: value for name, value in parameters.items() if name.startswith("carrel_")}
    tasks = given.get("tasks_per_node", 1)
    resources = _resources(given, tasks) | {name: own.pop(name) for name in ("gpu_type", "gpu_memory") if name in own}
    options: dict[str, Any] = {name: given[name] for name in _OF_TASKS if name in given}
    return Wanted(
        options={**options, **({"tasks_per_node": tasks} if tasks > 1 else {}), **own},
        resources=resources,
        slurm=_slurm(given, {name: value for name, value in more.items() if name not in _SLURM}),
        tasks=tasks * given.get("nodes", 1),
        parallel=given.get("array_parallelism"),
        warning=given.get("signal_delay_s", 30 if cluster == "local" else 90),
        setup=tuple(given.get("setup", ())),
        teardown=tuple(given.get("teardown", ())),
        one_stream=bool(given.get("stderr_to_stdout", False)),
    )


def _plain(name: str, prefix: str) -> str:
    name = name.removeprefix(prefix)
    return _SYNONYMS.get(name, name)


def _resources(given: Mapping[str, Any], tasks: int) -> dict[str, Any]:
    gpus, kind = _gpus(given, tasks)
    cpus = given["cpus_per_task"] * tasks if "cpus_per_task" in given else given.get("cpus_per_gpu", 0) * (gpus or 0)
    memory = _memory(given, cpus, gpus or 0)
    found = {
        "nodes": given.get("nodes"),
        "gpus": gpus,
        "gpu_type": kind,
        "cpus": cpus or None,
        "memory": f"{memory}M" if memory else None,
        "time": _time(given["timeout_min"]) if "timeout_min" in given else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _gpus(given: Mapping[str, Any], tasks: int) -> tuple[int | None, str | None]:
    """GPUs on each node, and their type."""
    if "gpus_per_node" in given:
        kind, _, count = str(given["gpus_per_node"]).rpartition(":")
        return int(count), kind or None
    if "gpus_per_task" in given:
        return int(given["gpus_per_task"]) * tasks, None
    if "num_gpus" in given:
        return -(-int(given["num_gpus"]) // given.get("nodes", 1)), None
    if "gres" in given:
        name, *parts = str(given["gres"]).split(":")
        if name != "gpu" or len(parts) > 2 or "," in given["gres"]:
            raise ValueError(f"gres is {given['gres']!r}. Ask for gpu:NUMBER or gpu:TYPE:NUMBER.")
        number = parts.pop() if parts and parts[-1].isdigit() else "1"
        return int(number), parts[0] if parts else None
    return None, None


def _memory(given: Mapping[str, Any], cpus: int, gpus: int) -> int:
    """MiB on each node; 0: nothing is said."""
    if "mem" in given:
        return _mebibytes("mem", given["mem"])
    if "mem_per_gpu" in given and gpus:
        return _mebibytes("mem_per_gpu", given["mem_per_gpu"]) * gpus
    if "mem_per_cpu" in given:
        return _mebibytes("mem_per_cpu", given["mem_per_cpu"]) * max(1, cpus)
    return round(float(given.get("mem_gb", 0)) * 1024)


def _mebibytes(name: str, value: Any) -> int:
    """A size as sbatch(1) takes it: a number of megabytes, or with a unit."""
    text = str(value).strip().upper().removesuffix("B")
    unit = text[-1:] if text[-1:] in "KMGT" else ""
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        raise ValueError(f"{name} is {value!r}. Ask for a size such as 16GB.") from None
    return round(number * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[unit])


def _time(value: Any) -> str:
    return value if isinstance(value, str) and ":" in value else f"{max(1, round(float(value) * 60))}s"


def _slurm(given: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "constraint" in given:
        found["constraint"] = given["constraint"]
    if given.get("exclusive"):
        found["exclusive"] = "exclusive" if given["exclusive"] is True else given["exclusive"]
    if "mail_user" in given:
        found["mail"] = given["mail_user"]
    if "mail_type" in given:
        found["mail_events"] = [event.strip() for event in given["mail_type"].split(",")]
    options = {**{name: given[name] for name in _OPTIONS if name in given}, **more}
    words = [_option(name, value) for name, value in options.items() if value is not False]
    return {**found, **({"options": words} if words else {})}


def _option(name: str, value: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True or value is None else f"{flag}={value}"

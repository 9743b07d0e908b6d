"""The words of dask-jobqueue, and what they are in the lab. Pure: values in, values out.

https://jobqueue.dask.org/en/latest/api.html, version 0.9. There a job has `processes` workers; here each of them is a job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import parse_size

#: A word -> the lab's.
_SAME = {"walltime": "time", "queue": "partition", "project": "account", "job_name": "name"}
#: A word of earlier versions -> that of today.
_OLDER = {"job_extra": "job_extra_directives", "env_extra": "job_script_prologue", "extra": "worker_extra_args"}
#: A word that changes nothing -> why.
NO_EFFECT = {
    "log_directory": "The lab keeps what a worker prints: `carrel logs JOB`.",
    "shared_temp_directory": "Keys travel with the workers' calls, and lie in no directory.",
    "shebang": "The lab starts workers by no script.",
    "nanny": "The lab watches its jobs, and `scale` or `adapt` replaces a worker that has ended.",
    "job_directives_skip": "The lab writes no directives.",
    "header_skip": "The lab writes no directives.",
}
#: A word that is refused -> what to do instead.
REFUSED = {
    "python": "Workers have the Python of this program; image=… is another one.",
    "worker_command": "Workers are started by the lab. worker_options=… are those of distributed.Worker.",
    "config_name": "jobqueue.yaml is not read. Give its values to CarrelCluster(…).",
    "scheduler_cls": "The scheduler keeps its pages from other users. scheduler_options=… are its options.",
    "job_cls": "Workers are jobs of the lab. Leave it out.",
}
#: Words that are neither the lab's nor Dask's.
_TAKEN = ("cores", "processes", "job_cpu", "job_mem", "death_timeout", "local_directory", "interface", "protocol")
WORDS = frozenset([*_SAME, *_OLDER, *_OLDER.values(), *NO_EFFECT, *REFUSED, *_TAKEN])
_EXPORT = re.compile(r"export\s+([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Arguments of `dask worker` that are options of its class.
_ARGUMENTS = {"--lifetime": "lifetime", "--lifetime-stagger": "lifetime_stagger"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is asked for, in the lab's words and in those of Dask's own classes."""

    #: Options of an executor.
    options: dict[str, Any] = field(default_factory=dict)
    #: Options of `distributed.Worker`, and of both it and the scheduler.
    worker: dict[str, Any] = field(default_factory=dict)
    interface: str | None = None
    #: Workers that were one job of dask-jobqueue's.
    processes: int = 1
    #: What changes nothing, in sentences.
    warnings: Sequence[str] = ()


def said_by(words: Mapping[str, Any], options: Mapping[str, Any]) -> Said:
    """Return what words of dask-jobqueue and options of the lab ask for together. Raises `Invalid`."""
    given = {_OLDER.get(name, name): value for name, value in words.items() if value not in (None, [], {}, ())}
    for name in REFUSED.keys() & given.keys():
        raise Invalid(f"{name} means nothing in the lab.", remedy=REFUSED[name])
    found = {name: value for name, value in options.items() if value is not None}
    for name, ours in _SAME.items():
        if name in given:
            _put(found, ours, given[name], name)
    if str(given.get("protocol", "tls")).removesuffix("://") != "tls":
        raise Invalid(f"protocol is {given['protocol']!r}.", remedy="Leave it out: scheduler and workers speak TLS.")
    worker: dict[str, Any] = {name: given[name] for name in ("death_timeout", "local_directory", "interface") if name in given}
    worker |= _arguments(given.get("worker_extra_args", ()))
    processes = int(given.get("processes", 1))
    _share(found, worker, given, processes)
    if "job_script_prologue" in given:
        found["variables"] = _variables(given["job_script_prologue"]) | found.get("variables", {})
    if "job_extra_directives" in given:
        _put(found, "slurm", {"options": _directives(given["job_extra_directives"])}, "job_extra_directives")
    told = [f"{name} changes nothing. {why}" for name, why in NO_EFFECT.items() if name in given]
    return Said(options=found, worker=worker, interface=given.get("interface"), processes=processes, warnings=told)


def _put(found: dict[str, Any], ours: str, value: Any, theirs: str) -> None:
    if found.setdefault(ours, value) != value:
        raise Invalid(f"{theirs} is {value!r}, and {ours} is {found[ours]!r}.", remedy="They are the same: say one of them.")


def _share(found: dict[str, Any], worker: dict[str, Any], given: Mapping[str, Any], processes: int) -> None:
    """Each process is a worker: it has its part of what a job of dask-jobqueue's has."""
    if processes < 1:
        raise Invalid(f"processes is {processes}.", remedy="Ask for 1 or more.")
    if "cores" in given:
        _put(found, "cpus", int(given["cores"]), "cores")
    threads = -(-found.get("cpus", 1) // processes)
    worker["nthreads"] = threads
    found["cpus"] = -(-int(given["job_cpu"]) // processes) if "job_cpu" in given else threads
    if "memory" in found:
        worker["memory_limit"] = parse_size(found["memory"]) // processes
    if "job_mem" in given:
        found["memory"] = given["job_mem"]
    if processes > 1:
        if "memory" in found:
            found["memory"] = f"{parse_size(found['memory']) // processes >> 20}M"
        if (found.get("gpus") or 0) % processes:
            raise Invalid(
                f"gpus is {found['gpus']}, and processes is {processes}: a GPU cannot be shared out.",
                remedy="Each process is a worker with GPUs of its own: ask for a multiple, or for one process.",
            )
        if found.get("gpus"):
            found["gpus"] //= processes


def _variables(lines: Sequence[str]) -> dict[str, str]:
    """Lines of shell that set variables, as variables: workers are started by no shell."""
    found: dict[str, str] = {}
    for line in lines:
        match = _EXPORT.fullmatch(line.strip())
        words = shlex.split(match[2]) if match is not None else []
        if match is None or len(words) > 1 or "$" in match[2] or "`" in match[2]:
            raise Invalid(
                f"job_script_prologue has the line {line!r}, and workers are started by no shell.",
                remedy="Lines `export NAME=VALUE` are taken; else give variables=…, image=…, or initializer=… (a function).",
            )
        found[match[1]] = words[0] if words else ""
    return found


def _directives(given: Sequence[str] | Mapping[str, str]) -> list[str]:
    """Options of sbatch. Only a partition of a cluster takes them."""
    words = [f"{name} {value}".strip() for name, value in given.items()] if isinstance(given, Mapping) else list(given)
    for word in words:
        if not word.startswith("--"):
            raise Invalid(f"job_extra_directives has {word!r}.", remedy="Write options as sbatch's long ones: --nice=100.")
    return [re.sub(r"^(--[\w-]+)\s+", r"\1=", word) for word in words]


def _arguments(given: Sequence[str]) -> dict[str, Any]:
    """Arguments of `dask worker` as options of its class."""
    words = [part for word in given for part in shlex.split(str(word).replace("=", " ", 1))]
    found: dict[str, Any] = {}
    while words:
        name = words.pop(0)
        option = _ARGUMENTS.get(name)
        if option is None or not words:
            raise Invalid(
                f"worker_extra_args has {name}.",
                remedy="--lifetime and --lifetime-stagger are taken; worker_options={…} are those of distributed.Worker.",
            )
        found[option] = words.pop(0)
    return found

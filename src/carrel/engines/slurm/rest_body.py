"""The body of a submission to slurmrestd: the same job as sbatch would make of its arguments. Pure.

Only what was tried against sbatch, and makes the same job with the same variables, is put into a body. For everything else there
is no body, and the job is sbatch's. The bodies are those of `API`; later versions of the interface say many things otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The version of slurmrestd's interface that is spoken here (Slurm 22.05).
API = "v0.0.38"

#: Options of sbatch with a value, and what they are called in a body. Some of sbatch's set two things.
_KEYS: dict[str, tuple[str, ...]] = {
    "job-name": ("name",),
    "array": ("array",),
    "comment": ("comment",),
    "chdir": ("current_working_directory",),
    "output": ("standard_output",),
    "open-mode": ("open_mode",),
    "partition": ("partition",),
    "qos": ("qos",),
    "account": ("account",),
    "time": ("time_limit",),
    "time-min": ("time_minimum",),
    "nodes": ("nodes",),
    "cpus-per-task": ("cpus_per_task", "minimum_cpus_per_node"),
    "mem": ("memory_per_node",),
    "gres": ("gres",),
    "constraint": ("constraints",),
    "prefer": ("prefer",),
    "exclusive": ("exclusive",),
    "exclude": ("exclude_nodes",),
    "reservation": ("reservation",),
    "licenses": ("licenses",),
    "begin": ("begin_time",),
    "nice": ("nice",),
    "wckey": ("wckey",),
    "mail-user": ("mail_user",),
    "mail-type": ("mail_type",),
}
#: What has to be there: the daemon's own directory and its own idea of where output goes are not sbatch's.
_NEEDED = ("name", "current_working_directory", "standard_output")
#: The one number of nodes for which slurmrestd counts tasks and processors as sbatch does.
_ONE_NODE = "1-1"
#: Options without a value, and what they are.
_FLAGS: dict[str, dict[str, object]] = {
    "parsable": {},
    "export=ALL": {},
    "requeue": {"requeue": True},
    "no-requeue": {"no_requeue": True},
    "exclusive": {"exclusive": "exclusive"},
}
#: Limits that sbatch passes on (slurm.conf(5), PropagateResourceLimits), in slurmctld's words.
LIMITS = ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS")
#: How Slurm writes that there is no limit.
_NO_LIMIT = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What sbatch passes on of the process that calls it."""

    directory: str
    host: str
    umask: int
    #: As of getpriority(2).
    priority: int
    #: Soft limits by name, of `LIMITS`; None: there is no limit.
    limits: Mapping[str, int | None]


def passed_limits(configuration: Mapping[str, str]) -> tuple[str, ...]:
    """Return which limits a site passes on to jobs, from what `scontrol show config` says."""
    named = _words(configuration.get("PropagateResourceLimits", ""))
    but = _words(configuration.get("PropagateResourceLimitsExcept", ""))
    if but:
        return tuple(name for name in LIMITS if name not in but)
    return tuple(name for name in LIMITS if "ALL" in named or name in named)


def _words(text: str) -> set[str]:
    words = {word.strip().upper().removeprefix("RLIMIT_") for word in text.split(",")}
    return words - {"", "(NULL)"}


def submission(arguments: Sequence[str], script: str, *, environ: Mapping[str, str], caller: Caller) -> bytes | None:
    """Return the body with which slurmrestd makes the job that sbatch would make; None: it would not be the same one.

    `environ` are the variables with which sbatch would be called: `caller`'s are added as sbatch adds them.
    """
    job: dict[str, object] = {"standard_input": "/dev/null"}
    for argument in arguments:
        told = _told(argument)
        if told is None or any(key in job and job[key] != value for key, value in told.items()):
            return None
        job |= told
    if any(key not in job for key in _NEEDED):
        return None
    job["environment"] = {**environ, **_added(caller, cpus=job.get("cpus_per_task"))}
    try:
        return json.dumps({"job": job, "script": script}, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # bytes that are no text: JSON cannot hold them
        return None


def _told(argument: str) -> dict[str, object] | None:
    """Return what one argument becomes; None when it cannot be said."""
    words = argument.removeprefix("--")
    if words == argument:
        return None
    if words in _FLAGS:
        return _FLAGS[words]
    name, equals, value = words.partition("=")
    if not equals or not value or name not in _KEYS or "\0" in value:
        return None
    if name in ("chdir", "output") and not value.startswith("/"):
        return None
    if name == "nodes" and value != _ONE_NODE:
        return None
    return dict.fromkeys(_KEYS[name], value)


def _added(caller: Caller, *, cpus: object) -> dict[str, str]:
    limits = {f"SLURM_RLIMIT_{name}": str(_NO_LIMIT if limit is None else limit) for name, limit in sorted(caller.limits.items())}
    return {
        "SLURM_SUBMIT_DIR": caller.directory,
        "SLURM_SUBMIT_HOST": caller.host,
        "SLURM_UMASK": f"0{caller.umask & 0o777:03o}",
        "SLURM_PRIO_PROCESS": str(caller.priority),
        **({"SLURM_CPUS_PER_TASK": str(cpus)} if cpus is not None else {}),
        **limits,
    }

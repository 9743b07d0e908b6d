"""Options of sbatch that a task may pass on as they are: a closed list, and why the others are not on it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from carrel.core.domain.errors import Invalid

#: Options with a value.
WITH_VALUE = frozenset(
    {
        "acctg-freq", "batch", "bb", "begin", "core-spec", "cores-per-socket", "cpu-freq",
        "cpus-per-gpu", "deadline", "delay-boot", "distribution", "exclude", "extra-node-info", "gpu-bind", "gpu-freq",
        "gpus-per-socket", "gpus-per-task", "gres-flags", "hint", "licenses", "mcs-label", "mem-bind", "mem-per-cpu",
        "mem-per-gpu", "mincpus", "network", "nodelist", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket",
        "power", "prefer", "priority", "profile", "propagate", "sockets-per-node", "switches", "thread-spec",
        "threads-per-core", "time-min", "tmp", "wait-all-nodes", "wckey",
    }
)  # fmt: skip
#: Options that may have a value.
WITH_OPTIONAL_VALUE = frozenset({"nice", "no-kill"})
#: Options without one.
FLAGS = frozenset({"contiguous", "overcommit", "oversubscribe", "spread-job", "use-min-nodes", "reboot"})

#: Options that a task sets by other words, or that are the lab's own business; the short form stands for the long one.
_TAKEN: dict[str, str] = {
    **dict.fromkeys(("partition", "qos", "account", "nodes", "constraint", "reservation"), "{}"),
    "time": "time",
    "mem": "memory",
    "cpus-per-task": "cpus",
    "gres": "gpus and gpu_type",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "ntasks-per-node": "tasks_per_node",
    "exclusive": "exclusive",
    "mail-user": "mail",
    "mail-type": "mail_events",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "signal": "warning",
    "array": "array",
    "dependency": "dependency",
}
_OURS = {
    "job-name": "gives it the task's name",
    "comment": "finds its jobs by it",
    "output": "keeps the log",
    "error": "keeps the log",
    "input": "starts the command",
    "open-mode": "keeps the log",
    "chdir": "chooses the working directory",
    "export": "sets the environment",
    "export-file": "sets the environment",
    "get-user-env": "sets the environment",
    "uid": "decides who a job runs as",
    "gid": "decides who a job runs as",
    "wrap": "writes the script",
    "container": "starts the command",
    "container-id": "starts the command",
    "ignore-pbs": "writes the script",
    "parsable": "reads the answer",
    "quiet": "reads the answer",
    "verbose": "reads the answer",
    "help": "reads the answer",
    "usage": "reads the answer",
    "version": "reads the answer",
    "test-only": "reads the answer",
    "wait": "waits by itself",
    "hold": "decides when a job may start",
    "kill-on-invalid-dep": "decides what becomes of a job",
    "clusters": "knows one cluster",
    "cluster": "knows one cluster",
    "cluster-constraint": "knows one cluster",
    "bbf": "stages files",
    "nodefile": "chooses nodes by name (--nodelist)",
}
_SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks",
    "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec", "s": "oversubscribe",
    "t": "time", "u": "usage", "V": "version", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip

PASSED = WITH_VALUE | WITH_OPTIONAL_VALUE | FLAGS


def check_passed(options: Iterable[str]) -> None:
    """Raise `Invalid`, with the nearest thing that would do, for the first of `options` that may not be passed on."""
    seen: set[str] = set()
    for option in options:
        name, equals, value = option.partition("=")
        long = name.removeprefix("--")
        if not name.startswith("--") or not long:
            raise _not_long(option)
        _check_known(long)
        if long in seen:
            raise Invalid(f"--{long} is given twice.", remedy="Slurm would take the last one; keep that.")
        seen.add(long)
        if long in WITH_VALUE and not value:
            raise Invalid(f"--{long} has no value.", remedy=f"Write --{long}=VALUE, as one word.")
        if equals and (long in FLAGS or not value):
            raise Invalid(f"{option!r} has a value that --{long} does not take.", remedy=f"Write --{long}.")
        if not value.isprintable():
            raise Invalid(f"The value of --{long}, {value!r}, has characters that cannot be printed.", remedy="Leave them out.")


def _check_known(name: str) -> None:
    if name in PASSED:
        return
    if name in _TAKEN:
        word = _TAKEN[name].format(name)
        raise Invalid(f"--{name} is not passed on to Slurm by itself.", remedy=f"Set {word} in the task.")
    if name in _OURS:
        raise Invalid(f"--{name} cannot be passed on to Slurm: the lab {_OURS[name]}.", remedy="Leave it out.")
    near = difflib.get_close_matches(name, [*PASSED, *_TAKEN], n=1, cutoff=0)[0]
    hint = f"--{near}" if near in PASSED else _TAKEN[near].format(near) + " in the task"
    raise Invalid(
        f"--{name} is not an option that can be passed on to Slurm.",
        remedy=f"Did you mean {hint}? Possible are: {', '.join(sorted(PASSED))}.",
    )


def _not_long(option: str) -> Invalid:
    long = _SHORT.get(option[1:2]) if option.startswith("-") else None
    if long in PASSED:
        return Invalid(f"{option!r} is a short option.", remedy=f"Write --{long}, with =VALUE where it has one.")
    if long is not None:
        try:
            _check_known(long)
        except Invalid as error:
            return Invalid(f"{option!r} is --{long}. {error.message}", remedy=error.remedy)
    near = difflib.get_close_matches(option.lstrip("-").partition("=")[0], [*PASSED, *_TAKEN], n=1, cutoff=0)
    hint = f"Did you mean --{near[0]}? " if near else ""
    return Invalid(f"{option!r} is not an option of sbatch.", remedy=f"{hint}Options begin with two dashes, such as --nice=100.")

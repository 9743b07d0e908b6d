"""How processes are started on all nodes of a job: steps inside its allocation (srun(1))."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from carrel.core.domain.launch import Launch
from carrel.core.domain.task import Launcher
from carrel.node.runner.group.plan import Allocation

#: What srun may be asked to speak with the processes, the best first.
_PMI = ("pmix", "pmi2")
#: Variables of the batch script that srun goes by, or that say what it would get otherwise.
_NEEDED = re.compile(r"SLURM_(?:CONF|JOB_?ID|JOB_NODELIST|NODELIST|JOB_NUM_NODES|NNODES|CLUSTER_NAME|WORKING_CLUSTER)")
#: Seconds that a command may take which only asks.
_PATIENCE = 60


def allocation_of(launch: Launch, environ: Mapping[str, str]) -> Allocation:
    """Return how processes are started on the nodes of the job that this is part of."""
    mpi = launch.task.launcher is Launcher.MPI
    kind = _pmi(launch, environ) if mpi else ""
    return Allocation(
        each_node=step_arguments(launch, tasks_per_node=1),
        each_process=step_arguments(launch, tasks_per_node=launch.task.tasks_per_node, mpi=kind) if kind else (),
        variables={name: value for name, value in environ.items() if _NEEDED.fullmatch(name)},
        nodes=_nodes(environ) if mpi and not kind else (),
    )


def step_arguments(launch: Launch, *, tasks_per_node: int, mpi: str = "none") -> tuple[str, ...]:
    """Return srun with the arguments of a step that has all of the job's nodes, and on each of them all that the job has."""
    wanted = launch.resources
    gres = ":".join(part for part in ("gres", "gpu", wanted.gpu_type or "", str(wanted.gpus)) if part)
    return (
        "srun",
        f"--nodes={wanted.nodes}",
        f"--ntasks={wanted.nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={max(1, wanted.cpus // tasks_per_node)}",
        f"--gres={gres.removeprefix('gres:') if wanted.gpus else 'none'}",
        # Beside the runner, which is a step of its own.
        *("--overlap", "--overcommit", "--mem=0", f"--mpi={mpi}", "--export=ALL"),
        # The leader ends the processes, of which it knows more.
        *("--kill-on-bad-exit=0", "--wait=0", "--input=none", "--unbuffered", "--quiet"),
    )


def _pmi(launch: Launch, environ: Mapping[str, str]) -> str:
    """The best that this Slurm offers and that works; "" when there is none."""
    _, answer = _ask(["srun", "--mpi=list"], environ)
    # A plugin is listed also where the library that it needs is not installed, so it is tried.
    return next(
        (
            kind
            for kind in _PMI
            if kind in answer.split() and _ask([*step_arguments(launch, tasks_per_node=1, mpi=kind), "true"], environ)[0] == 0
        ),
        "",
    )


def _nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    _, answer = _ask(["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")], environ)
    return tuple(answer.split())


def _ask(command: list[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code, and what was said."""
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 1, ""
    return done.returncode, done.stdout + done.stderr  # older ones answer on standard error

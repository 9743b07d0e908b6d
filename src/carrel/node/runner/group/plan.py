"""What a group of processes is, as the runner writes it down for its leader and agents; the variables of each process. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.core.domain.launch import Launch
from carrel.core.domain.task import Launcher

#: Where a process that torchrun starts is to write, as it stands in its variables until its command begins.
RANKS = "CARREL_RANKS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What an engine has for a job on several nodes."""

    #: Starts the arguments behind it once on each node, in the order of the nodes.
    each_node: tuple[str, ...]
    #: Starts the arguments behind it once for each process, with PMI; () where the cluster speaks none.
    each_process: tuple[str, ...] = ()
    #: Variables that these two need.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Names of the nodes, the first one first.
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group, complete in itself. Its file holds the job's token, in the variables."""

    #: "<job>.<attempt>"
    name: str
    #: Opens the connections between leader and agents.
    secret: str
    command: str
    directory: str
    variables: Mapping[str, str]
    launcher: Launcher
    nodes: int
    tasks_per_node: int
    #: The root of the image in which they run; "": there is none.
    image: str = ""
    #: What agents on several nodes see, with the image, as JSON; None: as their node is, or what their leader sees.
    walls: Mapping[str, Any] | None = None
    #: Starts the agents; () where there is one, beside the leader.
    step: tuple[str, ...] = ()
    #: True when each agent has one process, which speaks PMI.
    pmi: bool = False
    #: Where mpirun finds its nodes; () for this one.
    hosts: tuple[str, ...] = ()
    #: Seconds between two reports of what the processes use.
    sample: float = 5.0
    #: Bytes that those on one node may use, where their agent has to see to it; 0 where somebody else does.
    memory: int = 0

    @property
    def size(self) -> int:
        """Processes in the group."""
        return self.nodes * self.tasks_per_node

    @property
    def agents(self) -> int:
        """Agents that the leader waits for."""
        if self.pmi:
            return self.size
        return self.nodes if self.step else 1

    @property
    def processes(self) -> int:
        """Processes that each agent starts itself."""
        return self.tasks_per_node if self.launcher is Launcher.NONE else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the processes of a group find each other."""

    address: str
    port: int
    #: From 0; each try has another port.
    number: int = 0


def plan_group(
    launch: Launch, *, secret: str, directory: str, variables: Mapping[str, str], allocation: Allocation | None
) -> GroupPlan:
    """Return the group of a launch; `variables` are those of its command."""
    task, nodes = launch.task, launch.resources.nodes
    shared = dict(variables)
    if "OMP_NUM_THREADS" not in task.variables:
        shared["OMP_NUM_THREADS"] = str(max(1, launch.resources.cpus // task.tasks_per_node))
    pmi = allocation is not None and task.launcher is Launcher.MPI and bool(allocation.each_process)
    step: tuple[str, ...] = ()
    if allocation is not None and pmi:
        step = allocation.each_process
    elif allocation is not None and nodes > 1 and task.launcher is not Launcher.MPI:
        step = allocation.each_node
    return GroupPlan(
        name=f"{launch.job_id}.{launch.attempt}",
        secret=secret,
        command=task.command,
        directory=directory,
        variables=shared,
        launcher=task.launcher,
        nodes=nodes,
        tasks_per_node=task.tasks_per_node,
        step=step,
        pmi=pmi,
        hosts=allocation.nodes if allocation is not None and nodes > 1 else (),
        sample=launch.limits.sample,
        # With an agent for each process none of them sees a node's.
        memory=launch.resources.memory + launch.limits.suspended if step and not pmi else 0,
    )


def rank_variables(plan: GroupPlan, meeting: Rendezvous, *, node: int, local: int) -> dict[str, str]:
    """Return the variables that tell a process its place, by the names that PyTorch, Lightning and Accelerate read."""
    return {
        "RANK": str(node * plan.tasks_per_node + local),
        "WORLD_SIZE": str(plan.size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(plan.tasks_per_node),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
    }


def torchrun_arguments(plan: GroupPlan, meeting: Rendezvous, *, node: int, shell: list[str]) -> list[str]:
    """Return the arguments of torchrun on one node; `shell` runs any command.

    Which node has the store is said: torchrun's own guess goes by the name of the machine, which an address need not be.
    """
    endpoint = f"[{meeting.address}]" if ":" in meeting.address else meeting.address
    return [
        "torchrun",
        f"--nnodes={plan.nodes}",
        f"--nproc-per-node={plan.tasks_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}:{meeting.port}",
        f"--rdzv-id={plan.name}.{meeting.number}",
        f"--rdzv-conf=is_host={int(node == 0)}",
        "--max-restarts=0",
        "--no-python",
        *shell,
    ]


def torchrun_command(command: str) -> str:
    """Return what a process of torchrun's runs: it finds its place to write, and goes on as the command."""
    return f'printf %s "$RANK" > "${RANKS}/$LOCAL_RANK.rank"; exec > "${RANKS}/$LOCAL_RANK" 2>&1; unset {RANKS}\n{command}'


def mpirun_arguments(plan: GroupPlan, shell: list[str]) -> list[str]:
    """Return the arguments of mpirun(1), which starts all processes: Open MPI's words where there are several nodes."""
    hosts = ["--host", ",".join(f"{host}:{plan.tasks_per_node}" for host in plan.hosts)] if plan.hosts else []
    return ["mpirun", "-n", str(plan.size), *hosts, *shell]


def mpirun_command(plan: GroupPlan, meeting: Rendezvous, variables: Mapping[str, str]) -> str:
    """Return what a process of mpirun's runs. Its variables stand in the command: mpirun takes few along to other nodes."""
    own = {"CUDA_VISIBLE_DEVICES", "TMPDIR"} if plan.hosts else set()
    told = rank_variables(plan, meeting, node=0, local=0)
    said = {**variables, **{name: told[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(said.items()) if name not in own]
    exports += [
        'export RANK="${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-0}}}"',
        'export LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}"',
        'export NODE_RANK="${OMPI_COMM_WORLD_NODE_RANK:-0}"'
        if not plan.hosts
        else f"export NODE_RANK=$((RANK / {plan.tasks_per_node}))",
    ]
    return "\n".join([*exports, plan.command])

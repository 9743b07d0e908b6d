"""What a function finds out about the job that it runs in. Standard library only."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from carrel.client.submitit.paths import JobPaths

#: Set while a function runs: the cluster by submitit's name ("carrel", "slurm", "local", "debug").
CLUSTER = "SUBMITIT_EXECUTOR"
#: Number of the job that runs in this process.
DEBUG_JOB = "SUBMITIT_DEBUG_JOB_ID"


class JobEnvironment:
    """The job that runs this function. Raises `RuntimeError` outside of one."""

    def __init__(self) -> None:
        self.cluster = os.environ.get(CLUSTER, "")
        if not self.cluster:
            raise RuntimeError(
                "This process is no job of carrel.submitit's, so it has no JobEnvironment. "
                "Make it inside of the function that is submitted."
            )

    def activated(self) -> bool:
        """Whether this is inside of a job: always."""
        return True

    @property
    def paths(self) -> JobPaths:
        """Files of this task: in the job's outputs, which its caller fetches."""
        folder = Path(os.environ.get("CARREL_OUTPUT_DIR", "outputs")) / "submitit"
        return JobPaths(folder, self.job_id, self.global_rank)

    @property
    def hostname(self) -> str:
        """This machine."""
        return socket.gethostname()

    @property
    def hostnames(self) -> Sequence[str]:
        """Machines of the job, the first first. Of several, those that Slurm names."""
        listed = os.environ.get("SLURM_JOB_NODELIST", "")
        return expand_nodes(listed) if listed and self.num_nodes > 1 else [self.hostname]

    @property
    def job_id(self) -> str:
        """As `Job.job_id`: 12, or 12_3 in an array."""
        if self.array_job_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return self.raw_job_id

    @property
    def raw_job_id(self) -> str:
        """Number of the job in the lab."""
        return os.environ[DEBUG_JOB] if self.cluster == "debug" else os.environ["CARREL_JOB_ID"]

    @property
    def array_job_id(self) -> str | None:
        """Number of the array, or None."""
        return None if self.cluster == "debug" else os.environ.get("CARREL_ARRAY_JOB_ID")

    @property
    def array_task_id(self) -> str | None:
        """Index in the array, or None."""
        return None if self.cluster == "debug" else os.environ.get("CARREL_ARRAY_TASK_ID")

    @property
    def num_tasks(self) -> int:
        """Processes of the job, on all its nodes."""
        return self._number("WORLD_SIZE", 1)

    @property
    def num_nodes(self) -> int:
        """Nodes of the job."""
        return max(1, self.num_tasks // max(1, self._number("LOCAL_WORLD_SIZE", 1)))

    @property
    def node(self) -> int:
        """Number of this node, from 0."""
        return self._number("NODE_RANK", 0)

    @property
    def global_rank(self) -> int:
        """Number of this process among all, from 0."""
        return self._number("RANK", 0)

    @property
    def local_rank(self) -> int:
        """Number of this process on its node, from 0."""
        return self._number("LOCAL_RANK", 0)

    def _number(self, name: str, default: int) -> int:
        if self.cluster == "debug":
            return default
        return int(os.environ.get(f"SUBMITIT_{name}") or os.environ.get(name) or default)

    def __repr__(self) -> str:
        places = (
            ("local_rank", self.local_rank, self.num_tasks // self.num_nodes),
            ("node", self.node, self.num_nodes),
            ("global_rank", self.global_rank, self.num_tasks),
        )
        told = ", ".join(f"{name}={value}({count})" for name, value, count in places)
        return f"JobEnvironment(job_id={self.job_id}, hostname={self.hostname}, {told})"


class TorchDistributedEnvironment:
    """What `torch.distributed` has to know, of this job."""

    def __init__(self) -> None:
        here = JobEnvironment()
        self.rank = here.global_rank
        self.world_size = here.num_tasks
        self.local_rank = here.local_rank
        self.local_world_size = here.num_tasks // here.num_nodes
        #: The lab chooses both where a job has several processes. A single one needs no more than a port of its own.
        self.master_addr = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self.master_port = int(os.environ.get("MASTER_PORT", 0)) or 20000 + sum(here.job_id.encode()) * 7919 % 20000

    def export(self, set_cuda_visible_devices: bool = True, overwrite: bool = False) -> TorchDistributedEnvironment:
        """Set the variables that `init_process_group("env://")` reads, and leave this process the GPU of its local rank.

        Raises `RuntimeError` when one of them has another value, unless `overwrite`.
        """
        wanted = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }
        for name, value in wanted.items():
            if not overwrite and os.environ.get(name, value) != value:
                raise RuntimeError(f"{name} is {os.environ[name]} already, and not {value}. Use export(overwrite=True).")
        os.environ.update(wanted)
        if set_cuda_visible_devices:
            _keep_own_device(os.environ, self.local_rank)
        return self


def _keep_own_device(variables: Mapping[str, str], local_rank: int) -> None:
    devices = [device for device in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    if len(devices) > local_rank:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[local_rank]


def expand_nodes(listed: str) -> list[str]:
    """Return the names in a list of Slurm's (scontrol(1), "hostlist"): ``a[1-3,07],b`` is a1, a2, a3, a07, b.

    Raises `ValueError` for what is none.
    """
    groups, depth, start = [], 0, 0
    for place, sign in enumerate(listed + ","):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and depth == 0:
            groups.append(listed[start:place])
            start = place + 1
    if depth:
        raise ValueError(f'"{listed}" is no list of nodes: a bracket is open.')
    return [name for group in groups for name in _expand_group(group, listed)]


def _expand_group(group: str, listed: str) -> list[str]:
    head, bracket, rest = group.partition("[")
    if not bracket:
        return [group]
    inside, _, tail = rest.partition("]")
    found = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f'"{listed}" is no list of nodes: "{piece}" is neither a number nor a range.')
        numbers = range(int(first), int(last if dash else first) + 1)
        found += [f"{head}{number:0{len(first)}d}{more}" for number in numbers for more in _expand_group(tail, listed)]
    return found

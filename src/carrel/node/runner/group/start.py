"""The runner's side of a group: writes the plan down, and looks at what its leader leaves behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.launch import Launch, Usage
from carrel.core.domain.serial import to_plain
from carrel.core.spool import AttemptDirectory
from carrel.node.runner.group import leader
from carrel.node.runner.group.plan import Allocation, plan_group
from carrel.node.runner.group.report import GroupEnd, read_end, read_use
from carrel.node.runner.tree import read_proc
from carrel.node.runner.variables import base_variables

if TYPE_CHECKING:
    from carrel.node.containment.walls import Walls

#: Seconds that processes on other nodes may take to be stopped.
_STOP = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group whose plan is written."""

    path: Path
    #: What starts its leader.
    arguments: list[str]
    variables: Mapping[str, str]
    #: True when its processes are started by the cluster, out of the runner's sight.
    across: bool

    def use(self) -> Usage:
        """What processes use that are not below the runner, with their GPUs."""
        return read_use(self.path) if self.across else Usage()

    def end(self) -> GroupEnd | None:
        """How it ended, where its leader came to say it."""
        return read_end(self.path)

    def stop(self, pid: int) -> None:
        """Have the leader, process `pid`, stop what runs on other nodes; return when it has."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTSTP)
        deadline = time.monotonic() + _STOP
        while time.monotonic() < deadline:
            stat = read_proc(f"/proc/{pid}/stat")
            if not stat or stat[stat.rfind(")") + 2] in "TZ":
                return
            time.sleep(0.01)


def write_group(
    directory: AttemptDirectory,
    launch: Launch,
    working: Path,
    variables: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    allocate: Callable[[Launch], Allocation] | None,
    walls: Walls | None = None,
) -> Group:
    """Write the plan of the launch's group into the attempt's directory, where all nodes see it.

    `environ` are the variables of the lab; `allocate` says how processes are started on all nodes.

    Where the `walls` show an image, its processes run there. On one node the leader is behind them, and what it starts; on
    several it has to reach the cluster, and each agent builds them on its node.
    """
    inside = walls is not None and walls.view is not None
    # An image has its own MPI, of which the cluster knows nothing.
    alone = allocate is None or (inside and launch.resources.nodes == 1)
    allocation = None if alone or allocate is None else allocate(launch)
    plan = plan_group(launch, secret=secrets.token_hex(32), directory=str(working), variables=variables, allocation=allocation)
    if inside:
        from carrel.node.runner.image import image_place

        assert walls is not None
        plan = replace(plan, image=str(image_place(directory)), walls=asdict(walls) if plan.step else None)
    path = directory.group
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(json.dumps(to_plain(plan)))
    needed = allocation.variables if allocation is not None else {}
    return Group(
        path=path,
        arguments=leader.command(path),
        variables=leader.variables(base_variables(environ), needed),
        across=bool(plan.step),
    )

"""An agent of a group on several nodes whose processes run in an image: it puts itself behind walls, each on its node.

The walls are those that the runner made on the first node. What is a node's own is looked for here: /tmp, the GPUs, and the
driver's libraries, which fit the node's kernel.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.core.spool.trees import remove_tree
from carrel.node.containment.program import read_walls, start_program
from carrel.node.containment.walls import Bind, Walls
from carrel.node.runner.image import DRIVER, driver_of_machine
from carrel.node.runner.walls import gpu_nodes

#: Slurm sends them to each process of a step that it started; the agent inside passes them on.
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def be_inside(plain: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Run the agent behind the walls as they are on this node; return its exit code. When this ends, all of it does."""
    temporary = tempfile.mkdtemp(prefix="carrel-", dir="/tmp")
    try:
        program = start_program(
            walls_here(read_walls(plain), temporary, os.environ.get("CUDA_VISIBLE_DEVICES", "")),
            arguments,
            directory="/",
            variables=os.environ,
        )
        try:
            for number in _PASSED_ON:
                signal.signal(number, lambda got, _frame: program.process.send_signal(got))
            _, said = program.process.communicate()
        finally:
            program.end()
    finally:
        remove_tree(temporary)
    sys.stderr.buffer.write(said)
    return program.process.returncode


def walls_here(walls: Walls, temporary: str, visible: str) -> Walls:
    """Return the walls of the first node as they are on this one, where CUDA_VISIBLE_DEVICES is `visible`."""
    uses_gpus = visible not in ("", "NoDevFiles")
    view = walls.view
    if view is not None:
        kept = [bind for bind in _here(view.binds) if not bind.place.startswith(f"{DRIVER}/")]
        view = replace(view, binds=(*kept, *(driver_of_machine() if uses_gpus else ())))
    devices = tuple(gpu_nodes(None)) if uses_gpus else ()
    return replace(walls, binds=tuple(_here(walls.binds)), view=view, temporary=temporary, devices=devices)


def _here(binds: Sequence[Bind]) -> list[Bind]:
    """Those that are on this node, too: TMPDIR of the first is not."""
    return [bind for bind in binds if Path(bind.source).exists()]

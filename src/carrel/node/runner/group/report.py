"""What a leader leaves beside its plan for the runner: how the group ended, and what it uses.

The processes of the group can write there, too: what is no short file that says one of these counts as nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.launch import Usage
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.spool.foreign import parse_json, read_regular


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The process that failed first."""

    node: str
    #: -1 for a launcher that did not say which of its processes it was.
    rank: int
    #: The exit code, or minus the signal.
    code: int
    #: True when the node does not answer any more.
    lost: bool = False
    #: Bytes that the processes on the node used when they were too many.
    memory: int = 0

    @property
    def where(self) -> str:
        """ "rank 3 on node2"."""
        return f"rank {self.rank} on {self.node}" if self.rank >= 0 else f"the launcher on {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnd:
    """How a group ended: with all processes well where nothing is said."""

    culprit: FirstFailure | None = None
    #: Why the processes could not be started.
    error: str = ""


def write_end(plan: Path, end: GroupEnd) -> None:
    """Write the end of the group whose plan is in the file `plan`."""
    _write(plan.with_suffix(".end"), json.dumps(to_plain(end)))


def read_end(plan: Path) -> GroupEnd | None:
    """Return how the group ended, or None where its leader did not come to write it."""
    with suppress(OSError, ValueError, TypeError):
        return from_plain(GroupEnd, parse_json(read_regular(plan.with_suffix(".end"))))
    return None


def write_use(plan: Path, use: Usage) -> None:
    """Write what the processes use together, where the runner cannot see them."""
    with suppress(OSError):
        _write(plan.with_suffix(".use"), json.dumps(to_plain(use)))


def read_use(plan: Path) -> Usage:
    """Return what they use; nothing where nothing was written."""
    with suppress(OSError, ValueError, TypeError):
        return from_plain(Usage, parse_json(read_regular(plan.with_suffix(".use"))))
    return Usage()


def together(uses: Iterable[Usage]) -> Usage:
    """Return the sum of what is used on several nodes; each GPU counts once, with any number of reports."""
    cpu_seconds, memory = 0.0, 0
    utilization: dict[str, float] = {}
    gpu_memory: dict[str, int] = {}
    sm: dict[str, float] = {}
    energy: dict[str, float] = {}
    for use in uses:
        cpu_seconds, memory = cpu_seconds + use.cpu_seconds, memory + use.memory
        utilization |= use.gpu_utilization
        gpu_memory |= use.gpu_memory
        sm |= use.gpu_sm
        energy |= use.gpu_energy
    return Usage(
        cpu_seconds=cpu_seconds,
        memory=memory,
        gpu_utilization=utilization,
        gpu_memory=gpu_memory,
        gpu_sm=sm,
        gpu_energy=energy,
    )


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)

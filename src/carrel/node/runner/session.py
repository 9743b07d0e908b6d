"""What a runner does for a session while it runs: its memory is watched, and what its user installs is remembered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.domain.units import format_size
from carrel.node.runner.cgroups import JobCgroup
from carrel.node.runner.limits import kill_largest

#: Names the descriptor from which JupyterLab reads what it shows to the user: lines of JSON.
VARIABLE = "CARREL_SESSION_NOTES"


class SessionMemory:
    """Ends the largest process of a session, or notices that the kernel did, and says so with numbers."""

    def __init__(self, launch: Launch, cgroup: JobCgroup | None) -> None:
        self._asked = format_size(launch.resources.memory)
        self._remedy = (
            "Load less at once, shut down kernels that you do not need, or start a session with more: "
            f"--memory {format_size(2 * launch.resources.memory)}."
        )
        self._cgroup = cgroup
        self._killed = 0
        #: Descriptor that the command inherits; None once it has it.
        self.read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def started(self) -> None:
        """The command has its end."""
        os.close(self.read_end)

    def shed(self, pids: Iterable[int], used: int) -> str | None:
        """End the largest of these processes; return what was said of it, None where there is no process."""
        largest = kill_largest(pids)
        if largest is None:
            return None
        size, together = format_size(largest.memory), format_size(used)
        return self._say(f"Process {largest.pid} ({size}) was ended: together {together} of memory were in use")

    def killed_by_kernel(self) -> str | None:
        """Return what was said of processes that the kernel has ended at the limit since this was asked last; None of none."""
        before, self._killed = self._killed, self._cgroup.oom_kills() if self._cgroup else 0
        if self._killed <= before:
            return None
        count = self._killed - before
        return self._say(f"The system ended {'a process' if count == 1 else f'{count} processes'}: all memory was used up")

    def _say(self, fact: str) -> str:
        said = f"{fact}, and this session asked for {self._asked}. {self._remedy}"
        with suppress(OSError):  # JupyterLab is gone, or does not read; the log has it
            os.write(self._write_end, json.dumps({"memory": said}).encode() + b"\n")
        return said


def notes_environment(prefix: Path | None) -> Callable[[], None]:
    """Return what remembers, each time that it is called, what is installed in the environment `prefix` in its lock."""
    from carrel.node.environments.named import note_changes

    def note() -> None:
        with suppress(CarrelError, OSError):  # tried again at the next sample
            if prefix is not None:
                note_changes(prefix)

    return note

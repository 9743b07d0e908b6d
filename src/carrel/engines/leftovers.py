"""Ending what a dead runner left behind.

The command itself dies with its runner (PR_SET_PDEATHSIG, prctl(2)). What it had started does not; those processes still
carry the attempt's own directory in their environment, and are in its cgroup where there was one.

Files can be copied and processes cannot. What a copied attempt says of processes is true of the original's, which may well be
running; so nothing is ended for a copy, nor for an attempt of another machine or of an earlier boot.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from carrel.core.spool import AttemptDirectory, read_claim
from carrel.core.spool.foreign import read_regular
from carrel.node.runner.cgroups import cgroups_below, remove_cgroup
from carrel.node.runner.tree import read_proc

#: Rounds of looking and killing; each finds what was forked during the one before.
_ROUNDS = 20


def kill_leftovers(directory: AttemptDirectory) -> int:
    """Kill every process of the attempt, whose runner must be gone; return how many were found. None is for a copy's sake."""
    claim = read_claim(directory.claim)
    if claim is not None and (claim.copied or claim.elsewhere):
        return 0
    killed: set[int] = set()
    cgroup = _cgroup(directory)
    for _ in range(_ROUNDS):
        found = (_in_cgroup(cgroup) | _by_environment(directory)) - killed
        if not found:
            break
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    if cgroup is not None:
        _remove(cgroup)
    return len(killed)


def _remove(cgroup: Path) -> None:
    """Remove the cgroup as soon as its last processes are out, or leave it: an empty one does no harm."""
    for _ in range(_ROUNDS):
        remove_cgroup(str(cgroup))
        if not cgroup.exists():
            return
        time.sleep(0.01)


def _cgroup(directory: AttemptDirectory) -> Path | None:
    try:
        path = Path(os.fsdecode(read_regular(directory.cgroup).strip()))
    except OSError:
        return None
    inside = path.is_relative_to("/sys/fs/cgroup") and ".." not in path.parts
    return path if inside and path.name.startswith("carrel-") else None


def _in_cgroup(cgroup: Path | None) -> set[int]:
    if cgroup is None:
        return set()
    return {int(pid) for place in cgroups_below(str(cgroup)) for pid in read_proc(f"{place}/cgroup.procs").split()}


def _by_environment(directory: AttemptDirectory) -> set[int]:
    """Return the processes whose CARREL_OUTPUT_DIR lies in the attempt's working directory; see `runner.variables`."""
    mark = b"\0CARREL_OUTPUT_DIR="
    own = os.getuid()
    found: set[int] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != own:
                continue
            _, _, rest = (b"\0" + Path(entry.path, "environ").read_bytes()).partition(mark)
        except OSError:
            continue
        if rest and _lies_in(os.fsdecode(rest.partition(b"\0")[0]), directory):
            found.add(int(entry.name))
    return found


def _lies_in(path: str, directory: AttemptDirectory) -> bool:
    """Return whether `path` is below the working directory, also where the home has got another name since."""
    if path.startswith(f"{directory.work}/"):
        return True
    end = f"/{directory.path.parent.name}/{directory.path.name}"
    before, found, _ = path.rpartition(f"{end}/{directory.work.name}/")
    try:
        return bool(found) and os.path.samefile(before + end, directory.path)  # noqa: PTH121 - of what may not be there
    except OSError:
        return False

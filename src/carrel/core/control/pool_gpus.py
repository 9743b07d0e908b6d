"""What workers of pools have of GPUs now: brokers say so, each in its `status` (`carrel.node.leases.protocol`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGpus:
    """What one worker has, or waits for."""

    #: GPUs that it has borrowed.
    devices: tuple[str, ...] = ()
    #: Why its call waits for one, with its place in line; "": it does not wait.
    waits: str = ""


#: What a worker has that no broker speaks of.
NOTHING = WorkerGpus()


def gpus_of_workers(statuses: Iterable[Mapping[str, Any]]) -> Mapping[int, WorkerGpus]:
    """Return what jobs have, by their numbers; a job that borrows nothing now is not among them."""
    devices: dict[int, list[str]] = {}
    waits: dict[int, str] = {}
    for status in statuses:
        for row in status.get("leases", ()):
            # A lease that is paused, or was, is still the call's: its devices are others' until it goes on.
            if row.get("state") == "paused":
                waits.setdefault(row["job"], "paused, so that others may compute")
            else:
                devices.setdefault(row["job"], []).extend(row["devices"])
        for row in status.get("queue", ()):
            position, message = row.get("position") or 1, row.get("message") or ""
            waits.setdefault(row["job"], f"#{position} in line for a GPU{': ' if message else ''}{message}")
    known = {job for job in (*devices, *waits) if isinstance(job, int)}
    return {job: WorkerGpus(devices=tuple(devices.get(job, ())), waits=waits.get(job, "")) for job in known}

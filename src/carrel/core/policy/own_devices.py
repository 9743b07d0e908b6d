"""Jobs whose GPU state can come back to the devices only that it has left: they go on there or wait for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from carrel.core.domain.placement import Start


def on_own_devices(
    starts: Sequence[Start], own: Mapping[int, Sequence[str]], taken: Collection[str], types: Mapping[str, str]
) -> tuple[Sequence[Start], Collection[int]]:
    """Return `starts` with each job in `own` on the devices that are named there, and the jobs that wait for theirs.

    `taken` are devices of jobs that run already. Where another start was to have one of them, the two change devices if these
    are of one type; else the job waits. Who comes first goes first. Its devices are free again then.
    """
    given = {start.job_id: list(start.devices) for start in starts}
    waits: set[int] = set()
    settled = set(taken)
    for job_id in [start.job_id for start in starts if start.job_id in own]:
        if _move(given, job_id, own[job_id], settled, types):
            settled.update(own[job_id])
        else:
            waits.add(job_id)
            del given[job_id]
    return [replace(start, devices=tuple(given[start.job_id])) for start in starts if start.job_id in given], waits


def _move(given: dict[int, list[str]], job_id: int, own: Sequence[str], taken: Collection[str], types: Mapping[str, str]) -> bool:
    if not set(own).isdisjoint(taken):
        return False
    mine = given[job_id]
    spare = [uuid for uuid in mine if uuid not in own]
    changes: list[tuple[int, str, str]] = []
    for uuid in [uuid for uuid in own if uuid not in mine]:
        other = next((one for one, devices in given.items() if uuid in devices), None)
        instead = next((one for one in spare if types.get(one) == types.get(uuid)), None)
        if instead is None:
            return False
        spare.remove(instead)
        if other is not None:
            changes.append((other, uuid, instead))
    for other, uuid, instead in changes:
        given[other][given[other].index(uuid)] = instead
    given[job_id] = list(own)
    return True

"""Why each job waits, in one sentence with numbers; made only for the jobs that somebody asks about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import overload

from carrel.domain.job import Reason
from carrel.domain.node import Node
from carrel.domain.placement import Hold
from carrel.domain.resources import Resources
from carrel.domain.units import format_duration, format_size
from carrel.policy.estimate import Forecast
from carrel.policy.limits import MAX_GPUS, MAX_JOBS
from carrel.policy.rooms import Room
from carrel.policy.situation import BEGIN_TIME, INVALID_QOS, PRIORITY, UNAVAILABLE, Held, Situation

#: How many drained nodes a sentence names before it counts the rest.
NAMED = 3


class Holds(Sequence[Hold]):
    """The held jobs in the order of the queue. Each `Hold` is made when it is looked at.

    Making one estimates its start and those of all ahead of it, once. Safe to read from several threads.
    """

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._places: dict[int, int] | None = None
        self._estimates: list[float | None] = []
        self._forecast: Iterator[float | None] | None = None
        self._lock = Lock()
        self._shortages: dict[tuple[int, str | None, int, int], str] = {}

    def __len__(self) -> int:
        return len(self._situation.held)

    @overload
    def __getitem__(self, index: int) -> Hold: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hold, ...]: ...
    def __getitem__(self, index: int | slice) -> Hold | tuple[Hold, ...]:
        if isinstance(index, slice):
            return tuple(self._hold(place) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"hold {index} of {len(self)}")
        return self._hold(place)

    def __iter__(self) -> Iterator[Hold]:
        return map(self._hold, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Holds({', '.join(str(held.job.id) for held in self._situation.held)})"

    def of(self, job_id: int) -> Hold | None:
        """Return the hold of one job, or None when it is not held."""
        if self._places is None:
            self._places = {held.job.id: place for place, held in enumerate(self._situation.held)}
        place = self._places.get(job_id)
        return None if place is None else self._hold(place)

    def _hold(self, place: int) -> Hold:
        held, start = self._situation.held[place], self._estimate(place)
        code = self._situation.code(held)
        message = f"{self._cause(held, code, place)}; {self._about(start)}"
        return Hold(job_id=held.job.id, reason=Reason(code=code, message=message), position=place + 1, estimated_start=start)

    def _estimate(self, place: int) -> float | None:
        if place >= len(self._estimates):
            with self._lock:
                if self._forecast is None:
                    self._forecast = Forecast(self._situation).starts()
                self._estimates.extend(islice(self._forecast, max(0, place + 1 - len(self._estimates))))
        return self._estimates[place]

    def _about(self, start: float | None) -> str:
        if start is None:
            return "start unknown"
        wait = start - self._situation.now
        return f"about {format_duration(wait)}" if wait >= 0.5 else "any moment now"

    def _cause(self, held: Held, code: str, ahead: int) -> str:
        if code == INVALID_QOS:
            return f'QoS "{held.job.qos}" does not exist in this lab'
        if code == BEGIN_TIME:
            return "pauses before it is tried again"
        if code in (MAX_JOBS, MAX_GPUS):
            return _over_limit(held, code)
        if code == UNAVAILABLE:
            return _unavailable(held.job.resources, self._situation)
        shortage = self._shortage(held.job.resources)
        if code == PRIORITY:
            return f"{_count(ahead, 'job')} {'is' if ahead == 1 else 'are'} ahead of it; {shortage}"
        return shortage

    def _shortage(self, wanted: Resources) -> str:
        key = (wanted.gpus, wanted.gpu_type, wanted.cpus, wanted.memory)
        text = self._shortages.get(key)
        if text is None:
            text = self._shortages[key] = _shortage(wanted, self._situation)
        return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _gpus(wanted: Resources) -> str:
    kind = f" ({wanted.gpu_type})" if wanted.gpu_type else ""
    return f"{_count(wanted.gpus, 'GPU')}{kind}"


def _at_most(number: int) -> str:
    if number <= 0:
        return "none is free"
    return f"at most {number} {'is' if number == 1 else 'are'} free"


def _shortage(wanted: Resources, situation: Situation) -> str:
    """Name the first thing that no node has enough of: GPUs, then cpus, then memory."""
    rooms = situation.rooms
    most_gpus = max((room.free_of(wanted.gpu_type) for room in rooms), default=0)
    if most_gpus < wanted.gpus:
        return f"needs {_gpus(wanted)} on one node; {_at_most(most_gpus)}"
    where = "one node"
    if wanted.gpus:
        rooms = [room for room in rooms if room.free_of(wanted.gpu_type) >= wanted.gpus]
        where = f"a node with {_gpus(wanted)}"
    most_cpus = max((room.cpus for room in rooms), default=0)
    if most_cpus < wanted.cpus:
        return f"needs {_count(wanted.cpus, 'CPU')} on {where}{' free' if wanted.gpus else ''}; {_at_most(most_cpus)}"
    most_memory = max((room.memory for room in rooms if room.cpus >= wanted.cpus), default=0)
    if most_memory < wanted.memory:
        free = f"at most {format_size(most_memory)} is free" if most_memory > 0 else "none is free"
        where = (
            f"{where} and {_count(wanted.cpus, 'CPU')} free" if wanted.gpus else f"a node with {_count(wanted.cpus, 'CPU')} free"
        )
        return f"needs {format_size(wanted.memory)} of memory on {where}; {free}"
    return _kept(wanted, situation)


def _kept(wanted: Resources, situation: Situation) -> str:
    """There is room, but only where it would delay the first in line."""
    what = f"{_gpus(wanted)} and {_count(wanted.cpus, 'CPU')}" if wanted.gpus else _count(wanted.cpus, "CPU")
    if situation.reservation is None:  # Cannot be: without a reservation whatever fits is started.
        return f"needs {what}"
    room, job = situation.reservation.room, situation.reservation.job
    return f"needs {what} for {format_duration(wanted.time)}; what is free on {room.name} is kept for job {job.id}"


def _over_limit(held: Held, code: str) -> str:
    limit = held.limit
    if limit is None:  # Cannot be: only a limit gives these codes.
        return "over a limit"
    name, wanted = limit.qos.name, held.job.resources
    if wanted.gpus > limit.max_gpus and code == MAX_GPUS:
        return f'needs {_gpus(wanted)}; QoS "{name}" allows {int(limit.max_gpus)} per user'
    if code == MAX_JOBS:
        text = f"its owner holds {limit.jobs} of at most {_count(int(limit.max_jobs), 'job')}"
        over = limit.jobs >= limit.max_jobs
    else:
        text = f"needs {_gpus(wanted)}; its owner holds {limit.gpus} of at most {_count(int(limit.max_gpus), 'GPU')}"
        over = limit.gpus + wanted.gpus > limit.max_gpus
    text = f'{text} in QoS "{name}"'
    first = limit.closed_by if code == MAX_GPUS and limit.closed_by is not held.job else None
    first = first or limit.claimed_by
    return text if over or first is None else f"{text}, and their job {first.id} is ahead of it"


def _unavailable(wanted: Resources, situation: Situation) -> str:
    """Say what keeps the nodes that could run the job from it: drained, withheld, or not there."""
    what = f"needs {_gpus(wanted)}" if wanted.gpus else f"needs {_count(wanted.cpus, 'CPU')}, {format_size(wanted.memory)}"
    nodes = sorted(situation.snapshot.nodes, key=lambda node: node.name)
    drained = [f"{node.name} ({node.drained})" for node in nodes if node.drained is not None and _holds(node, wanted)]
    if drained:
        more = f" and {len(drained) - NAMED} more" if len(drained) > NAMED else ""
        return f"{what} on one node; drained: {', '.join(drained[:NAMED])}{more}"
    withheld = situation.snapshot.withheld
    for node in nodes:
        if node.drained is None and _holds(node, wanted):
            suited = [device for device in node.devices if wanted.gpu_type in (None, device.type)]
            away = sum(device.uuid in withheld for device in suited)
            return f"{what} on one node; {away} of {len(suited)} on {node.name} are withheld (in use elsewhere, or faulty)"
    return f"{what} on one node; no node of the lab has so much"


def _holds(node: Node, wanted: Resources) -> bool:
    """True when the node could hold `wanted` if it were idle, not drained, and nothing on it withheld."""
    types: dict[str, int] = {}
    for device in node.devices:
        types[device.type] = types.get(device.type, 0) + 1
    room = Room(0, node.name, node.cpus, node.memory, {}, 0, node.cpus, node.memory, types)
    return room.could_hold(wanted)

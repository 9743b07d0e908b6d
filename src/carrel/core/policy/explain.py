"""Why each job waits, in one sentence with numbers; made only for the jobs that somebody asks about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import overload

from carrel.core.domain.expectation import Corrections, Expect, NameDays, is_told_in_days
from carrel.core.domain.job import Reason
from carrel.core.domain.node import Node
from carrel.core.domain.placement import Holding, MachineWait, Placement, Wait, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.domain.session import shown_name
from carrel.core.domain.units import format_count, format_duration, format_size
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.estimate import ListSchedule
from carrel.core.policy.explain_limit import over_limit
from carrel.core.policy.forecast import Forecast
from carrel.core.policy.limits import CODES
from carrel.core.policy.node_capacity import NodeCapacity, idle_room, suits
from carrel.core.policy.situation import PRIORITY, RESOURCES, UNAVAILABLE, NotStarted, Outcome, Shape, Situation, shape_of
from carrel.core.policy.walk import BEGIN_TIME, INVALID_QOS, PARTITION_DOWN
from carrel.core.policy.windows import explain_window

#: How many drained nodes a sentence names before it counts the rest.
NAMED = 3
NO_CORRECTIONS = Corrections()
#: What is said of a machine that nobody has begun to make.
_PLANNED = MachineWait("needs a machine that is made for it")
#: What is said of idle sessions that the reader can end.
OF_OWNER = " of the same owner"


def explain(
    outcome: Outcome,
    expect: Expect | None = None,
    corrections: Corrections = NO_CORRECTIONS,
    name_days: NameDays | None = None,
) -> Placement:
    """Return what starts and why each of the others waits. Every job that was in line is in exactly one of the two.

    Holds are made lazily: `Placement.hold_of` is the cheap way to ask about one job. `expect` makes estimates better, and gives
    them a range; both are corrected by `corrections`. Wide ranges are told by `name_days`, where it is given.
    """
    return Placement(tuple(outcome.starts), WaitsInOrder(Situation.of(outcome), expect, corrections, name_days))


class WaitsInOrder(Sequence[Wait]):
    """The held jobs in the order of the queue. Each `Wait` is made when it is looked at.

    Making one estimates its start and those of all ahead of it, once. Safe to read from several threads.
    """

    def __init__(
        self,
        situation: Situation,
        expect: Expect | None = None,
        corrections: Corrections = NO_CORRECTIONS,
        name_days: NameDays | None = None,
    ) -> None:
        self._corrections = corrections
        self._name_days = name_days
        self._situation = situation
        self._places: dict[int, int] | None = None
        self._estimates: list[float | None] = []
        self._schedule: Iterator[float | None] | None = None
        self._forecast = None if expect is None else Forecast(situation.outcome, expect)
        self._lock = Lock()
        self._shortages: dict[tuple[Shape, int], str] = {}
        #: How many jobs of its partition are ahead of each, where there are partitions.
        self._ahead: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self._situation.held)

    @overload
    def __getitem__(self, index: int) -> Wait: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Wait, ...]: ...
    def __getitem__(self, index: int | slice) -> Wait | tuple[Wait, ...]:
        if isinstance(index, slice):
            return tuple(self._hold(place) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"hold {index} of {len(self)}")
        return self._hold(place)

    def __iter__(self) -> Iterator[Wait]:
        return map(self._hold, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Holds({', '.join(str(held.job.id) for held in self._situation.held)})"

    def of(self, job_id: int) -> Wait | None:
        """Return the hold of one job, or None when it is not held."""
        if self._places is None:
            self._places = {held.job.id: place for place, held in enumerate(self._situation.held)}
        place = self._places.get(job_id)
        return None if place is None else self._hold(place)

    def _hold(self, place: int) -> Wait:
        held = self._situation.held[place]
        code = self._situation.code(held)
        start, between = self._estimate(place), None  # type: float | None, tuple[float, float] | None
        known = False
        foreseen = None if start is None else self._foreseen(held.job.id)
        if foreseen is not None:
            known = self._corrections.are_known(foreseen[1] - self._situation.outcome.now)
            low, start, high = self._corrected(foreseen)
            between = (low, high)
        elif start is not None and self._forecast is not None:
            with self._lock:
                start = self._forecast.by_walltimes(held.job.id) or start
        elif held.job.node == "" and code == RESOURCES:
            start = self._machine(held.job).expected or None
        message = f"{self._cause(held, code, place)}; {self._about(start, between, known=known)}"
        return Wait(
            job_id=held.job.id,
            reason=Reason(code=code, message=message),
            position=place + 1,
            estimated_start=start,
            estimated_range=between,
            foreseen=foreseen,
        )

    def _estimate(self, place: int) -> float | None:
        if place >= len(self._estimates):
            with self._lock:
                if self._schedule is None:
                    self._schedule = ListSchedule(self._situation).starts()
                self._estimates.extend(islice(self._schedule, max(0, place + 1 - len(self._estimates))))
        return self._estimates[place]

    def _foreseen(self, job_id: int) -> tuple[float, float, float] | None:
        if self._forecast is None:
            return None
        with self._lock:
            return self._forecast.between(job_id)

    def _corrected(self, foreseen: tuple[float, float, float]) -> tuple[float, float, float]:
        now = self._situation.outcome.now
        low, middle, high = self._corrections.of(*(moment - now for moment in foreseen))
        return now + low, now + middle, now + high

    def _about(self, start: float | None, between: tuple[float, float] | None, *, known: bool) -> str:
        if start is None:
            return "start unknown"
        wait = start - self._situation.outcome.now
        if wait < 0.5 and between is None:
            return "any moment now"
        if between is None:  # by walltimes, which say when everything is over at the latest
            return f"in {format_duration(wait)} at the latest"
        first, last = (max(0.0, moment - self._situation.outcome.now) for moment in between)
        if self._name_days is not None and is_told_in_days(first, last, known=known):
            now = self._situation.outcome.now
            return f"probably {self._name_days(now + first, now + last, now)}"
        about = f"about {format_duration(wait)}" if wait >= 0.5 else "any moment now"
        low, high = format_duration(first), format_duration(last)
        return about if low == high else f"{about} ({low} to {high})"

    def _cause(self, held: NotStarted, code: str, ahead: int) -> str:
        if code == INVALID_QOS:
            return f'QoS "{held.job.qos}" does not exist in this lab'
        if code == PARTITION_DOWN:
            return f'partition "{held.job.partition}" does not exist in this lab'
        if code == BEGIN_TIME:
            return "pauses before it is tried again"
        if code in CODES:
            return over_limit(held, code)
        if held.job.node == "":
            return self._machine(held.job).why
        if code == UNAVAILABLE:
            return _unavailable(held.job, self._situation)
        giving_way = _giving_way(held.job, self._situation) if code != PRIORITY else ""
        shortage = f"{self._shortage(held.job)}{giving_way}{_idle(held.job, self._situation)}"
        if code == PRIORITY:
            ahead = self._before(ahead)
            return f"{format_count(ahead, 'job')} {'is' if ahead == 1 else 'are'} ahead of it; {shortage}"
        return shortage

    def _machine(self, job: Waiting) -> MachineWait:
        return self._situation.outcome.picture.machines.get(job.id, _PLANNED)

    def _before(self, place: int) -> int:
        """How many jobs of the same partition are ahead of the one at a place in the queue."""
        if not self._situation.outcome.picture.partitions:
            return place
        if self._ahead is None:
            seen, ahead = Counter[str](), []
            for held in self._situation.held:
                ahead.append(seen[held.job.partition])
                seen[held.job.partition] += 1
            self._ahead = ahead
        return self._ahead[place]

    def _shortage(self, job: Waiting) -> str:
        allowed_nodes = self._situation.allowed_nodes(job)
        timed = allowed_nodes.windows or self._situation.outcome.promises.most > 1
        key = (shape_of(job.resources, allowed_nodes), job.resources.time if timed else 0)
        text = self._shortages.get(key)
        if text is None:
            text = self._shortages[key] = _shortage(job, self._situation)
        return text


def _giving_way(job: Waiting, situation: Situation) -> str:
    """Say who gives way to jobs of this class, and how long that takes at most."""
    service, now = situation.outcome.picture.qos.get(job.qos), situation.outcome.now
    below = service.preempts if service is not None else frozenset()
    leaving = [held for held in situation.outcome.picture.holding if held.leaving and held.qos in below]
    if not leaving:
        return ""
    classes = " and ".join(f'"{name}"' for name in sorted({held.qos for held in leaving}))
    longest = max(0.0, max(held.ends_by for held in leaving) - now)
    verb = "is" if len(leaving) == 1 else "are"
    return f"; {format_count(len(leaving), 'job')} of QoS {classes} {verb} giving way, at most {format_duration(longest)}"


def names_idle_sessions(message: str) -> bool:
    """True where the reason of a wait names idle sessions of the job's owner, who can end them."""
    return OF_OWNER in message


def _idle(job: Waiting, situation: Situation) -> str:
    """Name the idle sessions that hold the memory that is missing, those of the job's owner by their names; "" without any."""
    wanted, picture = job.resources, situation.outcome.picture
    if not picture.idle:
        return ""
    rooms = [
        room for room in situation.allowed_nodes(job).rooms if room.cpus >= wanted.cpus and room.free_of(wanted) >= wanted.gpus
    ]
    if any(room.memory >= wanted.memory for room in rooms):
        return ""
    names = {room.name for room in rooms}
    idle = [held for held in picture.holding if held.id in picture.idle and not held.leaving and held.node in names]
    own = [held for held in idle if held.owner == job.owner]
    others = _hold([held for held in idle if held.owner != job.owner])
    told = f"; {others[0]} of others {others[1]}" if others else ""
    if mine := _hold(own):
        named = ", ".join(shown_name(held.id, held.name) for held in own[:NAMED])
        more = f" and {len(own) - NAMED} more" if len(own) > NAMED else ""
        told = f"; {mine[0]}{OF_OWNER} {mine[1]} ({named}{more}): end one{told}"
    return told


def _hold(sessions: Sequence[Holding]) -> tuple[str, str] | None:
    """How many idle sessions hold how much; None where there are none."""
    if not sessions:
        return None
    size = format_size(sum(held.resources.memory for held in sessions))
    return format_count(len(sessions), "idle session"), f"{'holds' if len(sessions) == 1 else 'hold'} {size} of memory"


def _blocked(wanted: Resources, situation: Situation, allowed_nodes: AllowedNodes) -> str:
    """Name the devices that idle sessions' GPU state keeps from the job, and why it stays there; "" when there are none."""
    blocked = situation.outcome.picture.blocked
    if not blocked:
        return ""
    names = {room.name for room in allowed_nodes.rooms}
    held = {uuid for one in situation.outcome.picture.holding for share in one.shares for uuid in share.devices}
    found = [
        f"GPU {device.index} of {node.name} ({blocked[device.uuid]})"
        for node in sorted(situation.outcome.picture.nodes, key=lambda node: node.name)
        if node.name in names
        for device in node.devices
        if device.uuid in blocked and device.uuid not in held and suits(device, wanted)
    ]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"; not offered: {', '.join(found[:NAMED])}{more}" if found else ""


def _several(wanted: Resources) -> str:
    return f"{wanted.nodes} nodes with {_joined(wanted, ', ')}, {format_size(wanted.memory)} each"


def _joined(wanted: Resources, word: str) -> str:
    """Return the GPUs and CPUs that are asked for; "" where there are none (sessions keep no CPUs)."""
    gpus = wanted.describe_gpus() if wanted.gpus else ""
    cpus = format_count(wanted.cpus, "CPU") if wanted.cpus else ""
    return word.join(part for part in (gpus, cpus) if part)


def _at_most(number: int) -> str:
    if number <= 0:
        return "none is free"
    return f"at most {number} {'is' if number == 1 else 'are'} free"


def _of(allowed_nodes: AllowedNodes) -> str:
    """Where the nodes are that count: nothing in a lab without partitions."""
    return f' of partition "{allowed_nodes.partition}"' if allowed_nodes.partition else ""


def _shortage(job: Waiting, situation: Situation) -> str:
    """Name the first thing that no node has enough of: GPUs, then cpus, then memory; of those that are not kept."""
    wanted, allowed_nodes = job.resources, situation.allowed_nodes(job)
    shut = allowed_nodes.shut(situation.outcome.now, situation.outcome.now + job.longest)
    rooms: Sequence[NodeCapacity] = allowed_nodes.rooms
    if shut:
        inside = [room for room in rooms if room.index in shut and room.has_free(wanted)]
        rooms = [room for room in rooms if room.index not in shut]
        ready = sum(room.has_free(wanted) for room in rooms)
        if (inside and ready < wanted.nodes <= ready + len(inside)) or not rooms:
            return explain_window(job, inside or allowed_nodes.rooms, wanted.nodes - ready, allowed_nodes, situation.outcome.now)
    of = _of(allowed_nodes)
    if wanted.nodes > 1:
        fitting = sum(room.has_free(wanted) for room in rooms)
        if fitting >= wanted.nodes:
            return _kept(job, situation, allowed_nodes)
        has = "has" if fitting == 1 else "have"
        return f"needs {_several(wanted)}; {fitting}{of} {has} so much free"
    most_gpus = max((room.free_of(wanted) for room in rooms), default=0)
    if most_gpus < wanted.gpus:
        return (
            f"needs {wanted.describe_gpus()} on one node{of}; {_at_most(most_gpus)}{_blocked(wanted, situation, allowed_nodes)}"
        )
    where = f"one node{of}"
    if wanted.gpus:
        rooms = [room for room in rooms if room.free_of(wanted) >= wanted.gpus]
        where = f"a node{of} with {wanted.describe_gpus()}"
    most_cpus = max((room.cpus for room in rooms), default=0)
    if most_cpus < wanted.cpus:
        return f"needs {format_count(wanted.cpus, 'CPU')} on {where}{' free' if wanted.gpus else ''}; {_at_most(most_cpus)}"
    most_memory = max((room.memory for room in rooms if room.cpus >= wanted.cpus), default=0)
    if most_memory < wanted.memory:
        free = f"at most {format_size(most_memory)} is free" if most_memory > 0 else "none is free"
        beside = _joined(wanted, " and ")
        where = f"a node{of} with {beside} free" if beside else f"one node{of}"
        return f"needs {format_size(wanted.memory)} of memory on {where}; {free}"
    return _kept(job, situation, allowed_nodes)


def _kept(job: Waiting, situation: Situation, allowed_nodes: AllowedNodes) -> str:
    """There is room, but only where it would delay somebody who was promised something."""
    wanted = job.resources
    what = _joined(wanted, " and ") or f"{format_size(wanted.memory)} of memory"
    until = situation.outcome.now + job.longest
    keeping = (
        promise
        for promise in situation.outcome.promises.made
        if promise.at < until
        and any(allowed_nodes.has(room) and situation.rooms[room.index].has_free(wanted) for room in promise.rooms)
    )
    promise = next(keeping, None)
    if promise is None:  # Cannot be: without a promise whatever fits is started.
        return f"needs {what}"
    rooms, first = promise.rooms, promise.job
    where = rooms[0].name if len(rooms) == 1 else f"{len(rooms)} nodes"
    return f"needs {what} for {format_duration(wanted.time)}; what is free on {where} is kept for job {first.id}"


def _unavailable(job: Waiting, situation: Situation) -> str:
    """Say what keeps the nodes that could run the job from it: drained, withheld, or not there."""
    wanted, allowed_nodes = job.resources, situation.allowed_nodes(job)
    partition = situation.outcome.picture.partitions.get(job.partition)
    beside = format_count(wanted.cpus, "CPU") if wanted.cpus else ""
    parts = [wanted.describe_gpus()] if wanted.gpus else [beside, format_size(wanted.memory)]
    what = f"needs {', '.join(part for part in parts if part)}"
    nodes = sorted(situation.outcome.picture.nodes, key=lambda node: node.name)
    if partition is not None:
        nodes = [node for node in nodes if partition.has(node.name)]
    if wanted.nodes > 1:
        able = sum(node.drained is None and _holds(node, wanted) for node in nodes)
        these = f"nodes{_of(allowed_nodes)}" if allowed_nodes.partition else "lab's nodes"
        return f"needs {_several(wanted)}; {able} of the {these} that take jobs {'is' if able == 1 else 'are'} large enough"
    where = f"one node{_of(allowed_nodes)}"
    drained = [f"{node.name} ({node.drained})" for node in nodes if node.drained is not None and _holds(node, wanted)]
    if drained:
        more = f" and {len(drained) - NAMED} more" if len(drained) > NAMED else ""
        return f"{what} on {where}; drained: {', '.join(drained[:NAMED])}{more}"
    withheld = situation.outcome.picture.withheld
    for node in nodes:
        if node.drained is None and _holds(node, wanted):
            suited = [device for device in node.devices if suits(device, wanted)]
            out = [f"GPU {device.index} of {node.name} ({device.drained})" for device in suited if device.drained is not None]
            more = f" and {len(out) - NAMED} more" if len(out) > NAMED else ""
            faulty = f"; drained: {', '.join(out[:NAMED])}{more}" if out else ""
            blocked = _blocked(wanted, situation, allowed_nodes)
            kept = {*withheld} - {device.uuid for device in suited if device.drained is not None}
            away = sum(device.uuid in kept and device.uuid not in situation.outcome.picture.blocked for device in suited)
            if (blocked or faulty) and not away:
                return f"{what} on {where}{faulty}{blocked}"
            lent = f"{away} of {len(suited)} on {node.name} are withheld (lent to cells, or in use elsewhere)"
            return f"{what} on {where}; {lent}{faulty}{blocked}"
    return f"{what} on {where}; no node {'of it' if allowed_nodes.partition else 'of the lab'} has so much"


def _holds(node: Node, wanted: Resources) -> bool:
    """True when the node could hold `wanted` if it were idle, not drained, and nothing on it withheld."""
    return idle_room(node).could_hold(wanted)

"""Whose turn it is in a class of service that rotates: who has had least goes next, and who has had more is stopped for it.

What a job has had is counted in GPU-seconds and in few levels, so that jobs change places seldom (least attained service in
discrete queues: J. Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019). A job that is stopped
waits in line again, and each level counts as so many seconds that it came later: bounded, so that a job that has waited for
longer than that goes first again, and nobody waits for ever behind those who come. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from carrel.core.domain.placement import Holding, Preempt, Snapshot, Waiting
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.policy.limits import LimitsByOwner
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.order import Order, order_of
from carrel.core.policy.preempt import PATIENCE, Choice

#: What a job has had when it comes to the next level: GPU-seconds for each second of `rotate`.
LEVELS = (1.0, 8.0, 64.0)
#: Seconds by which a job counts as later at each level.
LATE = tuple(days * 86400.0 for days in (0, 7, 14, 28))
#: Seconds by which a job has to stand behind another to be stopped for it where both have had as much.
BEHIND = 7 * 86400.0
#: A job whose GPU state has to move for it runs for so many times what the two moves take.
WORTH_MOVING = 4
#: Bytes of memory that placement looks for where a job has kept its own.
NEXT_TO_NONE = 1024**2
#: Seconds by which floating point may come too early to a level.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A job that runs, in a class that rotates."""

    held: Holding
    #: What it would be in line if it was stopped now.
    again: Waiting
    #: Since when it has run without a stop, Unix seconds.
    since: float
    #: Seconds in which its GPU state leaves its devices and comes back.
    moves: float = 0.0
    #: Why its GPU state keeps it where it is, or "".
    stays: str = ""


def rotates(qos: Mapping[str, QoS], name: str) -> bool:
    """True when jobs of this class take turns."""
    return name in qos and qos[name].rotate > 0


def level(ran: float, gpus: int, rotate: float) -> int:
    """Return how often a job has had enough for others to go before it; one without GPUs counts as if it had one."""
    return bisect_right(LEVELS, (ran + _ROUNDING) * max(1, gpus) / rotate)


def late_by(ran: float, gpus: int, rotate: float) -> float:
    """Return the seconds by which a job counts as submitted later for what it has had."""
    return LATE[level(ran, gpus, rotate)]


def kept_id(job_id: int) -> int:
    """Return the number, of no job, under which placement knows what a job keeps while it waits for its next turn."""
    return -1 - job_id


def after_running(job: Waiting, seconds: float, rotate: float, now: float) -> Waiting:
    """Return a job that waited like this as it is in line when it is stopped now, after so many seconds of running."""
    gpus = job.resources.total_gpus
    before = late_by(job.ran, gpus, rotate) if job.level else 0.0
    ran = job.ran + seconds
    left = replace(job.resources, time=max(1, ceil(job.resources.time - seconds)), memory=NEXT_TO_NONE)
    late = job.late_by - before + late_by(ran, gpus, rotate)
    return replace(
        job, resources=left, late_by=late, level=level(ran, gpus, rotate), ran=ran, stopped_at=now, not_before=0.0, expected=None
    )


def take_turns(
    picture: Snapshot,
    promised: Sequence[Waiting],
    turns: Sequence[Turn],
    now: float,
    order: Order | None = None,
    rooms: Sequence[NodeCapacity] | None = None,
) -> tuple[Preempt, ...]:
    """Return who is stopped now (Unix seconds) so that the first whose turn it is has a place; nobody where it is nobody's.

    `promised` are those who have been promised a place, first in line first; of a partition only its first is looked at. Who is
    stopped is of the same class, has run for its `rotate` since it last began, and stands behind in line: by any time where it
    has had a level more, and by `BEHIND` where it has had no more than that. The weights of the picture make the order, where
    none is given; `rooms` is what its nodes have free, if that is known.
    """
    heads = set[str]()
    order = order or order_of(picture, picture.standing)
    for job in promised:
        service = picture.qos.get(job.qos)
        if not job.devices:
            if job.partition in heads:
                continue  # whoever is stopped for it might make room for nobody: the one before it comes first
            heads.add(job.partition)
        if service is None or not service.rotate or (job.not_before > now and not job.devices):
            continue
        mine = order.place(job)
        behind: dict[int, float] = {}
        for turn in turns:
            held = turn.held
            if held.qos != job.qos or not _may_stop(turn, service, now):
                continue
            place = order.place(turn.again)
            if place > mine + BEHIND or (place > mine and turn.again.level > job.level):
                behind[held.id] = place
        chosen = _who_stops(picture, job, [turn.held for turn in turns if turn.held.id in behind], behind, now, rooms)
        if chosen:
            return tuple(Preempt(job_id=one, mode=PreemptMode.SUSPEND, by=job.id, qos=job.qos) for one in chosen)
    return ()


def _may_stop(turn: Turn, service: QoS, now: float) -> bool:
    held = turn.held
    if not held.suspendable or not held.preemptible or held.leaving or held.ends_by <= now + PATIENCE:
        return False
    return now >= turn.since + turn_of(turn, service)


def turn_of(turn: Turn, service: QoS) -> float:
    """Return the seconds for which a job runs before it is stopped: long enough to be worth its moves."""
    return max(service.rotate, WORTH_MOVING * turn.moves)


def whose_turn_is_over(qos: Mapping[str, QoS], turns: Iterable[Turn], now: float) -> Sequence[Turn]:
    """Return those that would be stopped for others if their GPU state could be moved."""
    return [turn for turn in turns if turn.stays and now >= turn.since + turn_of(turn, qos[turn.held.qos])]


def _who_stops(
    picture: Snapshot,
    job: Waiting,
    victims: Sequence[Holding],
    behind: Mapping[int, float],
    now: float,
    rooms: Sequence[NodeCapacity] | None,
) -> Sequence[int]:
    """The fewest that make room for `job`, and of those the ones furthest `behind`."""
    limits = LimitsByOwner(picture.qos, picture.holding, now).of(job) if victims else None
    if limits is None or limits.refuses(job.resources.total_gpus) is not None:
        return ()
    if job.devices:
        return _who_has_its_devices(picture, job, victims)
    found = Choice(picture, job, victims, now, stops=True, urgency=lambda held: -behind[held.id], rooms=rooms).cheapest()
    return sorted(held.id for held in found or ())


def _who_has_its_devices(picture: Snapshot, job: Waiting, victims: Sequence[Holding]) -> Sequence[int]:
    """Those who have the devices to which the job's GPU state comes back, where all of them can be stopped."""
    own = set(job.devices)
    there = [held for held in picture.holding if not own.isdisjoint(held.devices)]
    stopped = {held.id for held in victims}
    return sorted(held.id for held in there) if all(held.id in stopped for held in there) else ()


def next_turn(qos: Mapping[str, QoS], turns: Iterable[Turn], now: float) -> float:
    """Return when time alone changes whose turn it is: somebody has run for long enough, or comes to the next level; else inf."""
    moments = []
    for turn in turns:
        each, gpus = qos[turn.held.qos].rotate, max(1, turn.held.resources.total_gpus)
        moments.append(turn.since + turn_of(turn, qos[turn.held.qos]))
        moments += [now + step * each / gpus - turn.again.ran for step in LEVELS]
    return min((moment for moment in moments if moment > now), default=inf)

"""Which waiting job starts now, on which node, with which devices; and why the others wait.

The rules, with an example, are in `docs/scheduling.md`. One walk through the queue, first in line first: a job that its own
limit or its own pause holds back is passed over; one that fits starts; the first that does not fit gets a reservation,
and from then on a job starts only where that promise is kept.
"""

from __future__ import annotations

from carrel.domain.placement import Placement, Snapshot, Start, Waiting
from carrel.policy.backfill import Reservation, earliest
from carrel.policy.explain import Holds
from carrel.policy.fit import Fit
from carrel.policy.limits import Ledger, Limit
from carrel.policy.order import in_order
from carrel.policy.rooms import Room, capacities, rooms_of
from carrel.policy.situation import BEGIN_TIME, BLOCKED, INVALID_QOS, Queue, Situation


def place(snapshot: Snapshot, now: float) -> Placement:
    """Return what starts and what waits at `now` (Unix seconds).

    Every waiting job is in exactly one of the two. The same snapshot gives the same answer, in whatever order its
    sequences are. Holds are made lazily: `Placement.hold_of` is the cheap way to ask about one job.
    """
    walk = _Walk(snapshot, now)
    for job in in_order(snapshot.waiting, snapshot.qos, snapshot.age_weight):
        walk.consider(job)
    situation = Situation(snapshot, now, walk.rooms, walk.makes, walk.held, walk.reservation)
    return Placement(starts=tuple(walk.starts), holds=Holds(situation))


class _Walk:
    """One walk through the queue."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.rooms = rooms_of(snapshot, now)
        self.makes = capacities(self.rooms)
        self.starts: list[Start] = []
        self.held = Queue()
        self.reservation: Reservation | None = None
        self._now = now
        self._fit = Fit(self.rooms)
        self._ledger = Ledger(snapshot.qos, snapshot.holding, now)
        # What was asked for and found no room: rooms only get fuller, so the same again need not be tried.
        self._closed: set[tuple[int, str | None, int, int, int]] = set()

    def consider(self, job: Waiting) -> None:
        """Start `job` or hold it."""
        limit = self._ledger.of(job.owner, job.qos)
        if limit is None:
            self.held.append(job, INVALID_QOS, None)
            return
        if job.not_before > self._now:
            self.held.append(job, BEGIN_TIME, limit)
            return
        wanted = job.resources
        ends_by = self._now + wanted.time
        refusal = limit.refuses(job, ends_by)
        if refusal is not None:
            self.held.append(job, refusal, limit)
            return
        asked = (wanted.gpus, wanted.gpu_type, wanted.cpus, wanted.memory, wanted.time)
        if asked not in self._closed:
            room = self._room(job, ends_by)
            if room is not None:
                self._start(job, room, ends_by, limit)
                return
            if self.reservation is None:
                self._reserve(job, limit)
            self._closed.add(asked)
        self.held.append(job, BLOCKED, limit)

    def _room(self, job: Waiting, ends_by: float) -> Room | None:
        """Return where `job` can start now: best fit on the free nodes, else on the reserved one if it harms nobody."""
        room = self._fit.find(job.resources)
        if room is None and self.reservation is not None and self.reservation.admits(job.resources, ends_by):
            return self.reservation.room
        return room

    def _start(self, job: Waiting, room: Room, ends_by: float, limit: Limit) -> None:
        if self.reservation is not None and room is self.reservation.room:
            self.reservation.note(job.resources, ends_by)
        devices = self._fit.take(room, job.resources, ends_by)
        limit.charge(job.resources.gpus, ends_by)
        self.starts.append(Start(job_id=job.id, node=room.name, devices=devices))

    def _reserve(self, job: Waiting, limit: Limit) -> None:
        """Promise `job` the first moment at which it fits. Without one (drained nodes) it stands in nobody's way."""
        found = earliest(job.resources, self.rooms, self._now)
        if found is None:
            return
        at, room = found
        self.reservation = Reservation(job, at, room)
        self._fit.withdraw(room)
        limit.claim(job, at)

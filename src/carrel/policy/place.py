"""Which waiting job starts now, on which node, with which devices; and why the others wait.

The rules, with an example, are in `docs/scheduling.md`. One walk through the queue, first in line first: a job that its own
limit or its own pause holds back is passed over; one that fits starts; the first that does not fit gets a promise,
and from then on a job starts only where that promise is kept.
"""

from __future__ import annotations

from carrel.domain.expectation import Expect
from carrel.domain.placement import Placement, Snapshot, Start, Waiting
from carrel.policy.backfill import Promise, earliest, rooms_for, start_in
from carrel.policy.explain import Holds
from carrel.policy.fit import Fit
from carrel.policy.limits import Ledger, Limits
from carrel.policy.order import in_order
from carrel.policy.rooms import rooms_of
from carrel.policy.situation import BEGIN_TIME, BLOCKED, INVALID_QOS, Queue, Situation


def place(snapshot: Snapshot, now: float, *, expect: Expect | None = None) -> Placement:
    """Return what starts and what waits at `now` (Unix seconds).

    Every waiting job is in exactly one of the two. The same snapshot gives the same answer, in whatever order its
    sequences are. Holds are made lazily: `Placement.hold_of` is the cheap way to ask about one job. What starts follows from
    walltimes alone; `expect` makes estimates better, and gives them a range.
    """
    walk = _Walk(snapshot, now)
    for job in in_order(snapshot):
        walk.consider(job)
    situation = Situation(snapshot, now, walk.rooms, walk.held, walk.promise)
    return Placement(starts=tuple(walk.starts), holds=Holds(situation, expect))


class _Walk:
    """One walk through the queue."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.rooms = rooms_of(snapshot.nodes, snapshot.holding, snapshot.withheld)
        self.starts: list[Start] = []
        self.held = Queue()
        self.promise: Promise | None = None
        self._now = now
        self._fit = Fit(self.rooms)
        self._ledger = Ledger(snapshot.qos, snapshot.holding, now)
        # What was asked for and found no room: rooms only get fuller, so the same again need not be tried.
        self._closed: set[tuple[int, int, str | None, int, int, int]] = set()

    def consider(self, job: Waiting) -> None:
        """Start `job` or hold it."""
        limit = self._ledger.of(job.owner, job.account, job.qos)
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
            limit.waits(job)
            self.held.append(job, refusal, limit)
            return
        asked = (wanted.nodes, wanted.gpus, wanted.gpu_type, wanted.cpus, wanted.memory, wanted.time)
        if asked not in self._closed:
            rooms = rooms_for(wanted, ends_by, self._fit, self.promise)
            if len(rooms) == wanted.nodes:
                first, *others = start_in(rooms, job, ends_by, self._fit, self.promise)
                limit.charge(job.id, wanted.total_gpus, ends_by)
                self.starts.append(Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others)))
                return
            if self.promise is None:
                self._promise_to(job, limit)
            self._closed.add(asked)
        limit.waits(job)
        self.held.append(job, BLOCKED, limit)

    def _promise_to(self, job: Waiting, limit: Limits) -> None:
        """Promise `job` the first moment at which it fits. Without one (drained nodes) it stands in nobody's way."""
        slot = earliest(job.resources, self.rooms, self._now)
        if slot is not None:
            self.promise = Promise(job, *slot)
            limit.claim(job, self.promise.at)

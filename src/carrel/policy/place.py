"""Which waiting job starts now, on which node, with which devices; and why the others wait.

The rules, with an example, are in `docs/scheduling.md`. One walk through the queue, first in line first: a job that its own
limit or its own pause holds back is passed over; one that fits starts; the first of each partition that does not fit gets a
promise (or the first few), and from then on a job starts only where promises are kept. In a partition of a Slurm cluster the
limits alone hold a job back: what passes them is handed over, and where and when it runs is Slurm's decision.
"""

from __future__ import annotations

from carrel.domain.expectation import Corrections, Expect
from carrel.domain.placement import Placement, Snapshot, Start, Waiting
from carrel.policy.backfill import earliest, earliest_beside, first_fit, is_plain, rooms_for, start_in
from carrel.policy.explain import NO_CORRECTIONS, Holds
from carrel.policy.fit import Fit
from carrel.policy.limits import Ledger, Limits
from carrel.policy.line import Kind, kind_of
from carrel.policy.order import in_order
from carrel.policy.promises import Promise, Promises
from carrel.policy.realm import Realm, Realms
from carrel.policy.rooms import rooms_of
from carrel.policy.situation import BEGIN_TIME, BLOCKED, INVALID_QOS, PARTITION_DOWN, Queue, Situation


def place(
    snapshot: Snapshot, now: float, *, expect: Expect | None = None, corrections: Corrections = NO_CORRECTIONS
) -> Placement:
    """Return what starts and what waits at `now` (Unix seconds).

    Every waiting job is in exactly one of the two. The same snapshot gives the same answer, in whatever order its
    sequences are. Holds are made lazily: `Placement.hold_of` is the cheap way to ask about one job. What starts follows from
    the snapshot alone; `expect` makes estimates better, and gives them a range; both are corrected by `corrections`.
    """
    walk = _Walk(snapshot, now)
    for job in in_order(snapshot):
        walk.consider(job)
    situation = Situation(snapshot, now, walk.rooms, walk.held, walk.promises, walk.realms)
    return Placement(starts=tuple(walk.starts), holds=Holds(situation, expect, corrections))


class _Walk:
    """One walk through the queue."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.rooms = rooms_of(snapshot.nodes, snapshot.holding, snapshot.withheld, snapshot.moves)
        self.realms = Realms(self.rooms, snapshot.partitions, snapshot.reservations)
        # That of all who name no partition, where nothing is kept for anybody.
        self._everywhere = None if snapshot.reservations else self.realms.of("", "", "")
        self.starts: list[Start] = []
        self.held = Queue()
        self.promises = Promises(snapshot.promises)
        self._now = now
        self._fit = Fit(self.rooms)
        clusters = {name for name, part in snapshot.partitions.items() if part.cluster}
        self._ledger = Ledger(snapshot.qos, snapshot.holding, now, clusters=clusters, submit_limits=snapshot.submit_limits)
        # What was asked for and found no room: rooms only get fuller, so the same again need not be tried.
        self._closed: set[tuple[Kind, float, int]] = set()
        # What will never find room on the nodes that take jobs now.
        self._hopeless: set[tuple[Kind, float, int]] = set()

    def consider(self, job: Waiting) -> None:
        """Start `job` or hold it."""
        limit = self._ledger.of(job)
        realm = self._everywhere
        if realm is None or job.partition:
            realm = self.realms.of(job.owner, job.account, job.partition)
        if limit is None or realm is None:
            self.held.append(job, INVALID_QOS if limit is None else PARTITION_DOWN, limit)
            return
        if job.not_before > self._now:
            self.held.append(job, BEGIN_TIME, limit)
            return
        wanted, seconds = job.resources, job.seconds
        ends_by = self._now + seconds
        refusal = limit.refuses(job)
        if refusal is not None:
            limit.waits(job)
            self.held.append(job, refusal, limit)
            return
        if realm.cluster:
            limit.charge(job.id, wanted.total_gpus, ends_by)
            self.starts.append(Start(job_id=job.id, node=realm.cluster))
            return
        asked = (kind_of(wanted, realm), seconds, job.longest)
        if asked not in self._closed:
            rooms = rooms_for(wanted, self._now, (seconds, job.longest), self._fit, realm, self.promises)
            if len(rooms) == wanted.nodes:
                first, *others = start_in(rooms, job, ends_by, self._fit, self.promises)
                limit.charge(job.id, wanted.total_gpus, ends_by)
                self.starts.append(Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others)))
                return
            self._closed.add(asked)
        if self.promises.wants(job.partition) and asked not in self._hopeless and not self._promise_to(job, realm, limit):
            self._hopeless.add(asked)
        limit.waits(job)
        self.held.append(job, BLOCKED, limit)

    def _promise_to(self, job: Waiting, realm: Realm, limit: Limits) -> bool:
        """Promise `job` the first moment at which it fits. Without one (drained nodes) it stands in nobody's way: False."""
        wanted = job.resources
        if is_plain(realm, self.promises):
            slot = earliest(wanted, realm.rooms, self._now)
        else:
            firsts = {
                room.index: fit[0]
                for room in realm.rooms
                if room.could_hold(wanted) and (fit := first_fit(wanted, room, self._now)) is not None
            }
            slot = earliest_beside(wanted, (job.seconds, job.longest), realm, firsts, self.promises, self._now)
        if slot is None:
            return False
        self.promises.make(Promise(job, *slot, job.seconds))
        limit.claim(job)
        return True

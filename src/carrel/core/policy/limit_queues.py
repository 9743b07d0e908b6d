"""The limits of everybody, with who waits under each, as changes are told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from carrel.core.domain.placement import ArrayLimit, Holding
from carrel.core.domain.qos import QoS
from carrel.core.domain.submit_limits import SubmitLimit, SubmitScope
from carrel.core.policy.limit_queue import KeptOut, LimitQueue
from carrel.core.policy.limits import Limit, Limited, LimitKey, Limits, LimitsByOwner
from carrel.core.policy.line import Group


class LimitQueues:
    """What everybody holds and may hold, and a `LimitQueue` for each limit under which jobs wait."""

    def __init__(self) -> None:
        #: Limits for which Slurm has refused jobs.
        self.submit_limits: Mapping[SubmitScope, SubmitLimit] = {}
        #: Queues of limits that may let somebody in whom they have refused. The cycle takes them out.
        self.loosened: dict[LimitQueue, None] = {}
        self.renew({}, (), ())

    def renew(self, qos: Mapping[str, QoS], holding: Iterable[Holding], clusters: Collection[str]) -> None:
        """These classes of service are in force from now on. Nobody waits yet."""
        self._limits_by_owner = LimitsByOwner(qos, holding, clusters=clusters, submit_limits=self.submit_limits)
        self._queues: dict[Limit, LimitQueue] = {}
        self.loosened.clear()
        #: The limits of the accounts that a user has ever worked for: what the user holds decides who stands before others there.
        self._accounts: defaultdict[Limit, set[Limit]] = defaultdict(set)

    def of(self, job: Limited) -> Limits | None:
        """Return what limits a job; None when there is no such QoS."""
        limits = self._limits_by_owner.of(job)
        if limits is not None and limits.user is not limits.parts[-1]:
            self._accounts[limits.user].update(limits.parts[limits.parts.index(limits.user) + 1 :])
        return limits

    def charge(self, held: Holding) -> None:
        """A job holds this from now on."""
        limits = self.of(held)
        if limits is not None:
            limits.charge(held.id, held.resources.total_gpus, held.over_by)
            self.free(limits)

    def discharge(self, held: Holding) -> None:
        """A job holds this no longer."""
        limits = self.of(held)
        if limits is not None:
            limits.discharge(held.id)
            self.free(limits)
            self.forget_array(held.array, limits)

    def free(self, limits: Limits) -> None:
        """What these limits refused may be let in now."""
        for queue in self._about(limits):
            queue.changed()
            self.loosened[queue] = None

    def _about(self, limits: Limits) -> Iterator[LimitQueue]:
        """Return the queues for which it matters what is held under these limits."""
        for limit in {*limits.parts, *self._accounts.get(limits.user, ())}:
            queue = self._queues.get(limit)
            if queue is not None:
                yield queue

    def add(self, limits: Limits | None) -> None:
        """A group waits under these limits."""
        for limit in limits.parts if limits is not None else ():
            self.at(limit).groups += 1

    def put(self, group: Group) -> None:
        """The first job of `group` is another one."""
        for limit in group.limits.parts if group.limits is not None else ():
            self._queues[limit].put(group)

    def drop(self, group: Group) -> None:
        """Nobody is in `group` any more."""
        if group.limits is not None:
            for limit in group.limits.parts:
                self._queues[limit].drop(group)
            self.forget_array(group.alike.array, group.limits)

    def sort(self) -> None:
        """All groups may have another place than before, and any limit may let somebody in."""
        for queue in self._queues.values():
            queue.sort()
            self.loosened[queue] = None

    def kept_out(self, limits: Limits | None = None) -> Mapping[LimitKey, KeptOut | None]:
        """Return whom each limit keeps out first for its GPUs; with `limits`, of those that depend on what is held there."""
        queues = self._queues.values() if limits is None else self._about(limits)
        return {queue.limit.key: queue.first_kept_out() for queue in queues}

    def forget_array(self, array: ArrayLimit | None, limits: Limits) -> None:
        """Keep nothing of an array of which nobody waits or holds anything."""
        own = limits.parts[0]
        if array is not None and not own.jobs and (own not in self._queues or not self._queues[own].groups):
            self._limits_by_owner.forget(array)
            queue = self._queues.pop(own, None)
            if queue is not None:
                self.loosened.pop(queue, None)

    def at(self, limit: Limit) -> LimitQueue:
        """Return who waits under a limit."""
        queue = self._queues.get(limit)
        if queue is None:
            queue = self._queues[limit] = LimitQueue(limit)
        return queue

    # ---- Slurm's limits to submitted jobs

    def knows(self, scope: SubmitScope) -> bool:
        """True when Slurm has refused a job of this scope before."""
        return scope in self._limits_by_owner.submitted

    def know(self, scope: SubmitScope, known: SubmitLimit) -> None:
        """There is such a limit, from the next `renew` on."""
        self.submit_limits = {**self.submit_limits, scope: known}

    def refused(self, scope: SubmitScope, code: str, words: str) -> None:
        """Slurm has refused a job of a scope that is known: no more are handed over than are there now."""
        limit = self._limits_by_owner.submitted[scope]
        limit.jobs_code, limit.words = code, words
        self._allow(scope, limit.jobs)

    def admit(self, scope: SubmitScope, more: int) -> bool:
        """Let so many more of them be handed over: Slurm may have room by now. False where nobody waits for that: the limit is
        forgotten, and the next refusal tells what it is then."""
        limit = self._limits_by_owner.submitted[scope]
        queue = self.at(limit)
        parked = queue.keeps_out
        if parked:
            self._allow(scope, int(limit.max_jobs) + more)
        else:
            self.submit_limits = {key: known for key, known in self.submit_limits.items() if key != scope}
            limit.max_jobs = inf
        self.loosened[queue] = None
        return parked

    def _allow(self, scope: SubmitScope, at_most: int) -> None:
        limit = self._limits_by_owner.submitted[scope]
        limit.max_jobs = at_most
        self.know(scope, SubmitLimit(limit.jobs_code, limit.words, at_most))

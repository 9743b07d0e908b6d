"""The order of the queue: the present rules, who has used less of their share, and how long jobs are taken to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from carrel.core.control.device_offers import DeviceOffers
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.queue import Queue
from carrel.core.control.usage import UsageBook
from carrel.core.domain.placement import Holding, Snapshot, Start, Waiting
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.rules import LabRules
from carrel.core.policy.expected_ends import ExpectedEnds
from carrel.core.policy.order import order_of
from carrel.core.policy.placer import Placer
from carrel.core.policy.runtime import RunTimes
from carrel.core.policy.short_first import late_by

#: Decimals of a standing that count: the queue is put in order anew where one changes, which is slow where thousands wait.
STEPS = 2


class Ranking:
    """Tells the placer in which order jobs wait, and until when others hold what they have."""

    def __init__(self, settings: LoopSettings, placer: Placer, use: UsageBook, run_times: RunTimes) -> None:
        self._settings, self._placer, self._use, self._run_times = settings, placer, use, run_times
        self._expected_ends = ExpectedEnds(run_times.remaining)
        #: The rules by which the queue is in order, or None before the first look.
        self.rules: LabRules | None = None
        #: Factors of fair share, by account and user.
        self.standing: Mapping[tuple[str, str], float] = {}
        self._ranked_at = 0.0

    def turn(self, queue: Queue, newcomers: Collection[int], now: float) -> None:
        """Put the queue in order.

        Standings change slowly, so they are not worked out in every cycle.
        """
        rules, before = self._settings.rules.current, self.rules
        arrived = [queue.job(job_id) for job_id in newcomers]
        strange = any(job is not None and (job.account, job.owner) not in self.standing for job in arrived)
        stale = rules.share_weight > 0 and (strange or now >= self._ranked_at + self._settings.rank_seconds)
        # Nobody is ahead of anybody where one job waits.
        if rules is before and not (stale and len(queue.waiting) > 1):
            return
        standing: Mapping[tuple[str, str], float] = {}
        if rules.share_weight > 0:
            found = self._use.standings(now, queue.line)
            standing = {(one.account, one.user): round(one.factor, STEPS) for one in found}
        self._ranked_at = now
        if rules is before and standing == self.standing:
            return
        self.rules, self.standing = rules, standing
        self._placer.rules(rules.qos, order_of(rules, standing), rules.partitions, promises=rules.promises)
        if _plans_by_other_times(before, rules):
            self._plan_anew(queue, now)

    # ---- how long jobs are taken to run

    def late_by(self, job: Waiting) -> float:
        """Seconds by which a job goes later in its class, since it is taken to run for long."""
        qos = self._settings.rules.current.qos.get(job.qos)
        if qos is None or not qos.short_first:
            return 0.0
        return late_by(job, qos.short_first, self._run_times.expect(job.owner, job.name, job.resources.time))

    def expected(self, job: Waiting) -> Waiting:
        """The job as the placer has to see it: with the time that it is taken to run, where backfill goes by that."""
        return self._expected_ends.of_waiting(job) if self._expects else job

    def due(self, held: Holding, now: float) -> Holding:
        """The same of what a job holds."""
        return self._expected_ends.of_holding(held, now) if self._expects else held

    def wait_again(self, queue: Queue, starts: Sequence[Start]) -> None:
        """What the placer has decided was not done: those jobs are in line again."""
        for start in starts:
            self._placer.wait(self.expected(queue.waiting[start.job_id]))

    def hold_those_overdue(self, now: float) -> None:
        """Jobs run that should have ended."""
        for held in self._expected_ends.overdue(now) if self._expects else ():
            self._placer.hold(held)

    def forget(self, job_id: int) -> None:
        """The job holds nothing any more."""
        self._expected_ends.forget(job_id)

    def picture(self, queue: Queue, devices: DeviceOffers, reserved: Sequence[Reservation], now: float) -> Snapshot:
        """All that there is, as it stands, for decisions that the placer does not take."""
        rules = self._settings.rules.current
        return Snapshot(
            nodes=devices.nodes(),
            qos=rules.qos,
            waiting=tuple(map(self.expected, queue.waiting.values())),
            holding=tuple(self.due(held, now) for held in queue.all_held),
            withheld=devices.unavailable,
            blocked=devices.offer.blocked,
            moves=devices.offer.moves,
            age_weight=rules.age_weight,
            standing=self.standing,
            share_weight=rules.share_weight,
            size_weight=rules.size_weight,
            partitions=rules.partitions,
            reservations=reserved,
            promises=rules.promises,
            submit_limits=self._placer.submit_limits,
        )

    @property
    def _expects(self) -> bool:
        return self.rules is not None and self.rules.backfill_times == "expected"

    def _plan_anew(self, queue: Queue, now: float) -> None:
        """Backfill, or the order, goes by other times than before."""
        queue.look_again()
        for job in queue.waiting.values():
            self._placer.wait(self.expected(job))
        for held in queue.holding.values():
            self._placer.hold(self.due(held, now))


def _plans_by_other_times(before: LabRules | None, rules: LabRules) -> bool:
    times = "walltime" if before is None else before.backfill_times
    return rules.backfill_times != times or (before is not None and _short_first(rules) != _short_first(before))


def _short_first(rules: LabRules) -> Mapping[str, float]:
    return {name: qos.short_first for name, qos in rules.qos.items()}

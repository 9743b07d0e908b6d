"""The control loop: news in, decisions out.

One thread owns the queue. It sleeps until there is news (a submission, a cancellation, an observation), writes down what
the news means, asks the placement policy once for all of it, writes down what it decided, and only then tells the engine.
What is interrupted in between is picked up from the store: a start that was written down but not carried out is carried out by
`Engine.adopt`, and an observation that was not written down is still in its journal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from carrel.core.control.attempt_changes import Describe
from carrel.core.control.event_ports import EventLog
from carrel.core.control.history import learn
from carrel.core.control.inbox import Inbox
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.ports import SchedulerStore
from carrel.core.control.queue_report import QueueReport
from carrel.core.control.scheduler import RETRY_SECONDS, Scheduler
from carrel.core.control.usage import UsageBook
from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.expectation import Coverage
from carrel.core.domain.job import Job, Reason
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.placement import FreeGpus, Holding, Wait, Waiting
from carrel.core.domain.ports import Attempt, Clock, Engine

_log = logging.getLogger(__name__)
#: Seconds for which what is free for a user is not worked out again while nothing changes, and in any case; and for how many
#: users that is kept. It takes 30 ms with 200 jobs in line on 96 GPUs.
_FREE_SECONDS, _FREE_AT_LEAST, _FREE_MOST = 60.0, 3.0, 1000


class ControlLoop:
    """Runs in a thread of its own between `start` and `stop`."""

    def __init__(
        self,
        *,
        jobs: SchedulerStore,
        events: EventLog,
        engine: Engine,
        clock: Clock,
        settings: LoopSettings,
        describe: Describe | None = None,
        history: Callable[[], Iterable[Job]] = tuple,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`history` are jobs that have ended, oldest first: how long others will run is learned from them.

        `make_room` is called when a disk is full; True when it may be tried again at once.
        """
        self._history = history
        self._make_room = make_room
        #: What was in the way last, by its class: it is logged once.
        self._trouble: type[Unavailable] | None = None
        self._engine = engine
        self._clock = clock
        self._scheduler = Scheduler(jobs=jobs, events=events, engine=engine, settings=settings, describe=describe)
        self._events = events
        self._inbox = Inbox()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._adopted: Sequence[tuple[Attempt, Launch, str]] = ()
        #: By user, account, class of service and partition: of which cycle and when what is free was worked out, and what it was.
        self._free: dict[tuple[str, ...], tuple[QueueReport, float, Sequence[FreeGpus]]] = {}

    @property
    def use(self) -> UsageBook:
        """Who has used what."""
        return self._scheduler.use

    # ---- what others call, from any thread

    def start(self) -> None:
        """Take up what an earlier server left, then begin."""
        learn(self._scheduler.run_times, self._history())
        self._adopted, wanted = self._scheduler.recover(self._clock())
        self._inbox.put(jobs=wanted)
        self._engine.observe(self.observed)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; jobs go on."""
        self._inbox.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def changed(self, *jobs: Job) -> None:
        """The jobs were submitted or cancelled in the store."""
        self._inbox.put(jobs=jobs)

    def observed(self, observations: Sequence[Observation]) -> None:
        """An engine has news."""
        self._inbox.put(observations=observations)

    def look_again(self) -> None:
        """Devices may have become free that nobody reports on."""
        self._inbox.put()

    def found_idle(self, sessions: frozenset[int]) -> None:
        """These sessions, by number, do nothing now: whoever waits for their memory reads so."""
        if sessions != self._scheduler.idle:
            self._scheduler.idle = sessions
            self._inbox.put()

    @contextmanager
    def waits(self, waiter: int, job: Job) -> Iterator[None]:
        """Within, the job `waiter` waits for `job`, and gives it its place if it has submitted it and that has none."""
        parents = self._scheduler.parents
        if job.parent != waiter:
            with parents.waits_for_another(waiter, job.id):
                yield
            return
        with parents.waits(waiter, job.id, self._clock()):
            self._inbox.put()
            yield

    def waits_already(self, job: int, other: int) -> bool:
        """True when `job` waits for `other`, or for one that does, and so on."""
        return self._scheduler.parents.waits_already(job, other)

    def wait_of(self, job_id: int, *, alternatives: bool = False) -> Wait | None:
        """Where a waiting job stood when the last cycle looked, or None; with `alternatives` that would start it sooner."""
        report = self._scheduler.queue_report
        wait = report.wait_of(job_id)
        if wait is None:
            return None
        found = tuple(report.alternatives_of(job_id)) if alternatives else ()
        return replace(wait, reason=self.with_parent(job_id, wait.reason), alternatives=found)

    def preview(self, job: Waiting) -> Wait | None:
        """Where a job would stand that is not in line yet, or None where it would start."""
        return self._scheduler.preview(job)

    def free_for(self, job: Waiting) -> tuple[Sequence[FreeGpus], bool]:
        """What is free of each type of GPU for tasks like `job`; False with what was so some seconds ago: it takes a while."""
        key, now, report = (job.owner, job.account, job.qos, job.partition), self._clock(), self._scheduler.queue_report
        known = self._free.get(key)
        age = inf if known is None else now - known[1]
        if known is None or not 0 <= age < (_FREE_SECONDS if known[0] is report else _FREE_AT_LEAST):
            if len(self._free) >= _FREE_MOST:
                self._free.clear()
            known = self._free[key] = (report, now, self._scheduler.free_for(job, now))
        return known[2], known[0] is report

    def with_parent(self, job_id: int, reason: Reason) -> Reason:
        """Return the reason of a job, with what there is to say where it waits for its child, or its parent for it."""
        return self._scheduler.parents.explain(job_id, reason, self._clock())

    def kept_back(self, job_id: int) -> Reason | None:
        """Why a job is not in line before its environment and inputs are here, and how far they are; or None."""
        return self._scheduler.before_place.reason(job_id)

    @property
    def coverage(self) -> Coverage:
        """How often the ranges of start times held that people saw."""
        return self._scheduler.start_ranges.calibration.coverage

    def uses(self, node: str) -> bool:
        """Whether a job holds resources on the node."""
        return any(node == held.node or any(node == part.node for part in held.others) for held in self.holding())

    def holding(self) -> tuple[Holding, ...]:
        """The jobs that hold resources now, for those who only look."""
        return self._scheduler.holding()

    def kept_devices(self) -> Mapping[str, int]:
        """The waiting job for which a free device was kept when the last cycle looked, by the device."""
        return self._scheduler.queue_report.kept_devices

    # ---- the thread

    def _run(self) -> None:
        self._engine.adopt(self._adopted)
        self._adopted = ()
        while (news := self._inbox.take(self._seconds_to_next)) is not None:
            try:
                self._scheduler.cycle(news, self._clock())
                if told := self._scheduler.parents.news(now := self._clock()):
                    self._events.append(told, now=now)
                self._goes_on()
            except Unavailable as error:
                self._stuck(error)
                self._inbox.give_back(news)
                if not (isinstance(error, StorageFull) and self._make_room()):
                    self._inbox.pause(RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - a defect must not take the lab down with it
                _log.exception("A cycle of the control loop failed; it goes on with the next one.")
                self._inbox.pause(RETRY_SECONDS)

    def _stuck(self, error: Unavailable) -> None:
        if self._trouble is not type(error):
            self._trouble = type(error)
            _log.error("The control loop cannot go on: %s It tries again every %g s until it can.", error, RETRY_SECONDS)

    def _goes_on(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            _log.info("The control loop goes on.")

    def _seconds_to_next(self) -> float | None:
        now = self._clock()
        moments = [moment for moment in (self._scheduler.next_at(), self._scheduler.parents.next_at(now)) if moment is not None]
        return min(moments) - now if moments else None

"""What a job needs before it has a place: nobody holds a GPU while an environment is built or data come from elsewhere.

What sees to it is a runner like that of an attempt, under the number 0, which starts no command: it builds the environment, and
fills what is kept of its owner's inputs. Nothing of this is written down but what the runner writes: a job that was not placed
when the server ended is seen to again, and what is there is taken from there. See
docs/decisions/0064-environments-before-the-place.md.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from carrel.core.control.event_ports import EventLog
from carrel.core.control.news import log_event, progress_event
from carrel.core.control.ports import OutboxEntry, SchedulerStore
from carrel.core.control.prerequisites import AT_ONCE, EACH, Prepares, Prerequisite, PrerequisiteWork, failure, need_of, why
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Ended, EnvironmentReady, InputsReady, Launch, Observation, Preparing
from carrel.core.domain.ports import Engine
from carrel.core.domain.task import TaskSpec

_log = logging.getLogger(__name__)

#: Jobs that wait for one runner and get events of how far it is.
_TOLD = 25
#: Fetches that are remembered, and for how many seconds: the jobs of a sweep come one after the other.
_REMEMBERED, _FRESH = 1000, 600.0
#: Seconds for which an environment that was there counts as there. One that is removed meanwhile is built by the attempt.
_SEEN = 10.0
#: The same for one on a cluster, where to look costs a job of the cluster's.
_SEEN_THERE = 6 * 3600.0
#: Bytes of inputs that are kept where a lab wants to keep none.
_KEEPS_NONE = 1024
#: What no attempt would do better.
_HOPELESS = frozenset({"InputFailed", "EnvironmentFailed"})


class BeforePlace:
    """Keeps jobs back until their environments and inputs are here. Used by the loop's thread, but for `reason`."""

    def __init__(
        self,
        *,
        jobs: SchedulerStore,
        events: EventLog,
        engine: Engine,
        prepares: Callable[[Job], Prepares],
        launch: Callable[[Job, TaskSpec], Launch],
        built: Callable[[Launch], bool],
        token: Callable[[Job], str],
        withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]],
    ) -> None:
        """`prepares` says what is seen to for a job; `launch` is that of a job without a place, on its way to where that is done.

        `built` says if its environment is there.
        """
        self._jobs, self._events, self._engine = jobs, events, engine
        self._prepares, self._launch, self._built = prepares, launch, built
        self._token, self._withdrawal = token, withdrawal
        self._works: dict[Prerequisite, PrerequisiteWork] = {}
        self._by_job: dict[int, Prerequisite] = {}
        self._by_carrier: dict[int, Prerequisite] = {}
        #: Why nothing begins at the moment, or None.
        self._halt: Reason | None = None
        #: Jobs that need not wait any more, with what was found for them.
        self._through: dict[int, tuple[Prerequisite, InputsReady | None]] = {}
        self._fresh: OrderedDict[Prerequisite, tuple[float, InputsReady]] = OrderedDict()
        #: When environments were seen last.
        self._seen: OrderedDict[Prerequisite, float] = OrderedDict()
        #: Jobs that come into the line next.
        self._freed: dict[int, Job] = {}
        #: Jobs whose needs cannot be met, why, and how many bytes of log they have of it.
        self._failed: dict[int, tuple[Job, Reason, int]] = {}
        #: True until what an earlier server left is taken up.
        self._recovers = True

    def keeps(self, job: Job, now: float) -> bool:
        """Return whether the job must not come into the line yet. It is kept then, and comes out of `turn`."""
        if job.state is not JobState.PENDING or job.attempt or not job.stage_in or job.id in self._through:
            self.forget(job)
            return False
        if (known := self._by_job.get(job.id)) is not None:
            self._works[known].waiting[job.id] = job
            return True
        prepares = self._prepares(job)
        task = self._jobs.task(job.id) if prepares is not Prepares.NOTHING else None
        if task is None:
            return False
        launch = self._launch(job, task)
        keeps = bool(launch.paths.inputs) and launch.limits.input_cache > _KEEPS_NONE
        need = need_of(job, task, keeps_inputs=keeps, cluster=launch.node)
        if (work := self._works.get(need)) is None:
            build, fetch = self._missing(need, launch, now)
            if not (build or fetch):
                self._through[job.id] = need, self._found(need, now)
                if self._recovers and need.environment:  # an earlier server may have had it built
                    self._engine.forget(job.id, 0, over=False)
                return False
            work = self._works[need] = PrerequisiteWork(builds=build)
        self._by_job[job.id] = need
        work.waiting[job.id] = job
        return True

    def found(self, job_id: int) -> InputsReady | None:
        """What was fetched for the job, as far as that is known."""
        return self._through[job_id][1] if job_id in self._through else None

    def reason(self, job_id: int) -> Reason | None:
        """Why the job is not in line, or None. Safe to ask from any thread."""
        need = self._by_job.get(job_id)
        work = self._works.get(need) if need is not None else None
        if need is None or work is None:
            return None
        return self._halt if self._halt is not None and not work.carrier else why(need, work, job_id)

    def forget(self, job: Job) -> None:
        """The job does not wait for this any more. One that has ended needs nothing of what was found either."""
        if job.state.ended:
            self._through.pop(job.id, None)
            self._failed.pop(job.id, None)
            self._freed.pop(job.id, None)
        need = self._by_job.pop(job.id, None)
        if need is None:
            return
        work = self._works[need]
        work.waiting.pop(job.id, None)
        if not work.carrier:
            if not work.waiting:
                del self._works[need]
        elif not work.waiting or (work.carrier == job.id and need.inputs):
            # A build goes on for the jobs that are left. A fetch asks the lab as its job, which has an end.
            self._engine.cancel(work.carrier, 0, by=job.cancelled_by or "the lab")

    def hear(self, observations: Iterable[Observation], now: float) -> None:
        """Runners have news."""
        for observation in observations:
            if observation.attempt:
                self._hear_attempt(observation, now)
                continue
            need = self._by_carrier.get(observation.job_id)
            if need is None:
                continue
            work = self._works[need]
            work.log_size = observation.log_size or work.log_size
            for entry in observation.entries:
                if isinstance(entry.record, Preparing):
                    work.message = entry.record.message
                    self._tell(need, work, now)
                elif isinstance(entry.record, EnvironmentReady):
                    if need.inputs:
                        work.builds, work.message = False, ""
                    self._see(need, now)
                elif isinstance(entry.record, InputsReady):
                    work.found = entry.record
                    self._fresh[need.inputs_alone] = (now, entry.record)
                    _trim(self._fresh, need.inputs_alone)
                elif isinstance(entry.record, Ended):
                    self._end(need, work, entry.record)
            if observation.gone and work.carrier == observation.job_id:
                self._end(need, work, None)

    def _hear_attempt(self, observation: Observation, now: float) -> None:
        """An attempt has found its environment there, or has built it in its place."""
        passed = self._through.get(observation.job_id)
        if passed is not None and any(isinstance(entry.record, EnvironmentReady) for entry in observation.entries):
            self._see(passed[0], now)

    def turn(self, now: float, halt: Reason | None) -> Iterator[Job]:
        """Begin what may begin, unless there is a `halt`; yield those who come into the line, or have failed.

        Whom the caller could not deal with is yielded again the next time.
        """
        self._halt, self._recovers = halt, False
        for job_id, (job, reason, log_size) in tuple(self._failed.items()):
            if log_size:
                self._events.append([log_event(job, log_size)], now=now)
            after = self._jobs.fail(job_id, reason=reason, now=now, outbox=self._withdrawal)
            if after is not None:
                yield after
            self._failed.pop(job_id, None)
        if halt is None:
            self._start(now)
        for job_id, job in tuple(self._freed.items()):
            yield job
            self._freed.pop(job_id, None)

    # ---- what is there

    def _missing(self, need: Prerequisite, launch: Launch, now: float) -> tuple[bool, bool]:
        """Return whether its environment has to be built, and its inputs to be fetched."""
        seen = self._seen.get(need.environment_alone)
        there = not need.environment or (seen is not None and now < seen + (_SEEN_THERE if need.cluster else _SEEN))
        if not there and (there := self._is_built(launch)):
            self._see(need, now)
        return not there, bool(need.inputs) and self._found(need, now) is None

    def _is_built(self, launch: Launch) -> bool:
        try:
            return self._built(launch)
        except Exception:  # noqa: BLE001 - one recipe must not hold up everybody; who builds it meets the same, and says so
            _log.exception("Whether the environment of job %d is there cannot be said.", launch.job_id)
            return False

    def _found(self, need: Prerequisite, now: float) -> InputsReady | None:
        fresh = self._fresh.get(need.inputs_alone) if need.inputs else None
        return fresh[1] if fresh is not None and now < fresh[0] + _FRESH else None

    def _see(self, need: Prerequisite, now: float) -> None:
        self._seen[need.environment_alone] = now
        _trim(self._seen, need.environment_alone)

    # ---- one runner

    def _start(self, now: float) -> None:
        if len(self._by_carrier) == len(self._works):
            return
        running = Counter((need.kind, need.owner) for need in self._by_carrier.values())
        in_all = Counter(need.kind for need in self._by_carrier.values())
        for need, work in tuple(self._works.items()):
            if work.carrier or in_all[need.kind] >= AT_ONCE or running[need.kind, need.owner] >= EACH:
                continue
            self._carry(need, work, now)
            if work.carrier:
                running[need.kind, need.owner] += 1
                in_all[need.kind] += 1

    def _carry(self, need: Prerequisite, work: PrerequisiteWork, now: float) -> None:
        job = next(iter(work.waiting.values()))
        task = self._jobs.task(job.id) if self._prepares(job) is not Prepares.NOTHING else None
        if task is None:  # the rules have changed meanwhile
            self._let_go(need, work)
            return
        launch = self._launch(job, task)
        build, fetch = self._missing(need, launch, now)
        work.builds, work.found, work.log_size = build, self._found(need, now), 0
        if not (build or fetch):  # another one has seen to it
            self._let_go(need, work)
            return
        work.carrier = job.id
        self._by_carrier[job.id] = need
        try:
            self._engine.start(replace(launch, attempt=0, build=build, stage_in=fetch), token=self._token(job))
        except CarrelError as error:
            # Its attempt meets the same, and says so.
            _log.warning("What job %d needs is not seen to before it has its place: %s", job.id, error)
            work.carrier = 0
            del self._by_carrier[job.id]
            self._let_go(need, work)

    def _end(self, need: Prerequisite, work: PrerequisiteWork, ended: Ended | None) -> None:
        carrier, work.carrier = work.carrier, 0
        del self._by_carrier[carrier]
        failed = ended.reason if ended is not None and ended.reason.code in _HOPELESS else None
        # Who fails of it wants to read its log.
        over = failed is not None and any(not job.retries_left for job in work.waiting.values())
        self._engine.forget(carrier, 0, over=over)
        if ended is not None and ended.state is JobState.CANCELLED and carrier not in work.waiting:
            work.message, work.found = "", None
            if not work.waiting:
                del self._works[need]
            return  # somebody else's turn to carry it
        if ended is None and work.builds and work.waiting and not work.lost:
            work.message, work.lost = "", True
            return  # perhaps the machine was started anew
        self._let_go(need, work, failed, carrier)

    def _let_go(self, need: Prerequisite, work: PrerequisiteWork, failed: Reason | None = None, carrier: int = 0) -> None:
        """Its jobs come into the line. Where `failed` says why that is of no use, those without a retry have failed."""
        del self._works[need]
        for job in work.waiting.values():
            del self._by_job[job.id]
            self._through[job.id] = need, work.found
            if failed is not None and not job.retries_left:
                log_size = work.log_size if job.id == carrier else 0
                self._failed[job.id] = (job, failure(failed, job.id, carrier), log_size)
            else:
                self._freed[job.id] = job

    def _tell(self, need: Prerequisite, work: PrerequisiteWork, now: float) -> None:
        told = tuple(work.waiting.values())[:_TOLD]
        self._events.append([progress_event(replace(job, reason=why(need, work, job.id))) for job in told], now=now)


def _trim(remembered: OrderedDict[Prerequisite, Any], newest: Prerequisite) -> None:
    remembered.move_to_end(newest)
    if len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)

"""What a job needs before it has a place: nobody holds a GPU while an environment is built or data come from elsewhere.

What sees to it is a runner like that of an attempt, under the number 0, which starts no command: it builds the environment, and
fills what is kept of its owner's inputs. Nothing of this is written down but what the runner writes: a job that was not placed
when the server ended is seen to again, and what is there is taken from there. See docs/decisions/0059-inputs-before-the-place.md
and docs/decisions/0064-environments-before-the-place.md.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from carrel.control.needs import AT_ONCE, EACH, Errand, Need, failure, need_of, why
from carrel.control.news import log_event, progress_event
from carrel.control.ports import EventLog, OutboxEntry, SchedulerStore
from carrel.domain.errors import CarrelError
from carrel.domain.job import Job, JobState, Reason
from carrel.domain.launch import Ended, EnvironmentReady, InputsReady, Launch, Observation, Preparing
from carrel.domain.ports import Engine
from carrel.domain.task import TaskSpec

_log = logging.getLogger(__name__)

#: Jobs that wait for one runner and get events of how far it is.
_TOLD = 25
#: Fetches that are remembered, and for how many seconds: the jobs of a sweep come one after the other.
_REMEMBERED, _FRESH = 1000, 600.0
#: Seconds for which an environment that was there counts as there. One that is removed meanwhile is built by the attempt.
_SEEN = 10.0
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
        here: Callable[[Job], bool],
        launch: Callable[[Job, TaskSpec], Launch],
        built: Callable[[Launch], bool],
        token: Callable[[Job], str],
        withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]],
    ) -> None:
        """`here` is false for jobs of a cluster's nodes; `launch` is that of a job without a place.

        `built` says if its environment is there.
        """
        self._jobs, self._events, self._engine = jobs, events, engine
        self._here, self._launch, self._built = here, launch, built
        self._token, self._withdrawal = token, withdrawal
        self._errands: dict[Need, Errand] = {}
        self._by_job: dict[int, Need] = {}
        self._by_carrier: dict[int, Need] = {}
        #: Why nothing begins at the moment, or None.
        self._halt: Reason | None = None
        #: Jobs that need not wait any more, with what was found for them.
        self._through: dict[int, InputsReady | None] = {}
        self._fresh: OrderedDict[Need, tuple[float, InputsReady]] = OrderedDict()
        #: When environments were seen last.
        self._seen: OrderedDict[Need, float] = OrderedDict()
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
            self._errands[known].waiting[job.id] = job
            return True
        task = self._jobs.task(job.id) if self._here(job) else None
        if task is None:
            return False
        launch = self._launch(job, task)
        need = need_of(job, task, keeps_inputs=bool(launch.paths.inputs) and launch.limits.input_cache > _KEEPS_NONE)
        if (errand := self._errands.get(need)) is None:
            build, fetch = self._missing(need, launch, now)
            if not (build or fetch):
                self._through[job.id] = self._found(need, now)
                if self._recovers and need.environment:  # an earlier server may have had it built
                    self._engine.forget(job.id, 0, over=False)
                return False
            errand = self._errands[need] = Errand(builds=build)
        self._by_job[job.id] = need
        errand.waiting[job.id] = job
        return True

    def found(self, job_id: int) -> InputsReady | None:
        """What was fetched for the job, as far as that is known."""
        return self._through.get(job_id)

    def reason(self, job_id: int) -> Reason | None:
        """Why the job is not in line, or None. Safe to ask from any thread."""
        need = self._by_job.get(job_id)
        errand = self._errands.get(need) if need is not None else None
        if need is None or errand is None:
            return None
        return self._halt if self._halt is not None and not errand.carrier else why(need, errand, job_id)

    def forget(self, job: Job) -> None:
        """The job does not wait for this any more. One that has ended needs nothing of what was found either."""
        if job.state.ended:
            self._through.pop(job.id, None)
            self._failed.pop(job.id, None)
            self._freed.pop(job.id, None)
        need = self._by_job.pop(job.id, None)
        if need is None:
            return
        errand = self._errands[need]
        errand.waiting.pop(job.id, None)
        if not errand.carrier:
            if not errand.waiting:
                del self._errands[need]
        elif not errand.waiting or (errand.carrier == job.id and need.inputs):
            # A build goes on for the jobs that are left. A fetch asks the lab as its job, which has an end.
            self._engine.cancel(errand.carrier, 0, by=job.cancelled_by or "the lab")

    def hear(self, observations: Iterable[Observation], now: float) -> None:
        """Runners have news."""
        for observation in observations:
            need = self._by_carrier.get(observation.job_id) if observation.attempt == 0 else None
            if need is None:
                continue
            errand = self._errands[need]
            errand.log_size = observation.log_size or errand.log_size
            for entry in observation.entries:
                if isinstance(entry.record, Preparing):
                    errand.message = entry.record.message
                    self._tell(need, errand, now)
                elif isinstance(entry.record, EnvironmentReady):
                    if need.inputs:
                        errand.builds, errand.message = False, ""
                    self._see(need, now)
                elif isinstance(entry.record, InputsReady):
                    errand.found = entry.record
                    self._fresh[need.inputs_alone] = (now, entry.record)
                    _trim(self._fresh, need.inputs_alone)
                elif isinstance(entry.record, Ended):
                    self._end(need, errand, entry.record)
            if observation.gone and errand.carrier == observation.job_id:
                self._end(need, errand, None)

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

    def _missing(self, need: Need, launch: Launch, now: float) -> tuple[bool, bool]:
        """Return whether its environment has to be built, and its inputs to be fetched."""
        there = not need.environment or now < self._seen.get(need.environment_alone, -_SEEN) + _SEEN
        if not there and (there := self._is_built(launch)):
            self._see(need, now)
        return not there, bool(need.inputs) and self._found(need, now) is None

    def _is_built(self, launch: Launch) -> bool:
        try:
            return self._built(launch)
        except Exception:  # noqa: BLE001 - one recipe must not hold up everybody; who builds it meets the same, and says so
            _log.exception("Whether the environment of job %d is there cannot be said.", launch.job_id)
            return False

    def _found(self, need: Need, now: float) -> InputsReady | None:
        fresh = self._fresh.get(need.inputs_alone) if need.inputs else None
        return fresh[1] if fresh is not None and now < fresh[0] + _FRESH else None

    def _see(self, need: Need, now: float) -> None:
        self._seen[need.environment_alone] = now
        _trim(self._seen, need.environment_alone)

    # ---- one runner

    def _start(self, now: float) -> None:
        if len(self._by_carrier) == len(self._errands):
            return
        running = Counter((need.kind, need.owner) for need in self._by_carrier.values())
        in_all = Counter(need.kind for need in self._by_carrier.values())
        for need, errand in tuple(self._errands.items()):
            if errand.carrier or in_all[need.kind] >= AT_ONCE or running[need.kind, need.owner] >= EACH:
                continue
            self._carry(need, errand, now)
            if errand.carrier:
                running[need.kind, need.owner] += 1
                in_all[need.kind] += 1

    def _carry(self, need: Need, errand: Errand, now: float) -> None:
        job = next(iter(errand.waiting.values()))
        task = self._jobs.task(job.id) if self._here(job) else None
        if task is None:  # the rules have changed meanwhile
            self._let_go(need, errand)
            return
        launch = self._launch(job, task)
        build, fetch = self._missing(need, launch, now)
        errand.builds, errand.found, errand.log_size = build, self._found(need, now), 0
        if not (build or fetch):  # another one has seen to it
            self._let_go(need, errand)
            return
        errand.carrier = job.id
        self._by_carrier[job.id] = need
        try:
            self._engine.start(replace(launch, attempt=0, build=build, stage_in=fetch), token=self._token(job))
        except CarrelError as error:
            # Its attempt meets the same, and says so.
            _log.warning("What job %d needs is not seen to before it has its place: %s", job.id, error)
            errand.carrier = 0
            del self._by_carrier[job.id]
            self._let_go(need, errand)

    def _end(self, need: Need, errand: Errand, ended: Ended | None) -> None:
        carrier, errand.carrier = errand.carrier, 0
        del self._by_carrier[carrier]
        failed = ended.reason if ended is not None and ended.reason.code in _HOPELESS else None
        # Who fails of it wants to read its log.
        over = failed is not None and any(not job.retries_left for job in errand.waiting.values())
        self._engine.forget(carrier, 0, over=over)
        if ended is not None and ended.state is JobState.CANCELLED and carrier not in errand.waiting:
            errand.message, errand.found = "", None
            if not errand.waiting:
                del self._errands[need]
            return  # somebody else's turn to carry it
        if ended is None and errand.builds and errand.waiting and not errand.lost:
            errand.message, errand.lost = "", True
            return  # perhaps the machine was started anew
        self._let_go(need, errand, failed, carrier)

    def _let_go(self, need: Need, errand: Errand, failed: Reason | None = None, carrier: int = 0) -> None:
        """Its jobs come into the line. Where `failed` says why that is of no use, those without a retry have failed."""
        del self._errands[need]
        for job in errand.waiting.values():
            del self._by_job[job.id]
            self._through[job.id] = errand.found
            if failed is not None and not job.retries_left:
                log_size = errand.log_size if job.id == carrier else 0
                self._failed[job.id] = (job, failure(failed, job.id, carrier), log_size)
            else:
                self._freed[job.id] = job

    def _tell(self, need: Need, errand: Errand, now: float) -> None:
        told = tuple(errand.waiting.values())[:_TOLD]
        self._events.append([progress_event(replace(job, reason=why(need, errand, job.id))) for job in told], now=now)


def _trim(remembered: OrderedDict[Need, Any], newest: Need) -> None:
    remembered.move_to_end(newest)
    if len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)

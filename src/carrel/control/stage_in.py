"""Inputs that lie elsewhere are fetched before their job is placed: nobody holds a GPU while data come.

A fetch is a runner like that of an attempt, under the number 0, which starts no command: it fills what is kept of its owner's
inputs. Nothing of this is written down but what the runner writes: whoever was not placed when the server ended is fetched for
again, and what was fetched is taken from there. See docs/decisions/0059-inputs-before-the-place.md.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from carrel.control.news import progress_event
from carrel.control.ports import EventLog, OutboxEntry, SchedulerStore
from carrel.domain.errors import CarrelError
from carrel.domain.job import Job, JobState, Reason
from carrel.domain.launch import Ended, InputsReady, Launch, Observation, Preparing
from carrel.domain.ports import Engine
from carrel.domain.task import InputSpec, TaskSpec

_log = logging.getLogger(__name__)

#: Fetches that run at once, of everybody and of one owner.
_AT_ONCE, _EACH = 8, 2
#: Seconds that a fetch may take: it holds nothing, and data may have to come from tape.
_LONGEST = 7 * 86400
#: Jobs that wait for one fetch and are told how far it is.
_TOLD = 25
#: Fetches that are remembered, and for how many seconds: the jobs of a sweep come one after the other.
_REMEMBERED, _FRESH = 1000, 600.0
_CODE = "StageIn"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """What is fetched once, however many jobs want it."""

    owner: str
    inputs: tuple[InputSpec, ...]
    secrets: tuple[str, ...]


@dataclass(slots=True)
class _Fetch:
    """What one owner's jobs with the same inputs wait for."""

    waiting: dict[int, Job] = field(default_factory=dict)
    #: The job under whose number it runs; 0: it has not begun.
    carrier: int = 0
    #: How far it is.
    message: str = ""
    found: InputsReady | None = None


class StageIn:
    """Keeps jobs back until their inputs are here. Used by the loop's thread, but for `reason`."""

    def __init__(
        self,
        *,
        jobs: SchedulerStore,
        events: EventLog,
        engine: Engine,
        begin: Callable[[Job, TaskSpec], Launch | None],
        token: Callable[[Job], str],
        withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]],
    ) -> None:
        """`begin` is the launch of a job without a place, None for one that is not fetched for before it has one."""
        self._jobs, self._events, self._engine = jobs, events, engine
        self._begin, self._token, self._withdrawal = begin, token, withdrawal
        self._fetches: dict[_Key, _Fetch] = {}
        self._by_job: dict[int, _Key] = {}
        self._by_carrier: dict[int, _Key] = {}
        #: Why nothing begins at the moment, or None.
        self._halt: Reason | None = None
        #: Jobs that need not wait any more, with what was found for them.
        self._through: dict[int, InputsReady | None] = {}
        self._fresh: OrderedDict[_Key, tuple[float, InputsReady]] = OrderedDict()
        #: Jobs that come into the line next.
        self._freed: dict[int, Job] = {}
        #: Jobs whose inputs cannot be fetched, and why.
        self._failed: dict[int, Reason] = {}

    def keeps(self, job: Job, now: float) -> bool:
        """Return whether the job must not come into the line yet. It is kept then, and comes out of `turn`."""
        if job.state is not JobState.PENDING or job.attempt or not job.stage_in or job.id in self._through:
            self.forget(job)
            return False
        if (known := self._by_job.get(job.id)) is not None:
            self._fetches[known].waiting[job.id] = job
            return True
        task = self._jobs.task(job.id)
        if task is None or self._begin(job, task) is None:
            return False
        inputs = tuple(item for item in task.all_inputs if item.lies_elsewhere)
        key = _Key(owner=job.owner, inputs=inputs, secrets=task.secrets)
        fresh = self._fresh.get(key)
        if fresh is not None and now < fresh[0] + _FRESH:
            self._through[job.id] = fresh[1]
            return False
        self._by_job[job.id] = key
        self._fetches.setdefault(key, _Fetch()).waiting[job.id] = job
        return True

    def found(self, job_id: int) -> InputsReady | None:
        """What was fetched for the job, as far as that is known."""
        return self._through.get(job_id)

    def reason(self, job_id: int) -> Reason | None:
        """Why the job is not in line, or None. Safe to ask from any thread."""
        key = self._by_job.get(job_id)
        fetch = self._fetches.get(key) if key is not None else None
        if fetch is None:
            return None
        return self._halt if self._halt is not None and not fetch.carrier else _why(fetch, job_id)

    def forget(self, job: Job) -> None:
        """The job does not wait for this any more. One that has ended needs nothing of what was found either."""
        if job.state.ended:
            self._through.pop(job.id, None)
            self._failed.pop(job.id, None)
            self._freed.pop(job.id, None)
        key = self._by_job.pop(job.id, None)
        if key is None:
            return
        fetch = self._fetches[key]
        fetch.waiting.pop(job.id, None)
        if fetch.carrier == job.id:
            self._engine.cancel(job.id, 0, by=job.cancelled_by or "the lab")
        elif not fetch.waiting and not fetch.carrier:
            del self._fetches[key]

    def hear(self, observations: Iterable[Observation], now: float) -> None:
        """Fetches have news."""
        for observation in observations:
            key = self._by_carrier.get(observation.job_id) if observation.attempt == 0 else None
            if key is None:
                continue
            fetch = self._fetches[key]
            for entry in observation.entries:
                if isinstance(entry.record, Preparing):
                    fetch.message = entry.record.message
                    self._tell(fetch, now)
                elif isinstance(entry.record, InputsReady):
                    fetch.found = entry.record
                elif isinstance(entry.record, Ended):
                    self._end(key, fetch, entry.record, now)
            if observation.gone and fetch.carrier == observation.job_id:
                self._end(key, fetch, None, now)

    def turn(self, now: float, halt: Reason | None) -> Iterator[Job]:
        """Begin what may begin, unless there is a `halt`; yield those who come into the line, or have failed.

        Whom the caller could not deal with is yielded again the next time.
        """
        self._halt = halt
        for job_id, reason in tuple(self._failed.items()):
            after = self._jobs.fail(job_id, reason=reason, now=now, outbox=self._withdrawal)
            if after is not None:
                yield after
            self._failed.pop(job_id, None)
        if halt is None:
            self._start()
        for job_id, job in tuple(self._freed.items()):
            yield job
            self._freed.pop(job_id, None)

    # ---- one fetch

    def _start(self) -> None:
        if len(self._by_carrier) >= min(_AT_ONCE, len(self._fetches)):
            return
        running = Counter(key.owner for key in self._by_carrier.values())
        for key, fetch in tuple(self._fetches.items()):
            if running.total() >= _AT_ONCE:
                break
            if not fetch.carrier and running[key.owner] < _EACH:
                running[key.owner] += 1
                self._carry(key, fetch)

    def _carry(self, key: _Key, fetch: _Fetch) -> None:
        job = next(iter(fetch.waiting.values()))
        task = self._jobs.task(job.id)
        launch = None if task is None else self._begin(job, task)
        if launch is None:  # the rules have changed meanwhile
            self._let_go(key, fetch)
            return
        fetch.carrier = job.id
        self._by_carrier[job.id] = key
        limits = replace(launch.limits, prepare=_LONGEST)
        try:
            self._engine.start(replace(launch, attempt=0, stage_in=True, limits=limits), token=self._token(job))
        except CarrelError as error:
            # Its attempt meets the same, and says so.
            _log.warning("The inputs of job %d are not fetched before it has its place: %s", job.id, error)
            del self._by_carrier[job.id]
            self._let_go(key, fetch)

    def _end(self, key: _Key, fetch: _Fetch, ended: Ended | None, now: float) -> None:
        carrier, fetch.carrier = fetch.carrier, 0
        del self._by_carrier[carrier]
        self._engine.forget(carrier, 0, over=False)
        if ended is not None and ended.state is JobState.CANCELLED and carrier not in fetch.waiting:
            fetch.message, fetch.found = "", None
            if not fetch.waiting:
                del self._fetches[key]
            return  # somebody else's turn to carry it
        if ended is not None and ended.state is JobState.COMPLETED and fetch.found is not None:
            self._fresh[key] = (now, fetch.found)
            self._fresh.move_to_end(key)
            if len(self._fresh) > _REMEMBERED:
                self._fresh.popitem(last=False)
        hopeless = ended is not None and ended.reason.code == "InputFailed"
        self._let_go(key, fetch, ended.reason if hopeless and ended is not None else None)

    def _let_go(self, key: _Key, fetch: _Fetch, failed: Reason | None = None) -> None:
        """Its jobs come into the line. Where `failed` says why that is of no use, those without a retry have failed."""
        del self._fetches[key]
        for job in fetch.waiting.values():
            del self._by_job[job.id]
            self._through[job.id] = fetch.found
            if failed is not None and not job.retries_left:
                self._failed[job.id] = failed
            else:
                self._freed[job.id] = job

    def _tell(self, fetch: _Fetch, now: float) -> None:
        told = tuple(fetch.waiting.values())[:_TOLD]
        self._events.append([progress_event(replace(job, reason=_why(fetch, job.id))) for job in told], now=now)


def _why(fetch: _Fetch, job_id: int) -> Reason:
    if not fetch.carrier:
        at_once = f"at most {_EACH} fetches of one user, and {_AT_ONCE} in all, run at once"
        return Reason(code=_CODE, message=f"Its inputs are fetched before it is placed; {at_once}.")
    which = "" if fetch.carrier == job_id else f", the same as those of job {fetch.carrier},"
    return Reason(code=_CODE, message=f"Its inputs{which} are fetched before it is placed: {fetch.message or 'this begins'}.")

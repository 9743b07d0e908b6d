"""The thread that talks to Slurm: has jobs submitted, cancels, and compares what Slurm lists with what the journals say.

What Slurm says changes nothing by itself. A job that is missing, a controller that is silent and a state that nobody knows are
no ends. An end of Slurm's counts when no runner lives: it is then written into the journal, in the runner's place.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended, Launch
from carrel.core.domain.ports import Clock
from carrel.core.spool.checkpoint import wrote_checkpoint
from carrel.engines.attempts import write_cancel
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.faults import SiteFault, SiteFaults, was_held
from carrel.engines.slurm.followed import Followed, cancelled, end_without_runner, never_to_run, runner_of, write_end
from carrel.engines.slurm.follower import Follower
from carrel.engines.slurm.immediate import Allocations
from carrel.engines.slurm.limits import QosLimits
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.missing import SAYS_WHO, MissingJobs
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.pilots import Pilots
from carrel.engines.slurm.shared import Listing
from carrel.engines.slurm.states import SlurmEnd, end_of, is_live, waits_for
from carrel.engines.slurm.submitter import TIMES_AGAIN, Submitter

#: Seconds for which a runner may live on after Slurm has said that its job ended (a node that was cut off).
_LIVES_ON = 120.0
#: Seconds after which a runner that was asked to end is ended by Slurm, beyond its own grace.
_SLOW_TO_END = 30.0

#: Looks between two listings while nothing is to be expected, and looks for which something is, after a job was handed over.
_AT_REST, _RESTLESS = 4, 12
_log = logging.getLogger(__name__)


class Reconciler:
    """Its methods may be called from any thread and return at once."""

    def __init__(
        self,
        *,
        slurm: SlurmCommands,
        follower: Follower,
        options: Callable[[Launch], SlurmOptions],
        command: Callable[[Followed], Sequence[str]],
        element_command: Callable[[Path], Sequence[str]],
        lab: str,
        allocations: Allocations,
        pilots: Callable[[Callable[[Callable[[], None]], None], Callable[[Followed], None]], Pilots],
        listing: Listing | None = None,
        user: str,
        interval: float,
        monotonic: Clock,
        clock: Clock,
    ) -> None:
        """`command` is what a batch script becomes, `element_command` the same for an array by the directory in which its
        elements are written down; `lab` is in its identity. `interval` is the seconds between two looks; `user` owns the jobs.
        `pilots` makes them, from how they speak into the reconciler's thread and how it submits what no pilot will run.
        `listing` is used where an earlier answer will do."""
        self._slurm = slurm
        self._follower = follower
        self._options = options
        self._allocations = allocations
        self._limits = QosLimits(qos_of=slurm.qos_of, limits=slurm.limits, max_submit=slurm.max_submit, monotonic=monotonic)
        self._submitter = Submitter(
            slurm=slurm,
            follower=follower,
            options=options,
            command=command,
            element_command=element_command,
            lab=lab,
            allocations=allocations,
            pilots=partial(pilots, self._do),
            limits=self._limits,
            user=user,
            monotonic=monotonic,
            end=self._end,
            cancel=self._cancel,
            look_by=self._look_by,
        )
        self._pilots = self._submitter.pilots
        self._faults = SiteFaults(slurm)
        self._missing = MissingJobs(
            slurm,
            follower,
            self._submitter,
            user=user,
            monotonic=monotonic,
            listed=self._compare,
            end=self._end,
            guard=self._guard,
        )
        self._user = user
        self._interval = interval
        self._monotonic = monotonic
        self._clock = clock
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._listing = listing or (lambda _since, _numbers: slurm.listing())
        self._look_at = 0.0
        #: When Slurm was last asked for a listing.
        self._listed_at = -math.inf
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="carrel-slurm", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, followed: Followed) -> None:
        """Submit a job for the attempt, unless there is one."""
        self._do(partial(self._submitter.submit, followed))

    def cancel(self, followed: Followed) -> None:
        """Make the runner look at its cancel file; see to it that none begins."""
        self._do(partial(self._cancel, followed))

    def ended(self) -> None:
        """A job has ended: Slurm may have room for another one."""
        self._do(self._submitter.ended)

    def alert(self, followed: Followed) -> None:
        """Make the runner, if there is one, look at what was left for it."""
        self._do(partial(self._alert, followed))

    def _alert(self, followed: Followed) -> None:
        if followed.number is not None and not followed.watched.over:
            self._wake(followed, followed.number)

    def _wake(self, followed: Followed, number: int) -> None:
        if followed.held:
            self._slurm.wake(number, name=followed.name)
        else:
            self._slurm.signal(number, "TERM", name=followed.identity, task=followed.task)

    def close(self) -> None:
        """Stop. A command that is being run ends by itself, in time."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        self._pilots.close()

    def _do(self, function: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(function)
            self._changed.notify()

    # --- in the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stop and not self._work and (pause := self._due() - self._monotonic()) > 0:
                    self._changed.wait(pause)
                if self._stop:
                    return
                work = (
                    self._work.popleft()
                    if self._work
                    else self._look
                    if self._look_at <= self._monotonic()
                    else self._submitter.try_next
                    if self._submitter.has_next()
                    else self._pilots.tend
                )
            try:
                work()
            except CarrelError as error:
                _log.warning("Slurm: %s", error)
            except Exception:  # noqa: BLE001 - one attempt's trouble must not stop the others
                _log.exception("the reconciler with Slurm failed and goes on")

    def _look_by(self, at: float) -> None:
        self._look_at = min(self._look_at, at)

    def _due(self) -> float:
        moments = (self._look_at, self._pilots.again_at(), self._submitter.next_at())
        return min(moment for moment in moments if moment is not None)

    def _cancel(self, followed: Followed) -> None:
        if followed.watched.over:
            return
        now = self._monotonic()
        if followed.cancel_since is None:
            followed.cancel_since = now
        if followed.number is None:
            if followed.asked:
                followed.ask_at = min(followed.ask_at, now)
            else:
                self._submitter.submit(followed)  # which sees the cancel file
            return
        if now - followed.cancel_since > followed.watched.launch.limits.grace + _SLOW_TO_END:
            self._slurm.cancel(followed.number, name=followed.identity, task=followed.task)
            return
        if followed.held:
            by = followed.cancelled_by() or "somebody"
            if runner_of(followed) is None and never_to_run(followed, cancelled(by), self._clock()):
                self._slurm.cancel(followed.number, name=followed.name)
                self._follower.look(followed)
            else:
                self._slurm.wake(followed.number, name=followed.name)
            self._look_at = now + min(1.0, self._interval)
            return
        # Only what waits is taken out of the queue: a runner that lives ends its command by itself and keeps its outputs.
        self._slurm.cancel_waiting(followed.number, name=followed.identity, task=followed.task)
        self._slurm.signal(followed.number, "TERM", name=followed.identity, task=followed.task)
        self._look_at = now + min(1.0, self._interval)

    def _look(self) -> None:
        now = self._monotonic()
        self._look_at = now + self._interval
        waiting = self._follower.all()
        for followed in waiting:
            if followed.number is None and now >= followed.ask_at:
                self._guard(followed, self._submitter.submit)
        numbered = [followed for followed in waiting if followed.number is not None and not followed.watched.over]
        since = self._wanted_since(numbered, now)
        if since is None:
            return
        self._listed_at = now
        try:
            listing = self._listing(since, {followed.number or 0 for followed in numbered})
        except CarrelError as error:
            for followed in numbered:
                if runner_of(followed) is None:
                    self._follower.say(followed, f"Slurm cannot be asked about job {followed.shown}: {error.message}")
                else:
                    self._missing.without_evidence(followed)
            return
        jobs = {(job.id, job.task): job for job in listing}
        own = [job for job in listing if not self._user or job.user == self._user]
        self._allocations.tend_all(own, {followed.watched.key: followed.number for followed in waiting})
        self._pilots.tend_strays(own)
        missing = []
        for followed in numbered:
            job = jobs.get((followed.number or 0, followed.task))
            # A controller that lost its memory gives numbers again: the identity tells whose job it is.
            if job is not None and followed.is_its(job) and (not self._user or job.user == self._user):
                self._guard(followed, partial(self._compare, job=job))
            else:
                missing.append(followed)
        if missing:
            self._missing.compare(missing, {(job.id, job.identity) for job in own})

    def _wanted_since(self, numbered: Sequence[Followed], now: float) -> float | None:
        """Return the age of the listing that is wanted now, as the moment at which it was begun at the earliest; None for none.

        While runners live, what Slurm says of their jobs changes nothing, so it is asked rarely; and not often by those who wait.
        """
        if self._allocations.outstanding() or self._pilots.outstanding():
            return now
        alive = [runner_of(followed) for followed in numbered]
        if not numbered:
            return None
        if False in alive or any(followed.cancelled or followed.missing_since for followed in numbered):
            return now
        rest = _AT_REST * self._interval
        # Half a look early: clocks and looks do not agree to the millisecond.
        if None in alive and now < self._submitter.changed_at + _RESTLESS * self._interval:
            return max(self._submitter.changed_at, now - self._interval / 2)
        if now - self._listed_at < rest - self._interval / 2:
            return None
        return max(self._submitter.changed_at, now - rest + self._interval / 2)

    def _guard(self, followed: Followed, function: Callable[[Followed], None]) -> None:
        """Call `function`; one attempt's trouble (a full disk, a command that fails) must not stop the others."""
        try:
            function(followed)
        except (CarrelError, OSError, ValueError) as error:
            _log.warning("job %d, attempt %d, in Slurm: %s", *followed.watched.key, error)

    def _compare(self, followed: Followed, job: SlurmJob) -> None:
        end = end_of(job)
        followed.missing_since = None
        # First the lock, then the journal: a runner writes its end before it lets go.
        alive = runner_of(followed)
        if followed.own and alive is None:  # a pilot was to run it
            if not self._pilots.has(followed):
                followed.leave()
                followed.batch_only = True
                self._submitter.submit(followed)
            return
        if followed.own and end is None and alive is False:
            end_seen = SlurmEnd(state=JobState.FAILED, reason=Reason(code="", message=""))
            followed.explanation = followed.explanation or end_seen  # its allocation lives: Slurm has not ended it
            if not followed.watched.ended() and not self._pilots.has(followed):
                self._follower.gone(followed)
                return
        if end is not None and end.state is JobState.CANCELLED and followed.held and followed.released.exists():
            end = replace(end, state=JobState.COMPLETED)  # it was cancelled because its runner was through
        if end is not None and end.state is JobState.CANCELLED and not job.cancelled_by and followed.cancelled_by() is None:
            named = self._with_name(followed, job)
            if named is None:
                return
            job, end = named, end_of(named)
        if followed.watched.ended():
            followed.explanation = end
            self._follower.look(followed)
        elif end is not None:
            self._conclude(followed, job, end, alive=alive)
        elif alive is None and was_held(job) and not followed.cancelled and followed.again < TIMES_AGAIN:
            self._slurm.cancel(job.id, name=followed.identity, task=followed.task)
            self._submitter.start_elsewhere(followed, SiteFault(f"Slurm could not start it, and held it (Slurm job {job.shown})"))
            return
        elif alive is None and followed.held and job.state == "RUNNING":
            if not self._allocations.tend_waiting(followed):
                self._submitter.submit(followed)
                return
        elif alive is None:
            said = waits_for(job, self._limits.of_job(job.id, job.reason))
            self._submitter.say(followed, said if is_live(job) else f"Slurm says {job.state} of job {job.shown}.")
        elif alive and followed.held:
            self._allocations.tend_running(followed)
        if end is None and followed.cancelled and not followed.watched.over:
            self._cancel(followed)

    def _with_name(self, followed: Followed, job: SlurmJob) -> SlurmJob | None:
        """Return a cancelled job with the name of who did it; None while that may still become known."""
        try:
            records = self._missing.records(followed, self._slurm.history([job.id]))
        except CarrelError:
            return job
        named = [one for one in records if one.cancelled_by]
        if named:
            return named[-1]
        return job if self._has_waited(followed) else None

    def _has_waited(self, followed: Followed) -> bool:
        """True once Slurm has had its time for saying more about an end."""
        followed.ended_since = followed.ended_since or self._monotonic()
        return self._monotonic() - followed.ended_since > SAYS_WHO

    def _conclude(self, followed: Followed, job: SlurmJob, end: SlurmEnd, *, alive: bool | None) -> None:
        now = self._monotonic()
        if alive is None:
            self._never_began(followed, job, end)
            return
        if alive:
            followed.ended_since = followed.ended_since or now
            if now - followed.ended_since < _LIVES_ON:
                return
            write_cancel(followed.directory, "Slurm")  # should the node ever come back
        if end.state in (JobState.COMPLETED, JobState.FAILED):
            self._follower.gone(followed)  # that tells how the script ended, not how the command would have
            return
        write_end(
            followed.directory,
            Ended(
                state=end.state,
                reason=end.reason,
                signal=end.signal,
                retryable=end.retryable,
                checkpointed=followed.watched.launch.task.requeue > 0 and wrote_checkpoint(followed.directory),
            ),
            self._clock(),
        )
        self._follower.look(followed)

    def _never_began(self, followed: Followed, job: SlurmJob, end: SlurmEnd) -> None:
        """Submit again what a site's fault kept from beginning, so that nothing of it was lost; else it ends as Slurm says."""
        again = not followed.cancelled and followed.again < TIMES_AGAIN
        given_back = followed.held and followed.released.exists()  # since srun, or what was to guard the runner, was killed
        if (end.of_no_script or given_back) and again:
            self._submitter.submit_again(followed)
            return
        modules = bool(self._options(followed.watched.launch).modules)
        fault = self._faults.of(followed, job, end, modules=modules)
        if fault.doubtful and not self._has_waited(followed):
            return  # Slurm cancels the job first, and takes the node out of use then
        if fault.message and again:
            self._submitter.start_elsewhere(followed, fault)
        else:
            self._end(followed, end_without_runner(followed, end, fault.message))

    def _end(self, followed: Followed, ended: Ended) -> None:
        never_to_run(followed, ended, self._clock())
        self._follower.look(followed)

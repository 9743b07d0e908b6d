"""The thread that talks to Slurm: submits, cancels, and compares what Slurm lists with what the journals say.

What Slurm says changes nothing by itself. A job that is missing, a controller that is silent and a state that nobody knows are
no ends. An end of Slurm's counts when no runner lives: it is then written into the journal, in the runner's place.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from carrel.domain.errors import CarrelError
from carrel.domain.job import JobState, Reason
from carrel.domain.launch import Ended, Launch
from carrel.domain.ports import Clock
from carrel.engines.attempts import write_cancel, write_launch
from carrel.engines.slurm.commands import SlurmCommands, SlurmMissing, SlurmRefused
from carrel.engines.slurm.followed import Followed, cancelled, end_without_runner, never_to_run, runner_of, write_end
from carrel.engines.slurm.follower import SAYS_WHY, Follower
from carrel.engines.slurm.immediate import Allocations
from carrel.engines.slurm.listing import SlurmJob, find
from carrel.engines.slurm.options import SlurmOptions, sbatch_arguments
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import SlurmEnd, end_of, is_live, waits_for

#: Seconds before sbatch is tried again after it failed: at first, and at most.
_AGAIN, _AGAIN_AT_MOST = 2.0, 60.0
#: Seconds that the accounting database has for saying who cancelled a job, which squeue does not know.
_SAYS_WHO = 10.0
#: Seconds for which a runner may live on after Slurm has said that its job ended (a node that was cut off).
_LIVES_ON = 120.0
#: Seconds after which a runner that was asked to end is ended by Slurm, beyond its own grace.
_SLOW_TO_END = 30.0

_log = logging.getLogger(__name__)


class Reconciler:
    """Its methods may be called from any thread and return at once."""

    def __init__(
        self,
        *,
        commands: SlurmCommands,
        follower: Follower,
        options: Callable[[Launch], SlurmOptions],
        command: Callable[[Followed], Sequence[str]],
        allocations: Allocations,
        user: str,
        interval: float,
        monotonic: Clock,
        clock: Clock,
    ) -> None:
        """`command` is what a batch script becomes, `interval` the seconds between two listings; `user` owns the jobs."""
        self._slurm = commands
        self._follower = follower
        self._options = options
        self._command = command
        self._allocations = allocations
        self._user = user
        self._interval = interval
        self._monotonic = monotonic
        self._clock = clock
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._look_at = 0.0
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="carrel-slurm", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, followed: Followed) -> None:
        """Submit a job for the attempt, unless there is one."""
        self._do(partial(self._submit, followed))

    def cancel(self, followed: Followed) -> None:
        """Make the runner look at its cancel file; see to it that none begins."""
        self._do(partial(self._cancel, followed))

    def alert(self, followed: Followed) -> None:
        """Make the runner, if there is one, look at what was left for it."""
        self._do(partial(self._alert, followed))

    def _alert(self, followed: Followed) -> None:
        if followed.number is not None and not followed.watched.over:
            self._wake(followed, followed.number)

    def _wake(self, followed: Followed, number: int) -> None:
        if followed.held:
            self._slurm.wake([number])
        else:
            self._slurm.signal([number], "TERM")

    def close(self) -> None:
        """Stop. A command that is being run ends by itself, in time."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _do(self, function: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(function)
            self._changed.notify()

    # --- in the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stop and not self._work and (pause := self._look_at - self._monotonic()) > 0:
                    self._changed.wait(pause)
                if self._stop:
                    return
                work = self._work.popleft() if self._work else self._look
            try:
                work()
            except CarrelError as error:
                _log.warning("Slurm: %s", error)
            except Exception:  # noqa: BLE001 - one attempt's trouble must not stop the others
                _log.exception("the reconciler with Slurm failed and goes on")

    def _submit(self, followed: Followed) -> None:
        if followed.watched.over or followed.number is not None or runner_of(followed) is not None:
            return
        by, asked = followed.cancelled_by(), followed.asked
        if by is not None and not asked:
            self._end(followed, cancelled(by))
            return
        try:
            if followed.asked and self._found(followed, self._slurm.listing()):
                return
            if by is None:
                self._ask(followed)
            else:
                self._end(followed, cancelled(by))
        except SlurmRefused as error:
            reason = Reason(code="LaunchFailed", message=f"Slurm refused it: {error.reason}.")
            self._end(followed, Ended(state=JobState.FAILED, reason=reason))
        except (CarrelError, OSError) as error:
            if isinstance(error, SlurmMissing) and not asked:
                followed.unask()
            followed.failures += 1
            pause = min(_AGAIN_AT_MOST, _AGAIN * 2 ** (followed.failures - 1))
            followed.ask_at = self._monotonic() + pause
            self._look_at = min(self._look_at, followed.ask_at)
            message = error.message if isinstance(error, CarrelError) and not isinstance(error, SlurmMissing) else str(error)
            self._follower.say(followed, f"It is not submitted to Slurm yet: {message} This is tried again.")

    def _ask(self, followed: Followed) -> None:
        launch = followed.watched.launch
        if not followed.directory.launch.exists():
            write_launch(followed.watched)
        options = self._options(launch)
        if self._allocations.take(followed, options):
            followed.failures = 0
            if followed.cancelled:
                self._cancel(followed)
            return
        arguments = sbatch_arguments(
            options,
            name=followed.name,
            comment=launch.name,
            directory=str(followed.directory.path),
            output=str(followed.output),
        )
        followed.remember(None)
        followed.remember(self._slurm.submit(arguments, batch_script(self._command(followed), options)))
        followed.failures = 0
        if followed.cancelled:
            self._cancel(followed)

    def _found(self, followed: Followed, listing: Sequence[SlurmJob]) -> bool:
        """Look for a job that an earlier call of sbatch may have made; of several, for one that lives."""
        jobs = find(listing, followed.name, self._user)
        live = [job for job in jobs if is_live(job)]
        if not jobs or (followed.held and not live):  # an allocation that was refused is listed as a job that failed
            return False
        followed.remember(max((live or jobs), key=lambda job: job.id).id)
        return True

    def _cancel(self, followed: Followed) -> None:
        if followed.watched.over:
            return
        now = self._monotonic()
        if followed.cancel_since is None:
            followed.cancel_since = now
        if followed.number is None:
            if not followed.asked:
                self._submit(followed)  # which sees the cancel file
            return
        if now - followed.cancel_since > followed.watched.launch.limits.grace + _SLOW_TO_END:
            self._slurm.cancel([followed.number])
            return
        if followed.held:
            by = followed.cancelled_by() or "somebody"
            if runner_of(followed) is None and never_to_run(followed, cancelled(by), self._clock()):
                self._slurm.cancel([followed.number])
                self._follower.look(followed)
            else:
                self._slurm.wake([followed.number])
            self._look_at = now + min(1.0, self._interval)
            return
        # Only what waits is taken out of the queue: a runner that lives ends its command by itself and keeps its outputs.
        self._slurm.cancel_waiting([followed.number])
        self._slurm.signal([followed.number], "TERM")
        self._look_at = now + min(1.0, self._interval)

    def _look(self) -> None:
        now = self._monotonic()
        self._look_at = now + self._interval
        waiting = self._follower.all()
        for followed in waiting:
            if followed.number is None and now >= followed.ask_at:
                self._guard(followed, self._submit)
        numbered = [followed for followed in waiting if followed.number is not None and not followed.watched.over]
        if not (self._allocations.outstanding() or numbered):
            return
        try:
            listing = self._slurm.listing()
        except CarrelError as error:
            for followed in numbered:
                if runner_of(followed) is None:
                    self._follower.say(followed, f"Slurm cannot be asked about job {followed.number}: {error.message}")
                else:
                    self._without_evidence(followed)
            return
        jobs = {job.id: job for job in listing}
        self._allocations.tend_all(job for job in listing if not self._user or job.user == self._user)
        missing = []
        for followed in numbered:
            job = jobs.get(followed.number or 0)
            # A controller that lost its memory gives numbers again: the name tells whose job it is.
            if job is not None and job.name == followed.name and (not self._user or job.user == self._user):
                self._guard(followed, partial(self._compare, job=job))
            else:
                missing.append(followed)
        if missing:
            self._compare_with_history(missing)

    def _compare_with_history(self, missing: Sequence[Followed]) -> None:
        try:
            history = self._slurm.history({followed.name: followed.number for followed in missing})
        except CarrelError:
            history = ()
        for followed in missing:
            records = [job for job in find(history, followed.name, self._user) if job.id == followed.number]
            self._guard(followed, partial(self._compare_missing, records=records))

    def _compare_missing(self, followed: Followed, records: Sequence[SlurmJob]) -> None:
        if records and end_of(records[-1]):
            self._compare(followed, records[-1])
        elif runner_of(followed) is not None:
            self._without_evidence(followed)
        elif (by := followed.cancelled_by()) is not None:
            self._end(followed, cancelled(by))
        else:
            message = f"Slurm does not know job {followed.number} any more, and has no record of its end."
            self._follower.say(followed, f"{message} It is kept as it is; cancel it to give it up.")

    def _guard(self, followed: Followed, function: Callable[[Followed], None]) -> None:
        """Call `function`; one attempt's trouble (a full disk, a command that fails) must not stop the others."""
        try:
            function(followed)
        except (CarrelError, OSError, ValueError) as error:
            _log.warning("job %d, attempt %d, in Slurm: %s", *followed.watched.key, error)

    def _compare(self, followed: Followed, job: SlurmJob) -> None:
        end = end_of(job)
        # First the lock, then the journal: a runner writes its end before it lets go.
        alive = runner_of(followed)
        if end is not None and end.state is JobState.CANCELLED and followed.held and followed.released.exists():
            end = replace(end, state=JobState.COMPLETED)  # it was cancelled because its runner was through
        if end is not None and end.state is JobState.CANCELLED and not job.cancelled_by and followed.cancelled_by() is None:
            end = self._with_name(followed, end)
            if end is None:
                return
        if followed.watched.ended():
            followed.explanation = end
            self._follower.look(followed)
        elif end is not None:
            self._conclude(followed, end, alive=alive)
        elif alive is None and followed.held and job.state == "RUNNING":
            if not self._allocations.tend_waiting(followed, self._options(followed.watched.launch)):
                self._submit(followed)
                return
        elif alive is None:
            self._follower.say(followed, waits_for(job) if is_live(job) else f"Slurm says {job.state} of job {job.id}.")
        elif alive and followed.held:
            self._allocations.tend_running(followed)
        if end is None and followed.cancelled and not followed.watched.over:
            self._cancel(followed)

    def _with_name(self, followed: Followed, end: SlurmEnd) -> SlurmEnd | None:
        """Return the end of a cancelled job with the name of who did it; None while that may still become known."""
        try:
            records = find(self._slurm.history({followed.name: followed.number}), followed.name, self._user)
        except CarrelError:
            return end
        named = [job for job in records if job.id == followed.number and job.cancelled_by]
        if named:
            return end_of(named[-1])
        followed.ended_since = followed.ended_since or self._monotonic()
        return end if self._monotonic() - followed.ended_since > _SAYS_WHO else None

    def _conclude(self, followed: Followed, end: SlurmEnd, *, alive: bool | None) -> None:
        now = self._monotonic()
        if alive is None:
            self._end(followed, end_without_runner(followed, end))
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
            Ended(state=end.state, reason=end.reason, signal=end.signal, retryable=end.retryable),
            self._clock(),
        )
        self._follower.look(followed)

    def _without_evidence(self, followed: Followed) -> None:
        """Slurm says nothing. A runner that lives is all that counts; one that is gone is gone after a while."""
        if runner_of(followed) or followed.watched.ended():
            followed.dead_since = None
            return
        now = self._monotonic()
        followed.dead_since = followed.dead_since or now
        if now - followed.dead_since > SAYS_WHY:
            self._follower.gone(followed)

    def _end(self, followed: Followed, ended: Ended) -> None:
        never_to_run(followed, ended, self._clock())
        self._follower.look(followed)

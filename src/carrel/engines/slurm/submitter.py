"""Submits attempts to Slurm: into an allocation where there is one for them, else as batch jobs, in the order of the lab.

Whom Slurm has no room for waits in a line (`room`). Whatever is killed between sbatch and its answer, the next engine looks for
a job of the attempt's identity before it submits another.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from carrel.domain.errors import CarrelError
from carrel.domain.job import JobState, Reason
from carrel.domain.launch import Ended, Launch
from carrel.domain.ports import Clock
from carrel.engines.attempts import write_launch
from carrel.engines.slurm.commands import SlurmFull, SlurmMissing, SlurmRefused
from carrel.engines.slurm.faults import SiteFault, elsewhere
from carrel.engines.slurm.followed import Followed, cancelled, runner_of
from carrel.engines.slurm.follower import Follower
from carrel.engines.slurm.immediate import Allocations
from carrel.engines.slurm.limits import QosLimits, in_words
from carrel.engines.slurm.listing import SlurmJob, find, slurm_name
from carrel.engines.slurm.options import SlurmOptions, sbatch_arguments
from carrel.engines.slurm.pilots import Pilots
from carrel.engines.slurm.room import Room
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import end_of, is_live
from carrel.engines.slurm.transport import Transport

#: Seconds before sbatch is tried again after it failed: at first, and at most.
_AGAIN, _AGAIN_AT_MOST = 2.0, 60.0
#: How often a job that never began is submitted again.
TIMES_AGAIN = 3

_log = logging.getLogger(__name__)


class Submitter:
    """Only the reconciler's thread calls it."""

    def __init__(
        self,
        *,
        slurm: Transport,
        follower: Follower,
        options: Callable[[Launch], SlurmOptions],
        command: Callable[[Followed], Sequence[str]],
        allocations: Allocations,
        pilots: Callable[[Callable[[Followed], None]], Pilots],
        limits: QosLimits,
        user: str,
        monotonic: Clock,
        end: Callable[[Followed, Ended], None],
        cancel: Callable[[Followed], None],
        look_by: Callable[[float], None],
    ) -> None:
        """`end` ends an attempt that will have no job, `cancel` a job that is not wanted any more; `look_by` says when, in
        monotonic seconds, attempts without a job are to be submitted again."""
        self._slurm = slurm
        self._follower = follower
        self._options = options
        self._command = command
        self._allocations = allocations
        self.pilots = pilots(self.submit)
        self._limits = limits
        self._room = Room(monotonic)
        self._user = user
        self._monotonic = monotonic
        self._end = end
        self._cancel = cancel
        self._look_by = look_by
        #: When something was submitted last: an older listing may not have it.
        self.changed_at = -math.inf

    def try_next(self) -> None:
        """Slurm may have room for the first one of a line: submit that."""
        key = self._room.next()
        followed = None if key is None else self._follower.find(key)
        if followed is not None:
            followed.ask_at = 0.0
            try:
                self.submit(followed)
            except (CarrelError, OSError, ValueError) as error:
                _log.warning("job %d, attempt %d, is not submitted to Slurm: %s", *followed.watched.key, error)
        if key is not None and (followed is None or followed.ask_at < math.inf):
            self._room.leave(key)  # it was taken, or its trouble is another one

    def has_next(self) -> bool:
        """Return whether `try_next` is to be called now."""
        return self._room.next() is not None

    def next_at(self) -> float | None:
        """Return when to call `try_next`, in monotonic seconds; None while Slurm refuses nobody."""
        return self._room.next_at()

    def ended(self) -> None:
        """A job has ended: Slurm may have room for another one."""
        self._room.ended()

    def submit(self, followed: Followed) -> None:
        """Submit a job for the attempt, unless there is one, or it is not wanted any more."""
        try:
            self._submit_now(followed)
        finally:  # a listing that is older may not have it
            self.changed_at = self._monotonic()

    def _submit_now(self, followed: Followed) -> None:
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
            if followed.avoid:  # there may be no other node
                followed.avoid = ()
                followed.unask()
                self.submit(followed)
                return
            reason = Reason(
                code="LaunchFailed", message=f"Slurm refused it: {error.reason}.{self._may_be_limits(followed, error)}"
            )
            self._end(followed, Ended(state=JobState.FAILED, reason=reason))
        except (CarrelError, OSError) as error:
            if isinstance(error, SlurmMissing) and not asked:
                followed.unask()
            followed.failures += 1
            pause = min(_AGAIN_AT_MOST, _AGAIN * 2 ** (followed.failures - 1))
            followed.ask_at = self._monotonic() + pause
            self._look_by(followed.ask_at)
            message = error.message if isinstance(error, CarrelError) and not isinstance(error, SlurmMissing) else str(error)
            self._follower.say(followed, f"It is not submitted to Slurm yet: {message} This is tried again.")

    def _may_be_limits(self, followed: Followed, error: SlurmRefused) -> str:
        """Where a limit is the reason Slurm does not say which one: say what the QoS allows, if it is known."""
        if "QOS" not in error.reason and "policy" not in error.reason:
            return ""
        found = self._limits.of_qos(self._options(followed.watched.launch).qos)
        return f" {found}" if found else ""

    def _ask(self, followed: Followed) -> None:
        launch = followed.watched.launch
        if not followed.directory.launch.exists():
            write_launch(followed.watched)
        options = elsewhere(self._options(launch), followed.avoid)
        if self.pilots.take(followed, options):  # there may be one already, for which Slurm needs no room
            self._taken(followed)
            return
        place, key = (options.account, options.qos, options.partition), followed.watched.key
        if words := self._room.keeps_back(place, key):
            self._wait_for_room(followed, words, options)
            return
        if self._allocations.take(followed, options):
            self._taken(followed)
            return
        arguments = sbatch_arguments(
            options,
            name=slurm_name(launch.name),
            comment=followed.name,
            directory=str(followed.directory.path),
            output=str(followed.output),
        )
        followed.remember(None)
        try:
            followed.remember(self._slurm.submit(arguments, batch_script(self._command(followed), options)))
        except SlurmFull as error:
            if not error.perhaps:
                followed.unask()
            self._room.refused(place, key, error.reason)
            self._wait_for_room(followed, error.reason, options)
            return
        self._room.taken(place, key)
        self._taken(followed)

    def _taken(self, followed: Followed) -> None:
        followed.failures = 0
        if followed.cancelled:
            self._cancel(followed)

    def _wait_for_room(self, followed: Followed, words: str, options: SlurmOptions) -> None:
        """It is submitted when its turn comes; the room knows when."""
        followed.ask_at = math.inf
        meaning = ": ".join(part for part in (in_words(words), self._limits.value(options.qos, words)) if part)
        why = f"{words} ({meaning})" if meaning else words
        self.say(followed, f"Slurm has no room for it yet: {why}. It is submitted when another one has ended.")

    def _found(self, followed: Followed, listing: Sequence[SlurmJob]) -> bool:
        """Look for a job that an earlier call of sbatch may have made; of several, for one that lives."""
        jobs = find(listing, followed.name, self._user)
        live = [job for job in jobs if is_live(job)]
        jobs = tuple(job for job in jobs if (end := end_of(job)) is None or not end.of_no_script)  # nobody has claimed it
        if not jobs or (followed.held and not live):  # an allocation that was refused is listed as a job that failed
            return False
        followed.remember(max((live or jobs), key=lambda job: job.id).id)
        return True

    def submit_again(self, followed: Followed) -> None:
        """Submit a job in the place of one of which nothing is to be expected."""
        followed.again += 1
        followed.missing_since = followed.ended_since = None
        if followed.own:
            followed.leave()
        else:
            followed.hold(False)
            followed.unask()
            followed.number = None
        self.submit(followed)

    def start_elsewhere(self, followed: Followed, fault: SiteFault) -> None:
        """Submit it again, where that fault of the site's does not reach it."""
        followed.avoid = tuple(dict.fromkeys((*followed.avoid, *fault.nodes)))
        followed.batch_only = True
        times = f"{followed.again + 1} of {TIMES_AGAIN}"
        followed.fault = f"{fault.message}. It is submitted again, elsewhere ({times})."
        self._follower.say(followed, followed.fault)
        self.submit_again(followed)

    def say(self, followed: Followed, message: str) -> None:
        """Say something, and why it was submitted again, if it was."""
        self._follower.say(followed, f"{message} {followed.fault}".rstrip())

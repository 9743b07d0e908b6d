"""Submits attempts to Slurm: into an allocation where there is one for them, else as batch jobs, in the order of the lab.

Elements of an array that come together become one array of Slurm's (`arrays`), or several where Slurm has no room for all. Whom
Slurm has no room for is given back to the lab (`room`): the attempt is claimed, so that no runner ever has it, and its journal
says why. If a process is killed between sbatch and its answer, the next engine looks for a job of the attempt's identity before
it submits another.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended, Launch
from carrel.core.domain.ports import Clock
from carrel.engines.attempts import is_written, write_launch
from carrel.engines.slurm.arrays import Gathering, Pieces, index_of, leave_array, may_join, write_array
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.errors import SlurmFull, SlurmMissing, SlurmRefused
from carrel.engines.slurm.faults import SiteFault, elsewhere
from carrel.engines.slurm.followed import Followed, cancelled, runner_of
from carrel.engines.slurm.follower import Follower
from carrel.engines.slurm.immediate import Allocations
from carrel.engines.slurm.limits import QosLimits, in_words
from carrel.engines.slurm.listing import SlurmJob, find, slurm_name
from carrel.engines.slurm.numbers import indices_text
from carrel.engines.slurm.options import SlurmOptions, sbatch_arguments
from carrel.engines.slurm.pilots import Pilots
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import end_of, is_live
from carrel.engines.slurm.submit_capacity import Place, SubmitCapacity, place_of

#: Seconds before sbatch is tried again after it failed: at first, and at most.
_AFTER_FAILURE, _AT_MOST = 2.0, 60.0
#: How often a job that never began is submitted again.
TIMES_AGAIN = 3
#: Slurm's words for an index that is too large (slurm.conf(5), MaxArraySize).
_NO_ARRAY = "Invalid job array specification"

_log = logging.getLogger(__name__)


class Submitter:
    """Only the reconciler's thread calls it."""

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
        self._element_command = element_command
        self._lab = lab
        self._gathering = Gathering(monotonic)
        #: What the indices of Slurm's arrays are less than, as far as that is known.
        self._array_size = math.inf
        self._allocations = allocations
        self.pilots = pilots(self.submit)
        self._limits = limits
        self._room = SubmitCapacity(monotonic)
        self._user = user
        self._monotonic = monotonic
        self._end = end
        self._cancel = cancel
        self._look_by = look_by
        #: When something was submitted last: an older listing may not have it.
        self.changed_at = -math.inf

    def try_next(self) -> None:
        """Submit elements that have come together."""
        self._submit_elements(self._gathering.take())

    def has_next(self) -> bool:
        """Return whether `try_next` is to be called now."""
        at = self.next_at()
        return at is not None and at <= self._monotonic()

    def next_at(self) -> float | None:
        """Return when to call `try_next`, in monotonic seconds; None while nobody waits for that."""
        return self._gathering.next_at()

    def ended(self) -> None:
        """A job has ended: Slurm may have room for another one."""
        self._room.ended()

    def submit(self, followed: Followed) -> None:
        """Submit a job for the attempt, unless there is one, or it is not wanted any more; elements of an array together."""
        if followed.number is None and not followed.watched.over and may_join(followed):
            self._gathering.add(followed)
        else:
            self._submit_alone(followed)

    def _submit_guarded(self, followed: Followed) -> None:
        try:
            self._submit_alone(followed)
        except (CarrelError, OSError, ValueError) as error:  # its own trouble must not stop the others
            _log.warning("job %d, attempt %d, is not submitted to Slurm: %s", *followed.watched.key, error)

    def _submit_alone(self, followed: Followed) -> None:
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
                self._submit_alone(followed)
                return
            limits = self._limits.behind(error.reason, lambda: self._options(followed.watched.launch).qos)
            reason = Reason(code="LaunchFailed", message=f"Slurm refused it: {error.reason}.{limits}")
            self._end(followed, Ended(state=JobState.FAILED, reason=reason))
        except (CarrelError, OSError) as error:
            self._put_off(followed, error, asked=asked)

    def _put_off(self, followed: Followed, error: CarrelError | OSError, *, asked: bool) -> None:
        """Nobody knows what became of it: it is looked for, and asked for again, after a while. `asked`: an earlier time, too."""
        if isinstance(error, SlurmMissing) and not asked:
            followed.unask()
        followed.failures += 1
        pause = min(_AT_MOST, _AFTER_FAILURE * 2 ** (followed.failures - 1))
        followed.ask_at = self._monotonic() + pause
        self._look_by(followed.ask_at)
        message = error.message if isinstance(error, CarrelError) and not isinstance(error, SlurmMissing) else str(error)
        self._follower.say(followed, f"It is not submitted to Slurm yet: {message} This is tried again.")

    def _ask(self, followed: Followed) -> None:
        launch = followed.watched.launch
        if not is_written(followed.watched):
            write_launch(followed.watched)
        options = elsewhere(self._options(launch), followed.avoid)
        if self.pilots.take(followed, options):  # there may be one already, for which Slurm needs no room
            self._taken(followed)
            return
        place = place_of(options)
        if closed := self._room.closed(place):
            self._give_back([followed], *closed)
            return
        if self._settles(place, [followed]):
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
        followed.join("")
        try:
            followed.remember(self._slurm.submit(arguments, batch_script(self._command(followed), options)))
        except SlurmFull as error:
            if not error.perhaps or not self._found(followed, self._slurm.listing()):
                followed.unask()
                self._no_room(place, [followed], error.reason, options)
                return
        self._room.taken(place)
        self._taken(followed)

    def _taken(self, followed: Followed) -> None:
        followed.failures = 0
        if followed.cancelled:
            self._cancel(followed)

    def _settles(self, place: Place, elements: Sequence[Followed]) -> bool:
        """Put them off for a moment where a job has just ended, of which Slurm may not have heard yet."""
        at = self._room.settles(place)
        if at is not None:
            self._ask_by(at, elements)
        return at is not None

    def _ask_by(self, at: float, elements: Sequence[Followed]) -> None:
        for one in elements:
            one.ask_at = at
        self._look_by(at)

    def _no_room(self, place: Place, elements: Sequence[Followed], code: str, options: SlurmOptions) -> None:
        """Slurm has no room for these: they go back into the lab's line."""
        meaning = in_words(code)
        number = self._limits.of_submitted(code, account=options.account, qos=options.qos)
        words = "; ".join(part for part in (meaning, number) if part)
        words = f"{code} ({words})" if words else code
        if not (self._room.refused(place, code, words) and self._settles(place, elements)):
            self._give_back(elements, code, words)

    def _give_back(self, elements: Sequence[Followed], code: str, words: str) -> None:
        reason = Reason(code=code, message=f"Slurm takes no more jobs for now: {words}.")
        for one in elements:
            by = one.cancelled_by()
            self._end(one, Ended(state=JobState.PREEMPTED, reason=reason) if by is None else cancelled(by))

    def _found(self, followed: Followed, listing: Sequence[SlurmJob]) -> bool:
        """Look for a job that an earlier call of sbatch may have made; of several, for one that lives."""
        jobs = find(listing, followed.identity, self._user, followed.task)
        live = [job for job in jobs if is_live(job)]
        jobs = tuple(job for job in jobs if (end := end_of(job)) is None or not end.of_no_script)  # nobody has claimed it
        if not jobs or (followed.held and not live):  # an allocation that was refused is listed as a job that failed
            return False
        followed.remember(max((live or jobs), key=lambda job: job.id).id)
        return True

    # --- elements of an array, together --------------------------------------------------------------------------------------

    def _submit_elements(self, elements: Sequence[Followed]) -> None:
        """Submit elements of one of the lab's arrays: those that ask for the same as one array of Slurm's."""
        waiting = [one for one in elements if not one.watched.over and one.number is None and runner_of(one) is None]
        asked = [one for one in waiting if one.asked]
        try:
            listing = self._slurm.listing() if asked else ()
        except CarrelError as error:
            for one in asked:
                self._put_off(one, error, asked=True)
            waiting = [one for one in waiting if not one.asked]
        groups: dict[tuple[str, ...], list[Followed]] = {}
        for one in waiting:
            if one.asked and self._found(one, listing):
                continue
            if by := one.cancelled_by():
                self._end(one, cancelled(by))
            elif (alike := self._alike(one)) is not None:
                groups.setdefault(alike, []).append(one)
            else:
                self._submit_guarded(one)
        for group in groups.values():
            self._submit_group(group, self._options(group[0].watched.launch))
        self.changed_at = self._monotonic()

    def _alike(self, followed: Followed) -> tuple[str, ...] | None:
        """Return what has to be the same of elements of one array; None where it cannot be one of several."""
        launch = followed.watched.launch
        try:
            if not is_written(followed.watched):
                write_launch(followed.watched)
            options = self._options(launch)
        except (CarrelError, OSError):
            return None  # it has its own trouble
        if index_of(followed) >= self._array_size or self.pilots.may_take(followed, options):
            return None
        arguments = sbatch_arguments(options, name=slurm_name(launch.name), comment="", directory="", output="")
        array = launch.element.array_id if launch.element is not None else 0
        return (f"{array}", *arguments, batch_script([], options))

    def _submit_group(self, group: Sequence[Followed], options: SlurmOptions) -> None:
        place, left = place_of(options), list(group)
        if closed := self._room.closed(place):
            self._give_back(left, *closed)
            return
        if self._settles(place, left):
            return
        refusal, pieces = "", Pieces(len(left))
        while size := pieces.next():
            piece = left[:size]
            if size == 1 and len(left) == 1 and not refusal:  # it came alone: a job, not an array
                self._submit_guarded(piece[0])
                return
            try:
                words = self._submit_array(piece, options)
            except SlurmRefused as error:
                self._submit_apart(left, error)
                return
            if words:
                pieces.refused(size)
                refusal = words
                continue
            left = left[size:]
            pieces.taken(size)
            for _ in piece:
                self._room.taken(place)
        if left:
            self._no_room(place, left, refusal, options)

    def _submit_array(self, piece: Sequence[Followed], options: SlurmOptions) -> str:
        """Submit them as one array; return Slurm's words where it has no room for so many, else "".

        Raises `SlurmRefused`; then Slurm has none of them. After any other trouble each of them is looked for.
        """
        launch = piece[0].watched.launch
        try:
            name = write_array(self._lab, piece)
            directory = piece[0].array_directory
            arguments = sbatch_arguments(
                options,
                name=slurm_name(launch.name),
                comment=name,
                directory=str(directory),
                output=f"{directory}/%a/{piece[0].output.name}",
                array=indices_text([index_of(one) for one in piece]),
            )
            number = self._slurm.submit(arguments, batch_script(self._element_command(directory), options, array=str(directory)))
            for one in piece:
                one.remember(number)
        except SlurmFull as error:
            if not error.perhaps or not self._found_all(piece):
                self._take_back(piece)
                return error.reason
        except SlurmRefused:
            self._take_back(piece)
            raise
        except (CarrelError, OSError) as error:
            for one in piece:
                self._put_off(one, error, asked=False)
            return ""
        for one in piece:
            self._taken(one)
        return ""

    def _found_all(self, piece: Sequence[Followed]) -> bool:
        """Return whether Slurm has taken an array although it said that it had no room."""
        listing = self._slurm.listing()
        found = [self._found(one, listing) for one in piece]
        return all(found)

    def _take_back(self, piece: Sequence[Followed]) -> None:
        """There is no such array."""
        for one in piece:
            leave_array(one)
            one.unask()

    def _submit_apart(self, elements: Sequence[Followed], error: SlurmRefused) -> None:
        """An array was refused: of indices that are too large here those, else each element is submitted by itself."""
        before = self._array_size
        if _NO_ARRAY in error.reason:
            with suppress(CarrelError):
                self._array_size = min(self._array_size, self._slurm.array_size())
        if self._array_size < before:
            self._submit_elements(elements)
            return
        for one in elements:
            self._submit_guarded(one)

    # --- again -----------------------------------------------------------------------------------------------------------------

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

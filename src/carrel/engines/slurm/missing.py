"""Jobs that Slurm's listing does not have: what accounting says of them, and what becomes of those that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended
from carrel.core.domain.ports import Clock
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.followed import Followed, cancelled, runner_of
from carrel.engines.slurm.follower import SAYS_WHY, Follower
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.states import end_of
from carrel.engines.slurm.submitter import TIMES_AGAIN, Submitter

#: Seconds that the accounting database has for saying who cancelled a job, which squeue does not know.
SAYS_WHO = 10.0
#: Seconds after which a job that Slurm has forgotten is submitted again.
FORGOTTEN = 30.0


class MissingJobs:
    """Compares attempts with accounting. A job that is missing has not ended by that."""

    def __init__(
        self,
        slurm: SlurmCommands,
        follower: Follower,
        submitter: Submitter,
        *,
        user: str,
        monotonic: Clock,
        listed: Callable[[Followed, SlurmJob], None],
        end: Callable[[Followed, Ended], None],
        guard: Callable[[Followed, Callable[[Followed], None]], None],
    ) -> None:
        """`listed` compares an attempt with a job that was found after all; `guard` calls something for one attempt, so that its
        trouble is its own.
        """
        self._slurm = slurm
        self._follower = follower
        self._submitter = submitter
        self._user = user
        self._monotonic = monotonic
        self._listed = listed
        self._end = end
        self._guard = guard

    def compare(self, missing: Sequence[Followed], there: Set[tuple[int, str]]) -> None:
        """Ask accounting about those whose jobs are `missing` among the numbers and identities that are `there`."""
        try:
            history = self._slurm.history({followed.number for followed in missing if followed.number is not None})
        except CarrelError:
            history = ()
        for followed in missing:
            records = self.records(followed, history)
            taken_out = bool(followed.array) and (followed.number or 0, followed.array) in there
            self._guard(followed, partial(self._compare, records=records, taken_out=taken_out))

    def records(self, followed: Followed, history: Sequence[SlurmJob]) -> list[SlurmJob]:
        """What accounting has of the attempt's job."""
        own = [job for job in history if not self._user or job.user == self._user]
        return [job for job in own if job.id == followed.number and followed.is_its(job)]

    def _compare(self, followed: Followed, records: Sequence[SlurmJob], *, taken_out: bool) -> None:
        if records and end_of(records[-1]):
            self._listed(followed, records[-1])
        elif runner_of(followed) is not None:
            self.without_evidence(followed)
        elif (by := followed.cancelled_by()) is not None:
            self._end(followed, cancelled(by))
        elif taken_out:
            self._taken_out(followed)
        else:
            self._forgotten(followed)

    def _taken_out(self, followed: Followed) -> None:
        """Slurm knows its array without it: of an element that is cancelled while it waits, Slurm keeps nothing at all."""
        now = self._monotonic()
        followed.missing_since = followed.missing_since or now
        if now - followed.missing_since > SAYS_WHO:
            message = f"Cancelled in Slurm by somebody while it waited (job {followed.shown})."
            self._end(followed, Ended(state=JobState.CANCELLED, reason=Reason(code="Cancelled", message=message)))

    def _forgotten(self, followed: Followed) -> None:
        """No runner began, and Slurm, which answers, knows no such job: a controller that was killed forgets the last ones.

        Another job is no risk: should the first one turn up after all, the second finds the attempt claimed.
        """
        now = self._monotonic()
        followed.missing_since = followed.missing_since or now
        message = f"Slurm does not know job {followed.shown} any more, and has no record of its end."
        if now - followed.missing_since < FORGOTTEN:
            self._follower.say(followed, f"{message} It is submitted again should that stay so.")
        elif followed.again >= TIMES_AGAIN:
            self._follower.say(followed, f"{message} It was submitted {followed.again + 1} times; cancel it to give it up.")
        else:
            self._submitter.submit_again(followed)

    def without_evidence(self, followed: Followed) -> None:
        """Slurm says nothing. A runner that lives is all that counts; one that is gone is gone after a while."""
        if runner_of(followed) or followed.watched.ended():
            followed.dead_since = None
            return
        now = self._monotonic()
        followed.dead_since = followed.dead_since or now
        if now - followed.dead_since > SAYS_WHY:
            self._follower.gone(followed)

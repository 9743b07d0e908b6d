"""What users have on the lab's disk: how much is whose, what may go, and who may have no more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.control.held_users import NO_ROOM
from carrel.core.domain.errors import Conflict, StorageFull
from carrel.core.domain.job import Job, Reason
from carrel.core.domain.ports import Clock
from carrel.core.domain.retention import Collected, Kind, StorageReport, Stored
from carrel.core.domain.units import format_size
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed, of_job

_REMEDY = (
    "`carrel outputs ID --remove` gives up what a job stored, `carrel pool remove POOL` what calls returned; "
    "an administrator can raise `user_quota`."
)


class RetentionStore(Protocol):
    """What the lab remembers of what is stored. `carrel.lab.store.retention.RetentionTable` is one, and has the promises."""

    def stored(self, owner: str | None = None) -> Mapping[str, Stored]: ...
    def drop_outputs_of(self, job_id: int, *, now: float) -> tuple[int, int]: ...


class Collects(Protocol):
    """Removes what the rules do not keep; `carrel.lab.retention.Collector` is one, and has the promises."""

    def collect(self, kinds: Collection[Kind] = ..., *, dry_run: bool = False) -> Sequence[Collected]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Everything that a caller can do about what the lab keeps. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    store: RetentionStore
    collector: Collects
    #: Bytes that each user may have; None: no limit.
    quota: Callable[[], int | None]
    clock: Clock

    def report(self, caller: Caller) -> StorageReport:
        """How much the caller has; administrators see everybody's."""
        me, everybody = caller.user.subject, bool(allowed(caller, Action.SEE_STORAGE))
        found = self.store.stored(None if everybody else me)
        return StorageReport(mine=found.get(me, Stored()), quota=self.quota(), users=found if everybody else {})

    def check_room(self, caller: Caller) -> None:
        """Raise `StorageFull` when the caller has as much as a user may have: what is asked for would only add to it."""
        quota = self.quota()
        if quota is None:
            return
        mine = self.store.stored(caller.user.subject).get(caller.user.subject, Stored())
        if mine.total >= quota:
            raise StorageFull(
                f"You have {format_size(mine.total)} on the lab's disk, and {format_size(quota)} is what each user may have: "
                f"{format_size(mine.outputs)} of outputs, {format_size(mine.logs)} of logs, {format_size(mine.code)} of code, "
                f"{format_size(mine.calls)} of calls.",
                remedy=_REMEDY,
            )

    def without_room(self) -> Mapping[str, Reason]:
        """Why no task starts of the users who have as much as a user may have, by their subjects."""
        quota = self.quota()
        if quota is None:
            return {}
        most = f"and {format_size(quota)} is what each user may have. It starts when there is room: {_REMEDY}"
        return {
            owner: Reason(code=NO_ROOM, message=f"Its owner has {format_size(stored.total)} on the lab's disk, {most}")
            for owner, stored in self.store.stored().items()
            if stored.total >= quota
        }

    def remove_outputs(self, caller: Caller, job: Job) -> tuple[int, int]:
        """Give up what a job of the caller's stored; its record keeps names, sizes and digests.

        Returns how many outputs there were, and their bytes; the disk has them back with the next collection. Raises
        `Conflict` while the job goes on.
        """
        allowed(caller, Action.CHANGE_JOB, of_job(job)).check()
        if not job.state.ended:
            raise Conflict(f"Job {job.id} goes on.", remedy=f"Wait for its end, or `carrel cancel {job.id}`.")
        return self.store.drop_outputs_of(job.id, now=self.clock())

    def collect(self, caller: Caller, kinds: Collection[Kind], *, dry_run: bool) -> Sequence[Collected]:
        """Remove what the lab's rules do not keep, now."""
        allowed(caller, Action.COLLECT).check()
        return self.collector.collect(kinds or tuple(Kind), dry_run=dry_run)

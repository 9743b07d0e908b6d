"""One listing of Slurm's for all who ask for one: the lab's own engine, and the deputies of all its users."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Set

from carrel.core.domain.ports import Clock
from carrel.engines.slurm.listing import SlurmJob

#: Returns a listing that was begun at this moment (monotonic seconds, which all processes of a machine share) or later, and that
#: has the jobs of these numbers if Slurm shows them at all.
Listing = Callable[[float, Set[int]], Sequence[SlurmJob]]

#: Seconds after which somebody who does not see their jobs in the lab's listing looks there again.
_AGAIN = 600.0


class SharedListing:
    """Asks Slurm once where several would ask the same. Safe to use from several threads."""

    def __init__(self, ask: Callable[[], Sequence[SlurmJob]], *, monotonic: Clock = time.monotonic) -> None:
        """`ask` is one call of squeue."""
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._jobs: Sequence[SlurmJob] = ()

    def __call__(self, since: float, _numbers: Set[int] = frozenset()) -> Sequence[SlurmJob]:
        """Return a listing that was begun at `since` or later; a caller that comes while Slurm is being asked has that answer,
        too.

        Raises what `ask` raises.
        """
        with self._lock:
            at = self._monotonic()
            if self._at < min(since, at):  # no answer is newer than now, whoever asks for one
                self._jobs = self._ask()
                self._at = at
            return self._jobs


class LabsListing:
    """The listing that a lab shares, for a user's deputy; and the user's own where the lab does not see their jobs."""

    def __init__(
        self,
        lab: Callable[[float], Sequence[SlurmJob] | None],
        own: Callable[[], Sequence[SlurmJob]],
        *,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """`lab` returns the user's jobs in the lab's listing, None when it has no answer; `own` asks Slurm as the user."""
        self._lab = lab
        self._own = own
        self._monotonic = monotonic
        self._blind_until = float("-inf")

    def __call__(self, since: float, numbers: Set[int]) -> Sequence[SlurmJob]:
        """Return a listing that was begun at `since` or later. Raises what `own` raises."""
        if self._monotonic() < self._blind_until:
            return self._own()
        jobs = self._lab(since)
        if jobs is not None and numbers <= {job.id for job in jobs}:
            return jobs
        # Slurm may hide the jobs of others (PrivateData), so what is not there proves nothing.
        own = self._own()
        if jobs is not None and (numbers & {job.id for job in own}) - {job.id for job in jobs}:
            self._blind_until = self._monotonic() + _AGAIN
        return own

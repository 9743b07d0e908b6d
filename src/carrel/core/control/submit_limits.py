"""What the lab has learned about limits of Slurm's on submitted jobs, and when it tries again."""

from __future__ import annotations

from collections.abc import Iterable

from carrel.core.domain.job import Job, JobState
from carrel.core.domain.submit_limits import SUBMIT_LIMITS, SubmitScope, scope_of
from carrel.core.policy.placer import Placer

#: Seconds after a refusal before Slurm is tried again, if nothing of the lab's has ended there.
AGAIN = 60.0
#: The same after a restart of the lab, which may have taken long.
_AFTER_RESTART = 5.0


class SubmitLimits:
    """Tells the placer how many jobs may be in Slurm.

    After a refusal that is as many as are there, so that each end lets the next one in line try. Jobs that the lab knows nothing
    of end, too: after a minute one more may try, after another one two more, and so on; a limit that was raised is soon known.
    """

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        #: When to let more of a scope try, and how many.
        self._again: dict[SubmitScope, tuple[float, int]] = {}

    def given_back(self, jobs: Iterable[Job], now: float, *, after_restart: bool = False) -> None:
        """Slurm has refused these jobs, which are in line again. The placer knows that, and the rules."""
        refused = {
            scope_of(job.reason.code, owner=job.owner, account=job.account, qos=job.qos): job for job in jobs if is_refused(job)
        }
        for scope, job in refused.items():
            words = job.reason.message.removeprefix("Slurm takes no more jobs for now: ").rstrip(".")
            self._placer.refused(scope, job.reason.code, words)
            self._again[scope] = (now + (_AFTER_RESTART if after_restart else AGAIN), 1)

    def next_at(self) -> float | None:
        """Return when `turn` has something to do; None while Slurm refuses nothing."""
        return min((at for at, _ in self._again.values()), default=None)

    def turn(self, now: float) -> None:
        """Let more jobs try where it is time."""
        for scope, (at, more) in list(self._again.items()):
            if at > now:
                continue
            if self._placer.admit(scope, more):
                self._again[scope] = (now + AGAIN, 2 * more)
            else:
                del self._again[scope]


def is_refused(job: Job) -> bool:
    """True of a job that is in line because Slurm took no more."""
    return job.state is JobState.PENDING and job.reason.code in SUBMIT_LIMITS

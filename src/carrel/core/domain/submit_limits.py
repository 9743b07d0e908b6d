"""Limits of Slurm's on how many jobs may be in it, and whose jobs each of them is about (sacctmgr(1), slurm.conf(5))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: What keeps the controller of a whole cluster from taking another job.
MAX_JOB_COUNT = "MaxJobCount"
#: By Slurm's own word for it: whether the jobs are those of one owner, of one account, of one QoS. With none of the three they
#: are everybody's on the cluster.
SUBMIT_LIMITS: Mapping[str, tuple[bool, bool, bool]] = {
    "AssocMaxSubmitJobLimit": (True, True, False),
    "AssocGrpSubmitJobsLimit": (False, True, False),
    "QOSMaxSubmitJobPerUserLimit": (True, False, True),
    "QOSGrpSubmitJobsLimit": (False, False, True),
    "MaxSubmitJobsPerAccount": (False, True, True),
    MAX_JOB_COUNT: (False, False, False),
}


class SubmitScope(NamedTuple):
    """The jobs in Slurm that one limit counts, by what they are in the lab; None stands for any."""

    owner: str | None = None
    account: str | None = None
    qos: str | None = None

    def covers(self, owner: str, account: str, qos: str) -> bool:
        """Return whether a job of these is one of them."""
        return self.owner in (None, owner) and self.account in (None, account) and self.qos in (None, qos)


@dataclass(frozen=True, slots=True)
class SubmitLimit:
    """What is known of a limit since Slurm has refused a job for it."""

    #: Slurm's word for it.
    code: str
    #: What was said of it then, without a full stop.
    words: str
    #: How many jobs of its scope are handed over at most, until more is known.
    at_most: int


def scope_of(code: str, *, owner: str, account: str, qos: str) -> SubmitScope:
    """Return whose jobs are held back when Slurm has refused one of these for the limit `code`; of a limit that nobody knows, the
    owner's."""
    of_owner, of_account, of_qos = SUBMIT_LIMITS.get(code, (True, False, False))
    return SubmitScope(owner if of_owner else None, account if of_account else None, qos if of_qos else None)

"""What an administrator decides for the whole lab, as one value that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carrel.core.domain.account import Account
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS

#: What backfill may go by.
BACKFILL_TIMES = ("walltime", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRules:
    """The rules by which work is let in and put in order."""

    #: Classes of service by name; insertion order is the order of listing.
    qos: Mapping[str, QoS]
    #: Class of work that names none, and of sessions that name none.
    default_qos: str
    session_qos: str
    #: Parts of the lab by name; insertion order is the order in which work that names none is offered to them. Empty: one lab.
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    #: What partitions of other clusters are called here: partitions of the lab, where it has none classes of service; "" for no
    #: partition in particular.
    partition_names: Mapping[str, str] = field(default_factory=dict)
    #: Research accounts by name. Empty: any account may be named, and all have the same share.
    accounts: Mapping[str, Account] = field(default_factory=dict)
    #: Seconds of waiting that outweigh one point of priority; that the best standing is ahead of the worst; that each GPU of a
    #: job counts for.
    age_weight: float = 600.0
    share_weight: float = 7 * 24 * 3600.0
    size_weight: float = 0.0
    #: How many blocked jobs of each partition are promised a start that later ones must not delay: 1 is EASY backfill, more is
    #: conservative for the first so many (Slurm's bf_max_job_test).
    promises: int = 1
    #: What backfill takes a job to run for: "walltime", or what is "expected" of it from those that have ended.
    backfill_times: str = "walltime"
    #: Seconds after which use counts half.
    half_life: float = 24 * 3600.0
    #: What one processor is charged, where one GPU is charged 1.
    cpu_charge: float = 0.02

    def default_for(self, kind: JobKind) -> str:
        """Name of the class of service for work of this kind that names none."""
        return self.session_qos if kind is JobKind.SESSION else self.default_qos

"""What the lab keeps on disk, for how long, and how much of it is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from carrel.core.domain.noun import shown


class Kind(StrEnum):
    """What lies on the lab's disk, by what it is for."""

    #: Working directories that lost attempts left; those whose outputs wait to be collected stay.
    WORK = "work"
    #: Logs, journals and launch files of jobs that are over; sweeps of which that holds for all jobs.
    LOGS = "logs"
    #: Code snapshots.
    CODE = "code"
    #: Stored outputs and locks of environments.
    OUTPUTS = "outputs"
    #: Artifacts in MLflow.
    ARTIFACTS = "artifacts"
    #: What the audit log says.
    AUDIT = "audit"
    #: When cells of sessions had GPUs, and machines from parts their blocks.
    CELLS = "cells"
    #: Calls of functions that have ended, with their arguments and results.
    CALLS = "calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """For how many seconds the lab keeps what; None: for ever."""

    #: Working directories, after the end of their attempt.
    work: int | None = 7 * 86400
    #: What no record names: code that no job uses, contents that no job stored, artifacts of no run.
    unused: int | None = 86400
    #: After the end of their job, although its record names them.
    logs: int | None = None
    outputs: int | None = None
    #: Artifacts of runs that their owner deleted in MLflow, after that.
    deleted_runs: int | None = 30 * 86400
    #: What the audit log says, file by file.
    audit: int | None = None
    #: When cells of sessions had GPUs, and machines from parts their blocks, after that.
    cells: int | None = 365 * 86400
    #: Calls of functions, after their end.
    calls: int | None = 30 * 86400
    #: Results for equal calls, after their last use; and most bytes of them for each user.
    cached: int | None = 30 * 86400
    cached_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was removed of one kind, or would be."""

    kind: Kind
    count: int = 0
    #: Bytes.
    size: int = 0
    #: What it was, in words; the first few.
    examples: tuple[str, ...] = ()
    #: Why some of it could not be looked at or removed; "" for nothing.
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What went of all kinds, or would."""

    dry_run: bool
    collected: tuple[Collected, ...]

    @shown
    def size(self) -> int:
        """Bytes."""
        return sum(one.size for one in self.collected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What one user has on the lab's disk, in bytes. Contents that several jobs stored count for each of them."""

    outputs: int = 0
    logs: int = 0
    code: int = 0
    #: Large arguments and results of calls, and what their pools have for them.
    calls: int = 0

    @shown
    def total(self) -> int:
        """All of it."""
        return self.outputs + self.logs + self.code + self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReport:
    """Who has how much, as one caller may know it."""

    mine: Stored
    #: Bytes that each user may have; None: no limit.
    quota: int | None
    #: Everybody's, for administrators.
    users: Mapping[str, Stored] = field(default_factory=dict)

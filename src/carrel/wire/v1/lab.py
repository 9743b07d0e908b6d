"""The lab itself: its rules, and who has used what of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.people import UserView


class QoSView(Response):
    """One class of service."""

    name: str
    default: bool
    kinds: list[str]
    default_time: int
    max_time: int | None
    max_jobs_per_user: int | None
    max_gpus_per_user: int | None
    max_jobs_per_account: int | None = None
    max_gpus_per_account: int | None = None
    #: Of everybody together.
    max_gpus: int | None = None
    idle_time: int | None = None
    priority: int
    #: Classes of service whose jobs this one preempts.
    preempts: list[str] = Field(default_factory=list)
    #: How jobs of this class are preempted: "none" (never), "requeue" or "suspend".
    preempt_mode: str = "none"
    #: Seconds that a job has run before it can be preempted, and that it has between SIGTERM and SIGKILL when it is requeued.
    preempt_exempt_time: int = 0
    preempt_grace: int = 0
    #: To whom its running tasks give their GPUs for a while: "cells" or "nobody".
    lends: str = "nobody"


class PartitionView(Response):
    """One part of a lab."""

    name: str
    #: Names of its nodes, those that are there now.
    nodes: list[str]
    #: Classes of service that it takes.
    qos: list[str]
    #: The engine that runs its jobs, and where they go, in words; "" where the lab places them itself.
    engine: str = "local"
    place: str = ""
    #: The partition of the Slurm cluster that its jobs go to; None where there is none.
    slurm: str | None = None
    #: Seconds for which an allocation stays with its user after a short task, for the next; None where none is made at once.
    slurm_hold_time: int | None = None


class AccountView(Response):
    """A research account, as `[accounts.NAME]` has it."""

    name: str
    #: The account that it is a part of; "" for the lab itself.
    parent: str
    #: Of the lab or of that account, beside the others there.
    shares: int
    #: Whether the caller may charge it.
    yours: bool


class DiskView(Response):
    """A disk that the lab writes to."""

    #: Where it is mounted, and what the lab has there.
    path: str
    holds: str
    total: int
    free: int
    #: Nothing starts while less is free.
    floor: int
    #: "ok"; "low": nothing starts; "full": nothing new is taken either.
    room: Literal["ok", "low", "full"]
    message: str


class HealthView(Response):
    """Whether the lab is there, and whether it has room: ``GET /health``."""

    #: "ok", or "low" or "full" as the fullest of its disks is.
    status: Literal["ok", "low", "full"]
    #: The disks that have no room.
    storage: list[DiskView] = Field(default_factory=list)


class StartRangesView(Response):
    """How often jobs started within the range of 80 % that the lab had shown first."""

    #: The newest starts of jobs that had waited, since the server started, and of them: within the range, before it, after it.
    starts: int
    held: int
    early: int
    late: int


class LabView(Response):
    """What this lab is: ``GET /api/v1/lab``."""

    version: str
    lab_id: str
    simulated: bool
    caller: UserView
    qos: list[QoSView]
    #: Empty for a lab that is one. Work that names none goes to the first that takes its QoS and has enough.
    partitions: list[PartitionView] = Field(default_factory=list)
    #: Empty for a lab that has set up none: then all users are equal in one account.
    accounts: list[AccountView] = Field(default_factory=list)
    #: "starting", "ready", "failed", "stopped" or "off", and why.
    tracking: str
    tracking_message: str = ""
    tracking_url: str | None = None
    #: Address at which nodes of a cluster reach the lab; None where that is not set.
    cluster_url: str | None = None
    storage: list[DiskView] = Field(default_factory=list)
    #: For administrators.
    start_ranges: StartRangesView | None = None


class StandingView(Response):
    """Where one user stands on one account."""

    account: str
    user: str
    #: 1 goes first; place among all who have used anything.
    factor: float
    place: int
    #: Part of the lab by shares, and part of what was used, 0 to 1.
    share: float
    used: float
    #: What has been used, in charged hours (of one GPU, unless the lab counts otherwise) that fade with the half-life.
    hours: float


class ShareView(Response):
    """Fair share: ``GET /api/v1/share``."""

    standings: list[StandingView]
    of: int
    #: Seconds.
    half_life: float
    weight: float
    #: GPUs (or what is charged as such) that the caller holds now.
    held: float
    #: The caller's factor by account in an hour, if all is kept and if all is released now.
    in_an_hour_kept: dict[str, float]
    in_an_hour_released: dict[str, float]


class Reloaded(Response):
    """What reading the rules again has done: ``POST /api/v1/lab/reload``."""

    #: False when what is written is what was in force.
    changed: bool


class RulesRequest(Request):
    """Other rules: ``POST /api/v1/lab/rules``."""

    #: By where they stand in carrel.toml ("qos.batch.priority"); null: not there any more.
    changes: dict[str, Any] = Field(min_length=1, max_length=50)


class RulesPreviewRequest(RulesRequest):
    """Body of ``POST /api/v1/lab/rules/preview``."""

    #: How far back jobs are taken, by their submission.
    days: int = Field(default=7, ge=1, le=365)


class RulesChanged(Response):
    """Answer to ``POST /api/v1/lab/rules``."""

    #: By path, the value before and the new one, in words.
    changed: dict[str, str]


class SimulatedMeasures(Response):
    """Waits of some jobs; None where none of them ran."""

    jobs: int
    #: That could never start.
    refused: int
    mean_wait_seconds: float | None
    #: 95 of 100 wait for no longer.
    p95_wait_seconds: float | None
    #: Share of the time of all GPUs of the lab, from the first submission to the last end.
    utilisation: float | None


class SimulatedRow(Response):
    """A class of service, or a user."""

    name: str
    now: SimulatedMeasures
    then: SimulatedMeasures


class RulesPreview(Response):
    """Recorded jobs under the rules in force, and under the changed ones."""

    changed: dict[str, str]
    #: Jobs that were simulated, and the first submission.
    jobs: int
    since: datetime
    #: Nodes' GPUs.
    gpus: int
    notes: list[str]
    all: list[SimulatedRow]
    qos: list[SimulatedRow]
    users: list[SimulatedRow]

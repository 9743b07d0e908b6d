"""Baselines of projects, and what moved."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from carrel.core.domain.baseline import Moved
from carrel.core.domain.comparison import Agreement
from carrel.wire.v1.base import Request, Response


class BaselineRequest(Request):
    """Which job is to be the baseline."""

    job: int = Field(ge=1, le=2**63 - 1)
    #: The name of the jobs that are compared with it; None: that of the job.
    project: str | None = Field(default=None, max_length=255)
    #: How far a metric may be away, by the larger of both.
    tolerance: float = Field(default=0, ge=0, le=1)
    #: Patterns (`*`, `?`) of outputs and metrics that do not count.
    ignore: list[str] = Field(default=[], max_length=20)


class CalibrationRequest(Request):
    """How a baseline is run again."""

    #: With its environment resolved anew; else with the baseline's lock.
    fresh: bool = False


class DriftView(Response):
    """How a job stands beside the baseline. Of each kind the first 20 that differ are named."""

    agreement: Agreement
    #: The same in a few words: "different from step 3 on".
    words: str
    #: How many were compared.
    outputs: int
    metrics: int
    #: The first step at which a metric is further away than allowed; None: there is none, or steps are not known.
    step: int | None
    #: Metrics whose last values differ, and outputs that do.
    moved_metrics: list[Moved]
    moved_outputs: list[str]
    #: What it ran with; "": it is not known.
    python: str
    machine: str
    #: Those that compute numbers for others come first.
    packages: list[Moved]
    #: What else differs that results may follow from, and node and machine in any case.
    others: list[Moved]
    #: Why results are not known, in a sentence each.
    not_known: list[str]


class CalibrationView(Response):
    """A baseline that was run again."""

    #: The job that runs it again.
    job: int
    #: Whose job it is.
    by: str
    #: Its environment was resolved anew; else it has the baseline's lock.
    fresh: bool
    begun_at: datetime
    #: When it was known what came of it; None: it is not yet.
    known_at: datetime | None
    #: How the job ended, once it is known what came of it.
    state: str
    #: "": the job has not ended.
    outcome: Literal["", "same", "moved", "not known"]
    #: What came of it, in words.
    told: str
    #: None: it has not ended well.
    drift: DriftView | None


class BaselineView(Response):
    """The job with whose results later jobs of a project are compared."""

    id: int
    owner: str
    #: The name of the jobs that are compared.
    project: str
    job: int
    tolerance: float
    ignore: list[str]
    set_at: datetime
    #: The last one of which it is known what came of it.
    calibration: CalibrationView | None


class BaselineList(Response):
    """Baselines by owner and project."""

    baselines: list[BaselineView]


class BaselineRow(Response):
    """A later job of the project."""

    job: int
    owner: str
    state: str
    submitted_at: datetime
    ended_at: datetime | None
    #: Of a calibration: whether it had the lock of the baseline, or its environment was resolved anew.
    calibration: Literal["", "same lock", "fresh"]
    #: None: it has not ended, or it is not compared yet: ask again.
    drift: DriftView | None


class BaselineTable(Response):
    """How the later jobs of a project stand beside its baseline."""

    baseline: BaselineView
    #: What the baseline ran with; "": it is not known.
    python: str
    machine: str
    #: The last 50, newest last.
    rows: list[BaselineRow]

"""Reports of use, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from carrel.wire.v1.base import Response


class UseView(Response):
    """What one row of a report says. Times are seconds; those of GPUs are GPUs × seconds."""

    #: The user, account, QoS, type of GPU, node or kind of jobs; of a project its user and its name ("ada/thesis"); of a week its
    #: Monday ("2026-11-23", in UTC); of all together "", and of jobs without GPUs, where rows are types, too.
    name: str
    #: Jobs that waited or had a place, and attempts that had one.
    jobs: int
    attempts: int
    #: For how long jobs were in line, added up.
    waited: float
    #: GPUs that attempts asked for, times their walltime.
    asked: float
    #: GPUs that attempts had for themselves, without the time for which they were stopped; and the same by what came of it:
    #: "completed", "continued", "failed", "timeout", "cancelled", "lost", "running", "session".
    held: float
    held_by_end: dict[str, float]
    #: That part of it in which environments and inputs were prepared.
    prepared: float
    #: That part of it in which commands ran and GPUs were measured, and for how much of that they were busy (NVML's utilisation).
    measured: float
    busy: float
    #: The same of their streaming multiprocessors (NVML's GPM, from Hopper on).
    sm_measured: float
    sm_busy: float
    #: Joules that GPUs of attempts took, and grams of CO2 by the lab's `co2_per_kwh`; None: the lab has no such factor.
    energy: float
    co2: float | None
    #: Bytes of host memory × seconds that attempts asked for whose peak is known, and that peak; the same of GPUs that they had.
    memory: float
    memory_peak: float
    gpu_memory: float
    gpu_memory_peak: float
    #: For how long sessions were open, added up.
    sessions: float
    #: GPUs that cells of sessions, and calls, borrowed: beside what was held.
    lent: float
    #: Cells and calls that got GPUs in the range; for how long they waited for them, had them, and were paused for others.
    cells: int
    cells_waited: float
    cells_computed: float
    cells_paused: float


class UseReportView(Response):
    """Who used GPUs for how long, and what came of it: ``GET /api/v1/report/use``."""

    begin: datetime
    #: What happened then or later does not count.
    end: datetime
    by: str
    #: Whose use it is: None of everybody; else of this user, and of those accounts.
    owner: str | None
    accounts: list[str]
    #: By GPU time, most first; weeks in their order.
    rows: list[UseView]
    #: All rows together; a job that was there in two weeks is one.
    total: UseView
    #: Grams of CO2 for each kWh, as the site has entered it.
    co2_per_kwh: int | None = None
    #: What the caller may want to change, by the tasks of their own last seven days; "": nothing.
    hint: str = ""


class TimesView(Response):
    """Many lengths of time in seconds."""

    count: int
    #: By nearest rank; None where there are none.
    median: float | None
    p95: float | None


class ClassTimesView(Response):
    """How long jobs of one class of service took."""

    qos: str
    #: From submission until the job had its place.
    waited: TimesView
    #: From then until its command began.
    prepared: TimesView
    #: From then until the lab saw output.
    silent: TimesView
    #: From submission until the lab saw output.
    to_output: TimesView
    #: From submission until it logged its first metric (MLflow's, or `carrel.report`).
    to_metric: TimesView
    #: For how many seconds in the range jobs waited, by the reason that their owners were told last; the longest first.
    waits: dict[str, float]


class StartReportView(Response):
    """How long jobs take to begin: ``GET /api/v1/report/starts``."""

    begin: datetime
    end: datetime
    owner: str | None
    accounts: list[str]
    classes: list[ClassTimesView]


class SessionTimesView(Response):
    """Where the time of sessions went that borrow GPUs for their cells. Times are seconds."""

    #: The user, account or QoS; of all together, and of one session, "".
    name: str = ""
    sessions: int
    #: Cells and calls that got GPUs, and GPUs × seconds in which they computed.
    cells: int
    gpu_seconds: float
    #: That part of it in which the GPUs were measured, and for how much of that a kernel ran on them (NVML's utilisation).
    measured: float
    busy: float
    #: In which a cell had GPUs; waited for them; had begun, and others had them; waited for what its user types.
    computed: float
    waited: float
    paused: float
    input: float
    #: In which nothing wanted a GPU: for at most ten minutes, and for longer; and all of sessions that never wanted one.
    thinking: float
    away: float
    unused: float


class SessionReportView(Response):
    """Where the time of sessions went: ``GET /api/v1/report/sessions``."""

    begin: datetime
    end: datetime
    by: str
    owner: str | None
    accounts: list[str]
    rows: list[SessionTimesView]


class AuditPage(Response):
    """Lines of the audit log, oldest first."""

    #: As they were written, with their numbers (`seq`).
    lines: list[dict[str, Any]]
    #: What to ask with as `after` for those that follow; None where there are no more.
    next: int | None = None

"""Pools of workers, and calls of functions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response
from carrel.wire.v1.jobs import TaskRequest

_State = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]
MOST_WORKERS = 1000


class WorkerPoolRequest(Request):
    """What a worker is, and how many there may be."""

    name: str = Field(default="pool", min_length=1, max_length=255, pattern=r"^[^\x00]*$")
    #: Workers that are kept although nothing is to do.
    min_workers: int = Field(default=0, ge=0, le=MOST_WORKERS)
    max_workers: int = Field(ge=1, le=MOST_WORKERS)
    #: Seconds after which a worker that has nothing to do ends.
    idle_time: float = Field(default=60.0, ge=0, le=7 * 86400, allow_inf_nan=False)
    #: A worker's GPUs are its own from start to end. False: it borrows them for each call, where GPUs are lent. The worker has to
    #: ask the node's broker then, as that of `carrel.Executor` does.
    reserve: bool = True
    #: The task that each worker is.
    task: TaskRequest


class BodyFile(Response):
    """A file of the lab's for a large body: who shows the ticket at one of the sockets gets a descriptor, once."""

    ticket: str
    #: What the lab says at the socket; whoever says something else there is not the lab.
    proof: str
    #: Bytes that it has, or will have.
    size: int
    #: Unix sockets on the lab's machine: paths, and names (after "@") in the abstract namespace.
    sockets: list[str]


class CallView(Response):
    """One call."""

    id: int
    pool_id: int
    key: str
    #: The function's name.
    label: str
    state: _State
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: The worker that has or had it.
    job_id: int | None = None
    #: What kind of failure: exception, worker_died, not_picklable, workers_do_not_start, dependency_failed, time_limit,
    #: cancelled.
    error: str = ""
    #: Of a call that runs: why it waits for a GPU, and its place in line.
    message: str = ""
    retries_left: int = 0
    #: Its place among the ended calls of its pool, from 1 on; None before.
    number: int | None = None
    #: Bytes of its pickled arguments, and of its result.
    arguments_size: int = 0
    result_size: int = 0
    #: Calls that it waits for: whose results it needs, or which is equal to it.
    waits_for: list[int] = Field(default_factory=list)
    #: Digest of function, code and arguments, if its result may be used for equal calls; and the equal call whose result it has.
    cache: str | None = None
    cached_from: int | None = None
    #: Seconds after which it is stopped, from its beginning on.
    time_limit: float | None = None


class CallLog(Response):
    """What a call has printed: of more than 256 KiB the end."""

    stdout: str
    stderr: str
    #: Bytes in all, also of what is not kept.
    stdout_size: int
    stderr_size: int


class CallPage(Response):
    """Calls, newest first."""

    calls: list[CallView]
    #: `before` of the next page; None at the end.
    next: int | None = None


class CancelRequest(Request):
    """Calls that are not wanted any more."""

    calls: list[int] = Field(max_length=10_000)


class FetchedRequest(Request):
    """Calls whose large results their program has had."""

    calls: list[int] = Field(max_length=10_000)


class CallNumbers(Response):
    """The numbers of calls: of all that were submitted, in their order; those that are cancelled; whose results are gone."""

    calls: list[int]


class Forgotten(Response):
    """How many results are not kept any more."""

    results: int

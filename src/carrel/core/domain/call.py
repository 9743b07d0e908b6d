"""Calls of functions, and the pools of workers that carry them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from carrel.core.domain.noun import Moment, derived, private

#: Bodies up to this size (bytes) travel with what speaks of them, and lie in the database; larger ones lie in files.
INLINE = 32 * 1024


class CallState(StrEnum):
    """Slurm's words where it has them."""

    PENDING = "PENDING"
    #: A worker has it.
    RUNNING = "RUNNING"
    #: It returned.
    COMPLETED = "COMPLETED"
    #: It raised, or its worker died.
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """True when nothing of it can change any more."""
        return self not in (CallState.PENDING, CallState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorker:
    """A job that carries out calls."""

    job_id: int
    state: str
    #: Why it waits, while it does: its job for a place, or its call for a GPU.
    message: str = ""
    #: GPUs that it has borrowed for the call that it carries out.
    borrowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """Workers of one user, which carry out calls."""

    #: 0: it is not kept yet.
    id: int = 0
    owner: str = private(default="")
    name: str
    #: Workers that are kept although nothing is to do, and most at once.
    min_workers: int
    max_workers: int
    #: Seconds after which a worker that has nothing to do ends.
    idle_time: float
    #: The task that a worker is: a request to submit, as plain values.
    task: Mapping[str, Any] = private(default_factory=dict)
    #: A worker's GPUs are its own from start to end; else it borrows them for each call.
    reserve: bool = private(default=True)
    created_at: Moment = 0.0
    #: The job in which the pool was opened, if it was in one.
    parent: int | None = None
    #: Since when it takes no more calls.
    closed_at: Moment | None = None
    #: GPUs of a worker that it borrows for each call; 0 where it has none, or its own from start to end.
    borrows: int = derived(default=0)
    #: Calls by their state.
    calls: Mapping[str, int] = derived(default_factory=dict)
    workers: tuple[PoolWorker, ...] = derived(default=())
    #: What keeps workers from being started.
    trouble: str = derived(default="")
    #: Since when no client follows its calls; None while one does, and of a closed pool.
    unfollowed_since: Moment | None = derived(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall:
    """A call as it is asked for."""

    #: Chosen by whoever asks: the same key in the same pool is the same call.
    key: str
    #: Name of the function, for people.
    label: str
    #: Digest of the pickled function, which the pool has.
    function: str
    #: Times that it may begin again after its worker died.
    retries: int = 0
    #: Calls whose results it needs: it waits until they have ended.
    dependencies: tuple[int, ...] = ()
    #: Digest of function, code and arguments: its result may be that of an equal call. None: it is carried out in any case.
    cache: str | None = None
    #: Seconds after which it is stopped, from its beginning on.
    time_limit: float | None = None
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Pickled arguments, or a pickled result: in memory when it is small, else in a file that becomes the lab's."""

    size: int
    data: bytes | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a call ended."""

    call_id: int
    state: CallState
    #: "exception", "worker_died", "not_picklable", "not_taken", "cancelled", "workers_do_not_start", "dependency_failed",
    #: "time_limit"; "" for a result.
    error: str = ""
    message: str = ""
    body: Body = field(default_factory=lambda: Body(size=0, data=b""))
    #: Ends of what it printed.
    stdout: bytes = b""
    stderr: bytes = b""
    #: The equal call whose result this is.
    cached_from: int | None = None
    #: How long the worker took for it, as it says.
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a function."""

    id: int
    pool_id: int
    key: str
    label: str
    function: str
    state: CallState
    retries_left: int
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    #: The worker that has or had it: a job, and its attempt.
    job_id: int | None = None
    attempt: int | None = None
    #: Place among the ended calls of its pool, from 1 on; None before.
    ended_number: int | None = None
    error: str = ""
    message: str = ""
    arguments_size: int = 0
    result_size: int = 0
    #: Digest of function, code and arguments, if its result may be used for equal calls.
    cache: str | None = None
    #: The equal call whose result it has.
    cached_from: int | None = None
    #: Seconds after which it is stopped, from its beginning on.
    time_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedResult:
    """What a call returned, kept for equal calls of the same user."""

    #: The call that was carried out.
    call_id: int
    body: Body

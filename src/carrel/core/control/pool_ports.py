"""What pools of workers need of the world."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Protocol

from carrel.core.domain.call import Body, CachedResult, Call, CallState, Ending, NewCall, WorkerPool
from carrel.core.domain.user import Caller


class CallStore(Protocol):
    """Remembers pools and calls; `carrel.lab.store.calls.CallTable` is one, and has the promises."""

    def add_pool(self, pool: WorkerPool) -> WorkerPool: ...  # noqa: D102
    def pools(self, *, owner: str | None = None, closed: bool = False) -> Sequence[WorkerPool]: ...  # noqa: D102
    def unfinished_pools(self) -> Sequence[WorkerPool]: ...  # noqa: D102
    def pool(self, pool_id: int) -> WorkerPool | None: ...  # noqa: D102
    def close_pool(self, pool_id: int, *, now: float) -> None: ...  # noqa: D102
    def add_worker(self, pool_id: int, job_id: int) -> None: ...  # noqa: D102
    def workers(self, pool_id: int) -> Sequence[int]: ...  # noqa: D102
    def add_function(self, pool_id: int, digest: str, body: Body) -> bool: ...  # noqa: D102
    def drop_functions(self, pool_id: int) -> Sequence[Body]: ...  # noqa: D102
    def function(self, pool_id: int, digest: str) -> Body | None: ...  # noqa: D102
    def add_calls(self, pool_id: int, new: Sequence[NewCall], *, now: float) -> Sequence[tuple[int, bool]]: ...  # noqa: D102
    def begin(self, call_ids: Collection[int], *, job_id: int, attempt: int, now: float) -> Set[int]: ...  # noqa: D102
    def again(self, call_ids: Mapping[int, int]) -> None: ...  # noqa: D102
    def end(self, endings: Mapping[int, Ending], *, now: float, keep: Mapping[int, Body] = ...) -> Sequence[Body]: ...  # noqa: D102
    def dependencies(self, call_ids: Collection[int]) -> Mapping[int, Sequence[int]]: ...  # noqa: D102
    def states(self, owner: str, call_ids: Collection[int]) -> Mapping[int, CallState]: ...  # noqa: D102
    def cached(self, owner: str, digests: Collection[str], *, now: float) -> Mapping[str, CachedResult]: ...  # noqa: D102
    def forget_cached(self, owner: str, function: str | None) -> tuple[int, Sequence[Body]]: ...  # noqa: D102
    def open_calls(self, pool_id: int) -> Sequence[Call]: ...  # noqa: D102
    def last_ended(self, pool_id: int) -> int: ...  # noqa: D102
    def ended(self, pool_id: int, *, after: int, limit: int) -> Sequence[Call]: ...  # noqa: D102
    def list(self, pool_id: int, *, before: int | None, limit: int, state: CallState | None) -> Sequence[Call]: ...  # noqa: D102
    def call(self, call_id: int) -> Call | None: ...  # noqa: D102
    def counts(self, pool_id: int) -> Mapping[str, int]: ...  # noqa: D102
    def arguments(self, call_id: int) -> Body: ...  # noqa: D102
    def result(self, call_id: int) -> Body: ...  # noqa: D102
    def drop_results(self, pool_id: int, call_ids: Collection[int]) -> Mapping[int, Body]: ...  # noqa: D102
    def without_results(self, call_ids: Collection[int]) -> Set[int]: ...  # noqa: D102
    def needed_elsewhere(self, pool_id: int) -> bool: ...  # noqa: D102
    def remove_pool(self, pool_id: int) -> Sequence[Body]: ...  # noqa: D102
    def printed(self, call_id: int) -> tuple[bytes, bytes]: ...  # noqa: D102


class Workers(Protocol):
    """Starts and ends the jobs that are workers. `carrel.lab.gateway.pool_workers.PoolWorkers` is one, and has the promises."""

    def settle(self, caller: Caller, pool: WorkerPool) -> WorkerPool: ...  # noqa: D102
    def start(self, pool: WorkerPool, key: str) -> int: ...  # noqa: D102

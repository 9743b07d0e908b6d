"""joblib over an executor: what takes `n_jobs` (scikit-learn does) runs on the lab's machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from joblib import parallel_config, register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from carrel.client.executor.scattered import Scattered, is_large

if TYPE_CHECKING:
    from carrel.client.executor.future import Future

NAME = "carrel"


class Workers(Protocol):
    """What a backend needs of an executor."""

    @property
    def max_workers(self) -> int:
        """How many calls are carried out at once, at most."""

    def submit_sharing(self, share: Callable[[Any], Scattered | None], task: Callable[[], Any]) -> Future[Any]:
        """Call `task` in a worker; `share` is asked for each value in it."""

    def scatter(self, value: Any) -> Scattered:
        """Send a value once."""


class CarrelBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # joblib has no types
    """A backend of joblib (its page "Custom backend API"). Short tasks go together, as in joblib's own backends."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, executor: Workers, **options: Any) -> None:
        super().__init__(**options)
        self._executor = executor
        self._futures: set[Future[Any]] = set()
        #: Large values of the tasks, by identity; they are held, so that no other one gets the same.
        self._shared: dict[int, tuple[Any, Scattered]] = {}

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many tasks run at once; -1 stands for as many as the pool has workers."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        most = self._executor.max_workers
        return most if n_jobs is None or n_jobs < 0 else min(n_jobs, most)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_options: Any) -> int:
        """Be used by one `joblib.Parallel`."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        """Call `func` in a worker, and `callback` with the future when it has ended."""
        future = self._executor.submit_sharing(self._share, func)
        self._futures.add(future)
        future.add_done_callback(lambda one: self._futures.discard(one))
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _share(self, value: Any) -> Scattered | None:
        if not is_large(value):
            return None
        if id(value) not in self._shared:
            self._shared[id(value)] = value, self._executor.scatter(value)
        return self._shared[id(value)][1]

    def terminate(self) -> None:
        """Nothing is left to do: values may be changed from now on."""
        self._shared.clear()

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """What the call returned; raises what it raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002 - the executor is ready in any case
        """Let those that wait not begin."""
        for future in list(self._futures):
            future.cancel()


def joblib_over(executor: Workers) -> Any:
    """Return a context in which `joblib.Parallel` runs in the executor's workers."""
    register_parallel_backend(NAME, CarrelBackend)
    return parallel_config(backend=NAME, n_jobs=executor.max_workers, executor=executor)

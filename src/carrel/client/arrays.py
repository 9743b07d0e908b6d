"""Arrays, as one user sees them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

from carrel.client.transport import Transport
from carrel.wire import v1

T = TypeVar("T")


class ArrayCalls:
    """The part of a `carrel.Client` that is about arrays. An array has the number of its first job."""

    _http: Transport

    def array(self, array_id: int) -> v1.ArrayView:
        """All jobs of an array, by index."""
        return self._http.get(v1.ArrayView, f"/arrays/{array_id}")

    def element(self, array_id: int, index: int) -> v1.JobView:
        """The job of an array that has this index."""
        return self._http.get(v1.ArrayView, f"/arrays/{array_id}", params={"element": index}).jobs[0]

    def cancel_array(self, array_id: int) -> v1.ArrayView:
        """Ask for the end of all jobs of an array; those that have ended stay as they are."""
        return self._again(lambda: self._http.post(v1.ArrayView, f"/arrays/{array_id}/cancel"))

    def wait_array(self, array_id: int, timeout: float | None = None) -> Iterator[v1.JobView]:
        """Yield each job of an array, by index, when it and those before it have ended.

        Raises `Unavailable` when that takes longer than `timeout` seconds in all.
        """
        until = None if timeout is None else time.monotonic() + timeout
        for job in self._again(lambda: self.array(array_id)).jobs:
            yield job if job.ended else self.wait(job.id, None if until is None else max(0.0, until - time.monotonic()))

    @abstractmethod
    def wait(self, job_id: int, timeout: float | None = None) -> v1.JobDetail:
        """Return when the job has ended."""

    @abstractmethod
    def _again(self, call: Callable[[], T]) -> T:
        """Repeat a call that may be repeated while the lab does not answer."""

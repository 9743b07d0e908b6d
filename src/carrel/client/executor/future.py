"""A call that was submitted, and what becomes of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import struct
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from carrel.client.executor.progress import wait_for_worker

T = TypeVar("T")


class Printed:
    """What a call writes to one stream, as far as it is known here."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._data = bytearray()
        self._missed = False

    def live(self, offset: int, data: bytes) -> bytes:
        """A piece came while the call runs; return what of it is new."""
        with self._guard:
            known = len(self._data)
            if offset > known:  # a piece was lost on the way; the end of the call has the rest
                self._missed = True
            new = data[known - offset :] if not self._missed and offset + len(data) > known else b""
            self._data += new
            return bytes(new)

    def ended(self, kept: bytes) -> bytes:
        """The call has ended: `kept` is how much it printed in all (eight bytes) and the end of it; return what is new."""
        if not kept:
            return b""
        (size,) = struct.unpack_from(">Q", kept)
        end = kept[8:]
        with self._guard:
            known = len(self._data)
            start = size - len(end)
            if start > known:
                gap = f"\n[carrel: {start - known} bytes were not kept]\n".encode()
                new = gap + end
            else:
                new = end[known - start :]
            self._data += new
            return bytes(new)

    def text(self) -> str:
        """All of it."""
        with self._guard:
            return self._data.decode("utf-8", "replace")


class FutureInside(TypeError):
    """A future, or what `scatter` has returned, is pickled that is no argument of a call: it has no value to be pickled."""

    def __init__(self, what: str = "A future") -> None:
        value = "its result" if what == "A future" else "the value"
        super().__init__(
            f"{what} travels as an argument of a call, where {value} takes its place; it cannot be pickled otherwise. "
            "Pass it to submit() instead of using it within the function."
        )


def in_a_fork(process: int) -> RuntimeError:
    """What a forked process gets that uses an executor, or a future, of the process that it comes from."""
    return RuntimeError(
        f"This is process {os.getpid()}, and the executor is one of process {process}: the threads that speak with the lab are "
        "there. Make a carrel.Executor here, or find a call again by its number: carrel.Executor.future(call_id)."
    )


class Future(concurrent.futures.Future[T]):
    """A `concurrent.futures.Future` that knows the call behind it. It can be awaited.

    `label` is the function's name. `call_id` finds the call again from another process: ``carrel.Executor.future(call_id)``.
    """

    def __init__(self, label: str, cancel: Callable[[Future[T]], bool], identify: Callable[[], None]) -> None:
        super().__init__()
        self.label = label
        #: The job that carries it out, once it has begun.
        self.job_id: int | None = None
        #: True when its result is that of an equal call, and nothing was carried out.
        self.cached = False
        #: Digest of function, code and arguments, of a call whose result is for equal calls.
        self.digest: str | None = None
        #: The client of the lab that has the call.
        self.client: Any = None
        #: Is told what the call prints and shows, in another thread: "stdout", "stderr" or "display"; of a display, its number.
        self.heard: Callable[[str, int, bytes], None] | None = None
        #: Says why the call has no worker yet.
        self._why: Callable[[], str] | None = None
        #: Hears the number of the call when the program has had a large result, and has let go of the future.
        self._let_go: Callable[[int], None] | None = None
        self._had = False
        self._cancel = cancel
        self._identify = identify
        self._process = os.getpid()
        self._number: int | None = None
        #: A worker carries it out. `concurrent.futures` would never let it be cancelled again, and its worker may die.
        self._begun = False
        self._ending = threading.Lock()
        self._printed = {"stdout": Printed(), "stderr": Printed()}

    @property
    def call_id(self) -> int:
        """Number of the call in the lab; waits until the lab has it. Raises what kept it from there."""
        if self._number is None:
            self._identify()
        if self._number is None:  # the lab does not have it: it says why
            raise self.exception() or RuntimeError("The call was cancelled before the lab had it.")
        return self._number

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call's end, and return what it returned. Raises what it raised."""
        self._check_process()
        if self._why is not None:
            timeout = wait_for_worker(self, lambda: self.job_id is not None, self._why, timeout)
        found = super().result(timeout)
        self._had = True
        return found

    def __del__(self) -> None:
        # The value alone is with the program now: no other call can be given this future.
        if self._let_go is not None and self._had and self._number is not None:
            self._let_go(self._number)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call's end, and return what it raised; None where it returned."""
        self._check_process()
        return super().exception(timeout)

    def _check_process(self) -> None:
        if os.getpid() != self._process and not self.done():
            raise in_a_fork(self._process)

    def running(self) -> bool:
        """True while the function runs; a call that waits, in line or for its GPU, does not."""
        return self._begun and not self.done()

    def cancel(self) -> bool:
        """Keep the call from beginning; False when it has begun or ended. A call that waits for its GPU has not begun."""
        if self.done():
            return self.cancelled()
        return self._cancel(self)

    def cancel_here(self) -> bool:
        """Mark it as cancelled; the lab has been told, or never heard of it."""
        with self._ending:  # the lab's answer and its news both say so
            if self.done():
                return self.cancelled()
            done = super().cancel()
            if done:
                self.set_running_or_notify_cancel()
            return done

    def stdout(self) -> str:
        """What the call has written to its standard output so far; of very much, the end."""
        return self._printed["stdout"].text()

    def stderr(self) -> str:
        """The same of its standard error."""
        return self._printed["stderr"].text()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise FutureInside

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

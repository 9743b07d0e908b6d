"""Follows the calls of a pool and gives futures what has become of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from carrel.client.body_files import Content
from carrel.client.executor import pickling
from carrel.client.executor.errors import DependencyFailed, RemoteTraceback, WorkerDied, WorkersDoNotStart
from carrel.client.executor.patience import again
from carrel.core.domain.errors import CarrelError, Unavailable

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.executor.future import Future

_FAILURES: dict[str, type[Exception]] = {
    "worker_died": WorkerDied,
    "workers_do_not_start": WorkersDoNotStart,
    "dependency_failed": DependencyFailed,
}


class Receiver:
    """A thread that follows a pool while there are futures to fulfil."""

    def __init__(self, client: Client, pool: int, *, echo: bool, after: int = 0) -> None:
        """`echo`: what calls print is printed here, too. `after`: number of an ending before all that are waited for."""
        self._client = client
        self._pool = pool
        self._echo = echo
        self._changed = threading.Condition()
        #: Those without a number yet, and those with one.
        self._unnumbered: set[Future[Any]] = set()
        self._futures: dict[int, Future[Any]] = {}
        #: What came of calls before their numbers: a short call may be over by then.
        self._early: dict[int, list[tuple[dict[str, Any], bytes]]] = {}
        #: Number of the last ending that is known.
        self._after = after
        self._closed = False
        self._when_done: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="carrel results", daemon=True)
        self._started = False

    def expect(self, future: Future[Any]) -> None:
        """A call will be submitted."""
        with self._changed:
            self._unnumbered.add(future)
            if not self._started:
                self._started = True
                self._thread.start()
            self._changed.notify_all()

    def number(self, future: Future[Any], call_id: int) -> None:
        """The lab has the call, under this number."""
        with self._changed:
            self._unnumbered.discard(future)
            future._number = call_id
            early = self._early.pop(call_id, [])
            if not self._unnumbered:
                self._early.clear()
            for header, body in early:
                self._goes_on(future, header, body)
            self._futures[call_id] = future
            self._changed.notify_all()
        if early and early[-1][0]["type"] == "ended":
            self._end(*early[-1])

    def forget(self, future: Future[Any]) -> None:
        """The call never came to the lab."""
        with self._changed:
            self._unnumbered.discard(future)
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when all calls have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unnumbered and not self._futures)

    def close(self) -> None:
        """End the thread; it does not wait for calls."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close_when_done(self, then: Callable[[], None] | None) -> None:
        """End the thread when all calls have ended."""
        with self._changed:
            self._when_done = then or (lambda: None)
            self._changed.notify_all()

    def _idle(self) -> bool:
        return not self._unnumbered and not self._futures

    def _run(self) -> None:
        pause = 0.05
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._when_done is not None or not self._idle())
                if self._closed or (self._when_done is not None and self._idle()):
                    break
            try:
                for header, body in self._client.follow_pool(self._pool, self._after):
                    pause = 0.05
                    self._hear(header, body)
                    if self._closed or (self._when_done is not None and self._idle()):
                        break
            except Unavailable:
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
            except CarrelError as error:
                self._fail_all(error)
                break
        if self._when_done is not None:
            self._when_done()

    def _hear(self, header: dict[str, Any], body: bytes) -> None:
        kind = header["type"]
        if kind == "ended":
            self._end(header, body)
            self._after = header["number"]
            return
        if kind == "alive":
            return
        with self._changed:
            future = self._futures.get(header["call"])
            if future is None:
                self._keep(header, body)
                return
        self._goes_on(future, header, body)

    def _keep(self, header: dict[str, Any], body: bytes) -> None:
        if self._unnumbered:
            self._early.setdefault(header["call"], []).append((header, body))

    def _goes_on(self, future: Future[Any], header: dict[str, Any], body: bytes) -> None:
        kind = header["type"]
        if kind == "begun":
            future.job_id, future._begun = header["job"], not header.get("waits", False)
        elif kind == "output":
            stream = header["stream"]
            data = body if stream == "display" else future._printed[stream].live(header["offset"], body)
            self._tell(future, stream, header["offset"], data)

    def _end(self, header: dict[str, Any], body: bytes) -> None:
        with self._changed:
            future = self._futures.get(header["call"])
            if future is None:
                self._keep(header, body)
                return
        split = header["stdout"], header["stdout"] + header["stderr"]
        self._tell(future, "stdout", 0, future._printed["stdout"].ended(body[: split[0]]))
        self._tell(future, "stderr", 0, future._printed["stderr"].ended(body[split[0] : split[1]]))
        future.job_id, future.cached = header["job"], header.get("cached", False)
        try:
            data = bytearray(body[split[1] :]) if header["inline"] else self._fetch(header["call"])
            _fulfil(future, header, data)
        except BaseException as error:  # noqa: BLE001 - whatever a value does when it is unpickled is its future's
            if not future.done():
                future.set_exception(error)
        with self._changed:
            self._futures.pop(header["call"], None)
            self._changed.notify_all()

    def _fetch(self, call_id: int) -> Content:
        return again(lambda: self._client.call_result(call_id))

    def _tell(self, future: Future[Any], stream: str, number: int, data: bytes) -> None:
        if future.heard is not None and data:
            future.heard(stream, number, data)
        elif self._echo and data and stream != "display":
            target = sys.stdout if stream == "stdout" else sys.stderr
            target.write(data.decode("utf-8", "replace"))
            target.flush()

    def _fail_all(self, error: CarrelError) -> None:
        with self._changed:
            futures = [*self._futures.values(), *self._unnumbered]
            self._futures.clear()
            self._unnumbered.clear()
            self._changed.notify_all()
        for future in futures:
            if not future.done():
                future.set_exception(error)


def _fulfil(future: Future[Any], header: dict[str, Any], data: Content) -> None:
    state, error = header["state"], header["error"]
    if state == "CANCELLED":
        future.cancel_here()
        return
    if future.done():
        return
    if state == "COMPLETED":
        future.set_result(pickling.load(data))
    elif data:
        raised, trace = pickling.load(data)
        raised.__cause__ = RemoteTraceback(trace)
        if error == "dependency_failed":
            failed = DependencyFailed(header["message"])
            failed.__cause__ = raised
            raised = failed
        future.set_exception(raised)
    else:
        future.set_exception(_FAILURES.get(error, WorkerDied)(header["message"]))

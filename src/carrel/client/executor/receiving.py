"""Follows the calls of a pool and gives futures what has become of them."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from carrel.client.body_files import Content
from carrel.client.executor import pickling
from carrel.client.executor.errors import CallTimeout, DependencyFailed, WorkerDied, WorkersDoNotStart, raised
from carrel.client.executor.patience import again
from carrel.core.domain.errors import CarrelError, Unavailable

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.client.executor.future import Future

#: Calls that one request names.
_TOGETHER = 10_000
_FAILURES: dict[str, type[Exception]] = {
    "worker_died": WorkerDied,
    "workers_do_not_start": WorkersDoNotStart,
    "dependency_failed": DependencyFailed,
    "time_limit": CallTimeout,
}


class Receiver:
    """A thread that follows a pool while there are futures to fulfil."""

    def __init__(self, client: Client, pool: int, *, echo: bool, after: int = 0, owns: bool = True) -> None:
        """`echo`: what calls print is printed here, too. `after`: number of an ending before all that are waited for.

        `owns`: large results go from the lab when this program has had them, and has let go of their futures.
        """
        self._client = client
        self._pool = pool
        self._echo = echo
        self._owns = owns
        #: Large results that the program may have had, and calls whose results it has had and let go of. The second is filled
        #: where objects are collected, so in any thread and at any place.
        self._large: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._let_go: deque[int] = deque()
        self._changed = threading.Condition()
        #: Those without a number yet, and those with one.
        self._unnumbered: set[Future[Any]] = set()
        self._futures: dict[int, Future[Any]] = {}
        #: What came of calls before their numbers: a short call may be over by then.
        self._early: dict[int, list[tuple[dict[str, Any], bytes]]] = {}
        #: Number of the last ending that is known.
        self._after = after
        self._when_done: Callable[[], None] | None = None
        #: None: nothing is followed, for nothing was submitted, or the lab refused it.
        self._thread: threading.Thread | None = None

    def expect(self, future: Future[Any]) -> None:
        """A call will be submitted. Raises `RuntimeError` where no thread can be started."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="carrel results", daemon=True)
                thread.start()
                self._thread = thread
            self._unnumbered.add(future)
            self._changed.notify_all()

    def number(self, future: Future[Any], call_id: int) -> None:
        """The lab has the call, under this number."""
        with self._changed:
            future._number = call_id
            heard = future in self._unnumbered  # else it has failed, as nothing is heard of it
            self._unnumbered.discard(future)
            early = self._early.pop(call_id, []) if heard else []
            if not self._unnumbered:
                self._early.clear()
            for header, body in early:
                self._goes_on(future, header, body)
            if heard:
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
            self._changed.wait_for(self.idle)

    def give_up(self, *, all_had: bool = False) -> None:
        """Tell the lab which large results the program has let go of; `all_had`: and of which it will not name the futures."""
        numbers = [one._number for one in self._large if one._had and one._number is not None] if all_had else []
        while self._let_go:
            numbers.append(self._let_go.popleft())
        for start in range(0, len(numbers), _TOGETHER):
            with contextlib.suppress(CarrelError):  # then they stay as long as the calls
                self._client.give_up_results(self._pool, numbers[start : start + _TOGETHER])

    def is_this_thread(self) -> bool:
        """True in callbacks of futures, which it calls."""
        return self._thread is threading.current_thread()

    def close_when_done(self, then: Callable[[], None]) -> None:
        """End the thread when all calls have ended, and call `then`."""
        with self._changed:
            self._when_done = then
            self._changed.notify_all()
            running = self._thread is not None
        if not running:
            then()

    def idle(self) -> bool:
        """True when no call is waited for."""
        return not self._unnumbered and not self._futures

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - whatever it is, no future may wait for ever; the next call tries again
            self._fail_all(error)
        if self._when_done is not None:
            self._when_done()

    def _follow(self) -> None:
        # Also while nothing is waited for: the lab keeps workers for a pool that is followed.
        pause = 0.05
        while not self._over():
            with contextlib.suppress(Unavailable):
                for header, body in self._client.follow_pool(self._pool, self._after):
                    pause = 0.05
                    self._hear(header, body)
                    self.give_up()
                    if self._over():
                        return
            with self._changed:
                self._changed.wait_for(self._over, pause)
            pause = min(2 * pause, 2.0)

    def _over(self) -> bool:
        return self._when_done is not None and self.idle()

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
            if self._owns and not header["inline"]:
                self._large.add(future)
                future._let_go = self._let_go.append
            _fulfil(future, header, data)
        except BaseException as error:  # noqa: BLE001 - whatever a value does when it is unpickled is its future's
            if not future.done():
                future.set_exception(error if isinstance(error, Exception) else would_end(error))
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
            with contextlib.suppress(OSError, ValueError):  # a stream that is closed is no reason to lose a result
                target.write(data.decode("utf-8", "replace"))
                target.flush()

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            futures = [*self._futures.values(), *self._unnumbered]
            self._futures.clear()
            self._unnumbered.clear()
            self._early.clear()
            self._thread = None
            self._changed.notify_all()
        for future in futures:
            if not future.done():
                future.set_exception(_unheard(error, future._number))


def would_end(error: BaseException) -> BrokenProcessPool:
    """The reason for which there is no result: unpickling it would have ended this program."""
    found = BrokenProcessPool(f"What the call returned would end the program that unpickles it: {error!r}.")
    found.__cause__ = error
    return found


def _unheard(error: Exception, call_id: int | None) -> Exception:
    """Why no more is heard of a call that the lab has, and that goes on there."""
    if call_id is None or not isinstance(error, CarrelError):
        return error
    remedy = f"{error.remedy} The call goes on in the lab: carrel.Executor.future({call_id}) finds it again.".strip()
    found = type(error)(error.message, remedy=remedy, details=error.details)
    found.__cause__ = error
    return found


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
        found = raised(pickling.load(data))
        if error == "dependency_failed":
            failed = DependencyFailed(header["message"])
            failed.__cause__ = found
            found = failed
        elif error == "time_limit":
            stopped = CallTimeout(header["message"])
            stopped.__cause__ = found.__cause__
            found = stopped
        future.set_exception(found)
    else:
        future.set_exception(_FAILURES.get(error, WorkerDied)(header["message"]))

"""Calls on their way to the lab: functions and arguments as they travel, and the thread that sends them.

A call is sent at once when no other is on its way, else with those that have come together meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import queue
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import cloudpickle

from carrel.client.executor import pickling
from carrel.client.executor.digest import digest as content_of
from carrel.client.executor.future import Future, FutureInside
from carrel.client.executor.pickling import size_of
from carrel.client.executor.scattered import Scattered
from carrel.core.domain.errors import Invalid

#: Most calls, and bytes, in one request.
_CALLS, _BYTES = 500, 8 * 1024 * 1024
#: Bytes of arguments up to which they are copied when the call is submitted.
_COPIED = 1024 * 1024


def dump_arguments(
    value: Any, pool: int, share: Callable[[Any], Scattered | None] | None = None
) -> tuple[list[Any], list[Future[Any]]]:
    """Return the parts of the pickled arguments, and the futures in them, wherever they are.

    A future is named by its call, and the worker puts that call's result in its place; a scattered value is named by its digest.
    Waits until the lab has the calls of these futures. `share` may scatter any value in the arguments. Raises what a value raises
    when it is pickled, and `Invalid` for what another pool has.
    """
    if share is None:
        try:
            return _copied(pickling.dump(value)), []
        except FutureInside:
            pass  # the common way, without futures, is not slower for them
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.pool, pickler.share = pool, share or pickler.share
    pickler.dump(value)
    return _copied(pickling.parts(file.getvalue(), buffers)), list(pickler.futures.values())


def _copied(parts: list[Any]) -> list[Any]:
    """Copy small arguments: a caller may write to its array right after `submit`. Large ones are read when they are sent."""
    return parts if size_of(parts) > _COPIED else [bytes(part) for part in parts]


class _Pickler(pickling.Faithful, cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    """Writes the number of its call for a future, and a digest for what is scattered."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.futures: dict[int, Future[Any]] = {}
        self.pool = 0
        self.share: Callable[[Any], Scattered | None] = lambda _: None

    def persistent_id(self, value: Any) -> int | str | None:
        """A future's call, or the digest of what is scattered; other values are pickled."""
        if isinstance(value, Future):
            self.futures[value.call_id] = value
            return value.call_id
        scattered = value if isinstance(value, Scattered) else self.share(value)
        if scattered is None:
            return None
        if scattered.pool_id != self.pool:
            raise Invalid(
                f"A scattered value is of pool {scattered.pool_id}, and the call of pool {self.pool}.",
                remedy="Scatter it with the executor that calls.",
            )
        return scattered.digest


class Function:
    """A function that is called: its name for people, and what travels, made once however often it is called."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.label = _label(fn)
        #: Of what is pickled; of `pickled` before.
        self.digest = ""
        self._fn = fn
        self._parts: list[Any] = []
        self._content = b""

    def pickled(self) -> list[Any]:
        """The parts that travel. Raises what the function raises when it is pickled."""
        if not self._parts:
            self._parts = pickling.dump(self._fn)
            self.digest = digest_of(self._parts)
        return self._parts

    def content(self) -> bytes:
        """Digest of what it does, the same in every process."""
        self._content = self._content or content_of(self._fn)
        return self._content


def digest_of(parts: Sequence[Any]) -> str:
    """Digest of the parts of a pickle."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return "sha256:" + found.hexdigest()


def _label(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", type(fn).__name__)
    return name if module in (None, "__main__") else f"{module}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """A call that the lab does not have yet."""

    future: Future[Any]
    header: dict[str, Any]
    #: Parts of its pickled arguments.
    body: list[Any]


class Sender:
    """A thread with a queue."""

    def __init__(self, send: Callable[[list[Unsent]], None], failed: Callable[[Unsent, Exception], None]) -> None:
        """`send` brings calls to the lab and gives futures their numbers; `failed` is told of one that cannot be sent."""
        self._send = send
        self._failed = failed
        self._queue: queue.SimpleQueue[Unsent | None] = queue.SimpleQueue()
        self._sent = threading.Condition()
        self._left = 0
        self._thread: threading.Thread | None = None

    def put(self, call: Unsent) -> None:
        """Send it as soon as may be. Raises `RuntimeError` where no thread can be started."""
        with self._sent:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="carrel calls", daemon=True)
                thread.start()
                self._thread = thread
            self._left += 1
        self._queue.put(call)

    def take_back(self, unwanted: Set[Future[Any]]) -> list[Future[Any]]:
        """Do not send these calls; return those that were not on their way."""
        kept, taken = list[Unsent | None](), list[Future[Any]]()
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None and item.future in unwanted:
                    taken.append(item.future)
                else:
                    kept.append(item)
        for item in kept:
            self._queue.put(item)
        with self._sent:
            self._left -= len(taken)
            self._sent.notify_all()
        return taken

    def flush(self) -> None:
        """Return when all that was put is sent, or has failed; at once in a callback of a future that failed."""
        with self._sent:
            self._sent.wait_for(lambda: self._left == 0 or self.is_this_thread())

    def is_this_thread(self) -> bool:
        """True in callbacks of futures of calls that were not sent, which it calls."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Send what is left, and end."""
        self._queue.put(None)
        if self._thread is not None and not self.is_this_thread():
            self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            item: Unsent | None = None
            batch, size, over = [first], size_of(first.body), False
            while len(batch) < _CALLS and size < _BYTES:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
                if item is None:
                    over = True
                    break
                batch.append(item)
                size += size_of(item.body)
            self._deliver(batch)
            with self._sent:
                self._left -= len(batch)
                self._sent.notify_all()
            # What was called may be large, and its result is the caller's alone.
            first = item = None
            del batch
            if over:
                return

    def _deliver(self, batch: list[Unsent]) -> None:
        live = [call for call in batch if not call.future.cancelled()]
        if not live:
            return
        try:
            self._send(live)
        except Exception as error:  # noqa: BLE001 - whatever it is, no future may wait for ever
            for call in live:
                # The future may be cancelled in this moment, and its callbacks may do anything.
                with contextlib.suppress(BaseException):
                    self._failed(call, error)

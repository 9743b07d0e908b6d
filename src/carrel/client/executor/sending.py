"""Sends calls to the lab: each at once when nothing is on its way, else those that have come together meanwhile."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carrel.client.executor.future import Future
from carrel.client.executor.pickling import size_of
from carrel.core.domain.errors import CarrelError

#: Most calls, and bytes, in one request.
_CALLS, _BYTES = 500, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """A call that the lab does not have yet."""

    future: Future[Any]
    header: dict[str, Any]
    #: Parts of its pickled arguments.
    body: list[Any]


class Sender:
    """A thread with a queue."""

    def __init__(self, send: Callable[[list[Unsent]], None], failed: Callable[[Unsent, CarrelError], None]) -> None:
        """`send` brings calls to the lab and gives futures their numbers; `failed` is told of one that cannot be sent."""
        self._send = send
        self._failed = failed
        self._queue: queue.SimpleQueue[Unsent | None] = queue.SimpleQueue()
        self._sent = threading.Condition()
        self._left = 0
        self._thread = threading.Thread(target=self._run, name="carrel calls", daemon=True)
        self._thread.start()

    def put(self, call: Unsent) -> None:
        """Send it as soon as may be."""
        with self._sent:
            self._left += 1
        self._queue.put(call)

    def flush(self) -> None:
        """Return when all that was put is sent, or has failed."""
        with self._sent:
            self._sent.wait_for(lambda: self._left == 0)

    def close(self) -> None:
        """Send what is left, and end."""
        self._queue.put(None)
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
        except CarrelError as error:
            for call in live:
                with contextlib.suppress(Exception):  # the future may be cancelled in this moment
                    self._failed(call, error)

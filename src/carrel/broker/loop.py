"""One thread that waits for sockets, processes, timers and the results of worker threads, and calls back."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from carrel.domain.ports import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")
Callback = Callable[[], None]


class Timer:
    """A callback that comes once, unless it is cancelled first."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """It does not come any more."""
        self.callback = None


class Loop:
    """Everything happens in the thread that called `run`, except the functions given to `work`.

    An exception of a callback ends `run`: a broker that does not know its own state any more must start again from its journal.
    """

    def __init__(self, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._posted: queue.SimpleQueue[Callback] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._running = False

    @property
    def monotonic(self) -> Clock:
        """The clock of its timers."""
        return self._monotonic

    def watch(self, descriptor: int, callback: Callback, *, write: bool = False) -> None:
        """Call back when the descriptor is readable (and, with `write`, when it is writable); again for as long as it is."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        try:
            self._selector.modify(descriptor, events, callback)
        except KeyError:
            self._selector.register(descriptor, events, callback)

    def unwatch(self, descriptor: int) -> None:
        """No more callbacks for the descriptor."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call back in so many seconds."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self._monotonic() + max(0.0, seconds), next(self._count), timer))
        return timer

    def work(self, function: Callable[[], T], done: Callable[[T], None]) -> None:
        """Call `function` in a thread of its own, and `done` with what it returned in this loop.

        An exception of `function` ends the loop, as one of a callback does.
        """

        def call() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the loop
                self.post(_raiser(error))
            else:
                self.post(lambda: done(result))

        threading.Thread(target=call, name="broker work", daemon=True).start()

    def post(self, callback: Callback) -> None:
        """Call back in the loop, soon. May be called from any thread and from a signal handler."""
        self._posted.put(callback)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """`run` returns after the callbacks of this round."""
        self._running = False

    def run(self) -> None:
        """Wait and call back until `stop`."""
        self._running = True
        while self._running:
            for key, _events in self._selector.select(self._pause()):
                key.data()
                if not self._running:
                    return
            self._ring()

    def close(self) -> None:
        """Let go of everything; threads that still work are left alone."""
        self._selector.close()
        os.close(self._wake)

    def _pause(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self._monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = self._monotonic()
        while self._running and self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._running:
            try:
                callback = self._posted.get_nowait()
            except queue.Empty:
                return
            callback()


def _raiser(error: BaseException) -> Callback:
    def raise_it() -> None:
        raise error

    return raise_it

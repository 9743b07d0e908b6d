"""One thread that waits for sockets, processes, timers and the results of worker threads, and calls back."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

T = TypeVar("T")
Callback = Callable[[], object]


class Descriptor(Protocol):
    """What has a descriptor."""

    def fileno(self) -> int:
        """Return its number."""


class Timer:
    """A callback that comes once, unless it is cancelled first."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """It does not come any more."""
        self.callback = None


class Reactor:
    """Calls back in the thread that called `run`. Only `post` may be called from other threads, and from signal handlers."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, *, on_error: Callable[[Exception], None] | None = None
    ) -> None:
        """`monotonic`: the clock of its timers, in seconds.

        `on_error` is called with each exception of a callback, and `run` goes on. Without it the first exception ends `run`,
        which raises it: for those who must start again when they do not know their own state any more.
        """
        self.monotonic = monotonic
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._posted: deque[Callback] = deque()
        #: A signal handler may interrupt `post` and post itself.
        self._guard = threading.RLock()
        # No eventfd(2), to which a signal could not write its one byte.
        self._woken_by, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.watch(self._woken_by, self._woken)
        self._running = False
        self._heeds_signals = False

    def watch(self, descriptor: int | Descriptor, callback: Callback, *, read: bool = True, write: bool = False) -> None:
        """Call back when the descriptor is readable, with `write` also when it is writable; again for as long as it is.

        A later call for the same descriptor replaces an earlier one; with neither `read` nor `write` it is `unwatch`.
        """
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        if not events:
            self.unwatch(number)
        elif number in self._watched:
            self._selector.modify(number, events, callback)
            self._watched[number] = callback
        else:
            self._selector.register(number, events, callback)
            self._watched[number] = callback

    def unwatch(self, descriptor: int | Descriptor) -> None:
        """No more callbacks for the descriptor. Comes before it is closed; again is harmless."""
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if self._watched.pop(number, None) is not None:
            self._selector.unregister(number)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call back in so many seconds; after what is ready now where they are 0 or fewer."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.monotonic() + max(0.0, seconds), next(self._count), timer))
        return timer

    def work(self, function: Callable[[], T], done: Callable[[T], None]) -> None:
        """Call `function` in a thread of its own, and `done` with what it returned in this one.

        An exception of `function` is treated as one of a callback.
        """

        def call() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - it is raised again by the reactor
                self.post(partial(_raise, error))
            else:
                self.post(partial(done, result))

        threading.Thread(target=call, name="reactor work", daemon=True).start()

    def post(self, callback: Callback) -> None:
        """Call back soon, in the order of the calls. From any thread and from a signal handler; harmless after `close`."""
        self._posted.append(callback)
        with self._guard, suppress(BlockingIOError):  # so many wake it anyway
            if self._wake >= 0:
                os.write(self._wake, b"!")

    def heed_signals(self) -> None:
        """Wake at each signal that has a handler, so that Python calls it at once; in the main thread.

        Without it a signal that comes just before the wait begins is handled when the wait ends (signal.set_wakeup_fd).
        """
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._heeds_signals = True

    def stop(self) -> None:
        """`run` returns after this callback. From other threads: `post(reactor.stop)`."""
        self._running = False

    def run(self) -> None:
        """Wait and call back until `stop`; may be called again after that."""
        self._running = True
        self.post(lambda: None)  # for what an earlier `stop` left behind
        while self._running:
            for key, _events in self._selector.select(self._pause()):
                # An earlier callback of this round may have closed it, and its number may be another's by now.
                callback = self._watched.get(key.fd)
                if self._running and callback is not None and callback is key.data:
                    self._call(callback)
            self._ring()

    def close(self) -> None:
        """Let go of everything; threads that still work are left alone. Again is harmless."""
        with self._guard:
            if self._wake >= 0:
                if self._heeds_signals:
                    signal.set_wakeup_fd(-1)
                self._selector.close()
                os.close(self._woken_by)
                os.close(self._wake)
                self._wake = -1

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)

    def _pause(self) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = self.monotonic()
        while self._running and self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._call(callback)

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken_by, 4096)
        for _ in range(len(self._posted)):  # what these post comes in the next round, after the timers
            if self._running:
                self._call(self._posted.popleft())


def _raise(error: BaseException) -> None:
    raise error

"""Lets the owner of a call stop it: the lab is asked while a worker has a call for longer than a moment."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from carrel_worker.connection import Lab, Over, all_frames

#: Seconds that a worker has a call before the lab is asked: short ones cost nothing.
_MOMENT = 0.3
#: Seconds for which the lab is asked at once while a call waits for its GPU: by then the lab hears that it has begun.
_WAITING = 2


class Late(BaseException):
    """The call is over its limit: as KeyboardInterrupt, so that what catches every `Exception` does not keep it."""


class Interrupts:
    """A thread that waits for the lab's word, and raises KeyboardInterrupt in the main thread, or has the call given back."""

    def __init__(self, pool: str, takes_long: Callable[[Lab], None]) -> None:
        """Must be made in the main thread. `takes_long` is called in another one, of a call that a worker has for a moment."""
        self._takes_long = takes_long
        self._path = "/pools/" + pool + "/interrupts?call="
        self._changed = threading.Condition()
        #: The call that the lab is asked about, and the one that can be interrupted now.
        self._watched: int | None = None
        self._call: int | None = None
        #: When that one is over its limit: SIGINT is the supervisor's then.
        self._until = math.inf
        #: Gives the call back, which has not begun. None: it has.
        self._give_back: Callable[[], None] | None = None
        self._main = threading.main_thread()
        self.listen()
        threading.Thread(target=self._run, name="interrupts", daemon=True).start()

    def listen(self) -> None:
        """SIGINT means an interrupt of the call, whatever a call has made of it."""
        signal.signal(signal.SIGINT, self._arrived)

    @contextlib.contextmanager
    def watched(self, call: int, give_back: Callable[[], None] | None) -> Iterator[None]:
        """The lab is asked about the call in this block. `give_back`, in another thread: it is not wanted, and has not begun."""
        with self._changed:
            self._watched, self._give_back = call, give_back
            self._changed.notify_all()
        try:
            yield
        finally:
            self._watched = None

    def begun(self) -> None:
        """The watched call is not given back any more."""
        with self._changed:
            self._give_back = None
            self._changed.notify_all()

    @contextlib.contextmanager
    def during(self, call: int, until: float = math.inf) -> Iterator[None]:
        """The watched call can be interrupted in this block. `until`: when it is over its limit, by the monotonic clock."""
        with self._changed:
            self._call, self._until = call, until
            self._changed.notify_all()
        try:
            yield
        finally:
            # Not under the lock: the handler of the signal may come at any place.
            self._call = None

    def _arrived(self, *_: Any) -> None:
        if self._call is not None:
            raise KeyboardInterrupt if time.monotonic() < self._until else Late

    def _run(self) -> None:
        lab = Lab()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched is not None)
                call = self._watched
                self._changed.wait_for(lambda: self._watched != call, _MOMENT)  # noqa: B023 - it is asked at once
            try:
                if call is not None and self._watched == call:
                    self._takes_long(lab)
            except Over:
                return
            while call is not None and self._watched == call:
                give_back = self._give_back
                path = self._path + str(call) + ("" if give_back is None else "&begun=false&wait={}".format(_WAITING))
                try:
                    ((header, _),) = all_frames(lab.ask("POST", path))
                except Over:
                    return
                if header["type"] == "interrupt":
                    self._interrupt(call)
                elif header["type"] == "return" and give_back is not None:
                    self._return(call, give_back)

    def _interrupt(self, call: int) -> None:
        with self._changed:  # between its GPU and its function there is nothing to interrupt
            self._changed.wait_for(lambda: self._call == call or self._watched != call)
        if self._call == call:
            signal.pthread_kill(self._main.ident or 0, signal.SIGINT)

    def _return(self, call: int, give_back: Callable[[], None]) -> None:
        give_back()
        with self._changed:  # the main thread says which came first
            self._changed.wait_for(lambda: self._watched != call or self._give_back is not give_back)

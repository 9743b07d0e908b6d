"""Words for a person who waits: why there is no worker yet, and how many calls of a `map` are done."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from carrel.core.domain.errors import CarrelError

if TYPE_CHECKING:
    from carrel.client import Client

#: Seconds for which nothing is said, and from one word to the next: of calls, and of what has not begun.
_MOMENT, _PAUSE = 1.0, 0.2
_PATIENCE, _LOOK = 2.0, 1.0


def somebody_reads() -> bool:
    """True where standard error is a terminal, or the output of a notebook's cell."""
    return sys.stderr is not None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel."))


class Line:
    """One line on standard error, which changes in its place; "" takes it away."""

    def __init__(self) -> None:
        self._shown = 0

    def say(self, text: str) -> None:
        """Show that in the place of what was shown before."""
        if text or self._shown:
            with suppress(OSError, ValueError):  # a terminal that is gone is no reason to lose a result
                sys.stderr.write(f"\r{text.ljust(self._shown)}" if text else f"\r{' ' * self._shown}\r")
                sys.stderr.flush()
        self._shown = len(text)


@contextmanager
def told(text: str) -> Iterator[None]:
    """Say to a person what the block does, if it takes longer than two seconds."""
    if not somebody_reads():
        yield
        return
    line = Line()
    timer = threading.Timer(_PATIENCE, line.say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        line.say("")


def why_no_worker(client: Client, pool_id: int) -> str:
    """Return why a call of the pool has no worker yet, in words."""
    try:
        pool = client.pool(pool_id)
        jobs = [client.job(one.job_id) for one in pool.workers[-1:]]
    except CarrelError as error:
        return f"waiting for the lab: {error}"
    if pool.trouble:
        return f"waiting for a worker: {pool.trouble}"
    more = {"RUNNING": " and begins, or fetches what the call needs"}
    said = [f"job {one.id} is {one.state}{': ' + one.message if one.message else more.get(one.state, '')}" for one in jobs]
    return "waiting for a worker: " + (said[0] if said else "it is being started")


def wait_for_worker(
    future: concurrent.futures.Future[Any], has_one: Callable[[], bool], why: Callable[[], str], timeout: float | None
) -> float | None:
    """Say to a person after two seconds why the call has no worker yet, until it has one; return what is left of `timeout`."""
    if future.done() or not somebody_reads() or threading.current_thread() is not threading.main_thread():
        return timeout
    deadline = None if timeout is None else time.monotonic() + timeout
    line, pause = Line(), _PATIENCE
    try:
        while not has_one() and (deadline is None or time.monotonic() < deadline):
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            if concurrent.futures.wait([future], left).done or has_one():
                break
            line.say(why())
            pause = _LOOK
    finally:
        line.say("")
    return None if deadline is None else deadline - time.monotonic()


class Counted:
    """Calls that are counted: one line on standard error says how many are done, and goes with the last."""

    def __init__(self, futures: Sequence[concurrent.futures.Future[Any]]) -> None:
        self._guard, self._line = threading.Lock(), Line()
        self._asked, self._done = len(futures), 0
        self._next = time.monotonic() + _MOMENT
        for future in futures:
            future.add_done_callback(self._count)

    def _count(self, _: object) -> None:
        with self._guard:
            self._done += 1
            if self._done == self._asked:
                self._line.say("")
            elif self._done < self._asked and time.monotonic() >= self._next:
                self._next = time.monotonic() + _PAUSE
                self._line.say(f"{self._done} of {self._asked} calls done")

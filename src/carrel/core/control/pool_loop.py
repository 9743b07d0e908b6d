"""The thread that looks after pools, or after sweeps: it hears of their jobs' ends and starts the jobs that are missing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from carrel.core.control.event_ports import EventStore
from carrel.core.domain.errors import CarrelError

_log = logging.getLogger(__name__)
_PAGE = 500
#: Seconds until a job that could not be started is tried again.
_AGAIN = 2.0
#: Seconds after which it is looked although nothing has happened: pools are abandoned by that.
_LOOK = 600.0


class LookedAfter(Protocol):
    """What starts jobs of its own; `carrel.core.control.pools.Pools` is one."""

    #: Called when there may be something to do.
    changed: Callable[[], None]

    def load(self) -> None:
        """Take up what an earlier server left."""

    def jobs(self) -> Sequence[int]:
        """Jobs whose ends matter."""

    def job_changed(self, job_id: int) -> None:
        """Something happened to a job."""

    def start_missing(self) -> bool:
        """Start the jobs that are missing. Returns False when one could not be started now, and should be tried again."""


class PoolLoop:
    """Runs until it is closed; woken by events of jobs and by what happens in pools (or in sweeps, which are like them)."""

    def __init__(self, pools: LookedAfter, events: EventStore, *, name: str = "pools") -> None:
        self._pools = pools
        self._events = events
        self._bell = threading.Event()
        self._closing = False
        #: Event up to which was heard; None while no job matters.
        self._seen: int | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Take up what an earlier server left, and begin."""
        self._pools.load()
        self._pools.changed = self._bell.set
        self._unsubscribe = self._events.subscribe(self._bell.set)
        self._bell.set()
        self._thread.start()

    def close(self) -> None:
        """Stop; workers and their calls go on."""
        self._unsubscribe()
        self._closing = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        well = True
        while True:
            self._bell.wait(_LOOK if well else _AGAIN)
            self._bell.clear()
            if self._closing:
                return
            try:
                self._hear()
                well = self._pools.start_missing()
            except CarrelError as error:
                _log.warning("The %s cannot be looked after now: %s", self._thread.name, error)
                well = False

    def _hear(self) -> None:
        jobs = self._pools.jobs()
        if not jobs:
            self._seen = None
            return
        if self._seen is None:
            self._seen = self._events.last_id()
            for job_id in jobs:
                self._pools.job_changed(job_id)
        while True:
            events = self._events.after(self._seen, job_id=None, owner=None, limit=_PAGE)
            for event in events:
                if event.type == "state":
                    self._pools.job_changed(event.job_id)
            if events:
                self._seen = events[-1].id
            if len(events) < _PAGE:
                return

"""Charges for the devices that cells and calls borrow: what the node's broker counts, to fair share and to the store.

Also what workers of pools have of GPUs now, as brokers say it in their `status` (`carrel.node.leases.protocol`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from carrel.core.control.ports import JobStore
from carrel.core.control.usage import SessionAttempt, UsageBook
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.ports import Clock

_log = logging.getLogger(__name__)

#: Seconds between two writes of what one running session was charged. What a server that is killed has not written, it charges
#: when it runs again: the broker still knows.
WRITE_SECONDS = 60.0


@dataclass(slots=True)
class SessionCharge:
    """What the cells of one attempt of a session were charged."""

    #: The broker's total, as reported last; below 0: it was not dealt with yet.
    total: float = -1.0
    #: In all; and whether that is still to be written down.
    charged: float = 0.0
    unwritten: bool = False
    #: When it was written last (Unix seconds).
    written_at: float = -inf


class Borrowing:
    """Takes the broker's reports. Thread-safe."""

    def __init__(self, *, jobs: JobStore, use: UsageBook, clock: Clock) -> None:
        self._jobs = jobs
        self._use = use
        self._clock = clock
        self._charges: dict[SessionAttempt, SessionCharge] = {}
        #: What the brokers said last: the one of the lab's own machine, and those of clusters.
        self._own: Mapping[SessionAttempt, float] = {}
        self._clusters: Mapping[SessionAttempt, float] = {}
        #: Whether the job runs on a cluster, by attempt that a broker there spoke of last.
        self._there: dict[SessionAttempt, bool] = {}
        self._lock = threading.Lock()

    def report(self, totals: Mapping[SessionAttempt, float], *, cluster: bool = False) -> None:
        """The broker's totals, in devices × seconds by job and attempt. What is new is charged now.

        `cluster`: they are those of all brokers on nodes of clusters, who speak for the sessions there and for no others.
        """
        with self._lock:
            try:
                if cluster:
                    self._clusters = self._theirs(totals)
                else:
                    self._own = totals
                totals = {**self._clusters, **self._own}
                for of, total in totals.items():
                    charge = self._charges.setdefault(of, SessionCharge())
                    if total != charge.total:
                        self._charge(of, charge, total)
                self._write(self._due())
                self._forget(totals)
            except CarrelError as error:
                # The totals only grow: the next report says this one's, too.
                _log.warning("What cells have borrowed cannot be written down now: %s", error)

    def close(self) -> None:
        """Write down what is not yet."""
        with self._lock:
            try:
                self._write([of for of, charge in self._charges.items() if charge.unwritten])
            except CarrelError as error:
                _log.warning("What cells have borrowed was not written down; the next server does it: %s", error)

    def _theirs(self, totals: Mapping[SessionAttempt, float]) -> Mapping[SessionAttempt, float]:
        """Those of sessions that were sent to a cluster."""
        known, self._there = self._there, {}
        for of in totals:
            if of in known:
                self._there[of] = known[of]
            else:
                job = self._jobs.get(of[0])
                self._there[of] = there = job is not None and job.handed_over
                if not there:
                    _log.warning("A broker of a cluster speaks of job %d, which does not run there.", of[0])
        return {of: total for of, total in totals.items() if self._there[of]}

    def _charge(self, of: SessionAttempt, charge: SessionCharge, total: float) -> None:
        now = self._clock()
        charged = self._use.borrowed(*of, total, now)
        if charged is None and self._recall(of):
            charged = self._use.borrowed(*of, total, now)
        charge.total = total
        if charged is not None and charged != charge.charged:
            charge.charged, charge.unwritten = charged, True

    def _recall(self, of: SessionAttempt) -> bool:
        """Go on where an earlier report of a session that has ended left it; False when this lab has no such session."""
        job, row = self._jobs.get(of[0]), self._jobs.attempt(*of)
        if job is None or row is None:
            return False
        self._use.recall(*of, (job.account, job.owner), row.lease_seconds)
        self._charges[of].charged = row.lease_seconds
        return True

    def _due(self) -> list[SessionAttempt]:
        now = self._clock()
        return [
            of
            for of, charge in self._charges.items()
            if charge.unwritten and (now - charge.written_at >= WRITE_SECONDS or not self._use.holds(of[0]))
        ]

    def _write(self, due: list[SessionAttempt]) -> None:
        if not due:
            return
        self._jobs.charge({of: self._charges[of].charged for of in due})
        now = self._clock()
        for of in due:
            self._charges[of].unwritten, self._charges[of].written_at = False, now

    def _forget(self, totals: Mapping[SessionAttempt, float]) -> None:
        """Of sessions that the broker speaks of no more nothing is kept, once it is written down."""
        for of in [of for of, charge in self._charges.items() if of not in totals and not charge.unwritten]:
            del self._charges[of]
        self._use.let_go(self._charges.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGpus:
    """What one worker has, or waits for."""

    #: GPUs that it has borrowed.
    devices: tuple[str, ...] = ()
    #: Why its call waits for one, with its place in line; "": it does not wait.
    waits: str = ""


#: What a worker has that no broker speaks of.
NOTHING = WorkerGpus()


def gpus_of_workers(statuses: Iterable[Mapping[str, Any]]) -> Mapping[int, WorkerGpus]:
    """Return what jobs have, by their numbers; a job that borrows nothing now is not among them."""
    devices: dict[int, list[str]] = {}
    waits: dict[int, str] = {}
    for status in statuses:
        for row in status.get("leases", ()):
            # A lease that is paused, or was, is still the call's: its devices are others' until it goes on.
            if row.get("state") == "paused":
                waits.setdefault(row["job"], "paused, so that others may compute")
            else:
                devices.setdefault(row["job"], []).extend(row["devices"])
        for row in status.get("queue", ()):
            position, message = row.get("position") or 1, row.get("message") or ""
            waits.setdefault(row["job"], f"#{position} in line for a GPU{': ' if message else ''}{message}")
    known = {job for job in (*devices, *waits) if isinstance(job, int)}
    return {job: WorkerGpus(devices=tuple(devices.get(job, ())), waits=waits.get(job, "")) for job in known}

"""Jobs wait for the tide. What starts them then is Carrel's own engine for one machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from carrel.core.domain.job import JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, JournalRecord, Launch, Observation, Preparing
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Engine
from carrel.core.spool import Spool

#: Seconds between two looks at the water.
LOOK = 0.05

Key = tuple[int, int]


class TideEngine:
    """`carrel.core.domain.ports.Engine`: an attempt starts when the mark of its quay is there."""

    def __init__(self, *, machine: Engine, spool: Spool, mark: Callable[[Launch], Path]) -> None:
        """`machine` runs what may start; `mark` is the file that says that the water is high enough for a job."""
        self._machine = machine
        self._spool = spool
        self._mark = mark
        self._waiting: dict[Key, tuple[Launch, str]] = {}
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="carrel-tide", daemon=True)
        self._thread.start()

    def nodes(self) -> tuple[Node, ...]:
        """None that the lab places jobs on."""
        return ()

    def withheld(self) -> frozenset[str]:
        """No devices."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """None."""
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with news: why jobs wait, and all that the machine has to tell."""
        self._receivers.append(deliver)
        self._machine.observe(deliver)

    def start(self, launch: Launch, *, token: str) -> None:
        """Start it, or let it wait and say why."""
        key = launch.job_id, launch.attempt
        mark = self._mark(launch)
        with self._lock:
            if key in self._waiting:
                return
            if mark.exists() or self._spool.attempt(*key).launch.exists():
                self._machine.start(launch, token=token)
                return
            self._waiting[key] = (launch, token)
        self._say(key, Preparing(message=f"waits for high water: {mark.name} is not marked", reason="HighWater"))

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """After a restart: the machine goes on with what it had, the rest waits again."""
        for attempt, launch, token in attempts:
            if self._spool.attempt(attempt.job_id, attempt.number).launch.exists():
                self._machine.adopt([(attempt, launch, token)])
            else:
                self.start(launch, token=token)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end; what waits has ended."""
        with self._lock:
            waited = self._waiting.pop((job_id, attempt), None)
        if waited is None:
            self._machine.cancel(job_id, attempt, by=by)
        else:
            reason = Reason(code="Cancelled", message=f"Cancelled by {by} before it started.")
            self._say((job_id, attempt), Ended(state=JobState.CANCELLED, reason=reason))

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """The machine knows how."""
        self._machine.preempt(job_id, attempt, preemption)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end is recorded."""
        self._machine.forget(job_id, attempt, over=over)

    def close(self) -> None:
        """Stop looking. Runners go on."""
        self._closed.set()
        self._thread.join()
        self._machine.close()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK):
            with self._lock:
                for key, (launch, token) in list(self._waiting.items()):
                    mark = self._mark(launch)
                    if mark.with_suffix(".closed").exists():
                        del self._waiting[key]
                        reason = Reason(code="QuayClosed", message=f"{mark.name} is closed.")
                        self._say(key, Ended(state=JobState.FAILED, reason=reason))
                    elif mark.exists():
                        self._machine.start(launch, token=token)
                        del self._waiting[key]

    def _say(self, key: Key, record: JournalRecord) -> None:
        # It stands in no journal, so it moves no offset.
        entries = (Journaled(at=time.time(), record=record),)
        over = isinstance(record, Ended)
        news = Observation(job_id=key[0], attempt=key[1], entries=entries, offset=int(over), beside=not over)
        for receiver in self._receivers:
            receiver([news])

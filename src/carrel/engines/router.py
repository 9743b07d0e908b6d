"""One engine over several: each attempt goes to the engine that its launch names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock, Engine
from carrel.engines.attempts import Key


def all_admitted(_launch: Launch) -> None:
    """Every attempt may begin."""


class Router:
    """`carrel.core.domain.ports.Engine` over engines with names. One is made when the first attempt goes there.

    So rules that name an engine may come while the lab runs, and jobs may be with one that the rules do not name any more.
    """

    def __init__(
        self,
        *,
        route: Callable[[Launch], str],
        make: Callable[[str], Engine],
        own: Engine | None = None,
        admit: Callable[[Launch], None] = all_admitted,
        clock: Clock = time.time,
    ) -> None:
        """`route` names the engine of a launch, or raises a `CarrelError` for one that no engine takes; `start` passes it on.

        `make` makes an engine by its name, once. `own` is the engine called "", whose nodes the lab places jobs on; it also
        hears of attempts that nothing is known of. `admit` raises for what may not begin now; what has begun goes on.
        """
        self._route = route
        self._make = make
        self._own = own
        self._admit = admit
        self._clock = clock
        self._engines: dict[str, Engine] = {} if own is None else {"": own}
        self._names: dict[Key, str] = {}
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._lock = threading.Lock()

    def nodes(self) -> tuple[Node, ...]:
        """Those that the lab places jobs on. All others are for their engines to give."""
        return () if self._own is None else self._own.nodes()

    def withheld(self) -> frozenset[str]:
        """UUIDs of devices of those nodes that nobody may be given now."""
        return frozenset() if self._own is None else self._own.withheld()

    def gpu_state(self) -> GpuState:
        """What sessions have on the GPUs of those nodes."""
        return GpuState() if self._own is None else self._own.gpu_state()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with the news of all."""
        with self._lock:
            self._receivers.append(deliver)
            engines = list(self._engines.values())
        for engine in engines:
            engine.observe(deliver)

    def start(self, launch: Launch, *, token: str) -> None:
        """Start the attempt with its engine. Raises as `admit`, `route` and the engine do."""
        self._admit(launch)
        self._names[launch.job_id, launch.attempt] = name = self._route(launch)
        self.engine(name).start(launch, token=token)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """Each engine takes up its own. What `route` refuses has ended: no engine ever had it."""
        by_name: dict[str, list[tuple[Attempt, Launch, str]]] = {}
        for one in attempts:
            launch = one[1]
            try:
                name = self._route(launch)
            except CarrelError as error:
                self._refuse(launch, error)
            else:
                self._names[launch.job_id, launch.attempt] = name
                by_name.setdefault(name, []).append(one)
        for name, theirs in by_name.items():
            self.engine(name).adopt(theirs)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end the job, wherever it is."""
        if engine := self.engine_of(job_id, attempt):
            engine.cancel(job_id, attempt, by=by)

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Ask the runner to stop as `preemption` says, or to go on."""
        if engine := self.engine_of(job_id, attempt):
            engine.preempt(job_id, attempt, preemption)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded."""
        if engine := self.engine_of(job_id, attempt):
            engine.forget(job_id, attempt, over=over)
        self._names.pop((job_id, attempt), None)

    def close(self) -> None:
        """Stop observing. Runners go on."""
        with self._lock:
            engines = list(self._engines.values())
        for engine in engines:
            engine.close()

    def engine(self, name: str) -> Engine:
        """Return the engine of that name, made now if it was not needed before."""
        with self._lock:
            engine = self._engines.get(name)
            if engine is None:
                engine = self._make(name)
                for receiver in self._receivers:
                    engine.observe(receiver)
                self._engines[name] = engine
            return engine

    def engine_of(self, job_id: int, attempt: int) -> Engine | None:
        """Return the engine that has the attempt; `own`, which may be None, for one that nothing is known of."""
        name = self._names.get((job_id, attempt))
        return self._own if name is None else self.engine(name)

    def _refuse(self, launch: Launch, error: CarrelError) -> None:
        ended = Ended(state=JobState.FAILED, reason=Reason(code="LaunchFailed", message=str(error)))
        entries = (Journaled(at=self._clock(), record=ended),)
        for receiver in self._receivers:
            receiver([Observation(job_id=launch.job_id, attempt=launch.attempt, entries=entries, offset=1)])

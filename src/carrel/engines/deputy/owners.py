"""One engine for a cluster where jobs run as their owners' own Unix users: each attempt goes to the engine of its user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from carrel.domain.errors import CarrelError
from carrel.domain.job import JobState, Preemption, Reason
from carrel.domain.launch import Ended, Journaled, Launch, Observation
from carrel.domain.node import Node
from carrel.domain.placement import GpuState
from carrel.domain.ports import Attempt, Clock, Engine
from carrel.engines.attempts import Key
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.followed import user_file
from carrel.spool import Spool

#: Stands for the user that the lab itself runs as, who needs no deputy.
OWN = ""


class OwnersEngine:
    """`carrel.domain.ports.Engine` over one engine for each Unix user, made when there is something for it to do."""

    def __init__(
        self, *, engine_of: Callable[[str], Engine], user_of: Callable[[str], str], spool: Spool, clock: Clock = time.time
    ) -> None:
        """`user_of` maps an owner to a Unix user, or to `OWN`, and raises a `CarrelError` for one who has none; `engine_of` makes
        that user's engine."""
        self._make = engine_of
        self._user_of = user_of
        self._spool = spool
        self._clock = clock
        self._engines: dict[str, Engine] = {}
        self._users: dict[Key, str] = {}
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._lock = threading.Lock()

    def nodes(self) -> tuple[Node, ...]:
        """None: the cluster's nodes are Slurm's to give."""
        return ()

    def withheld(self) -> frozenset[str]:
        """No devices."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """None."""
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with the news of all."""
        with self._lock:
            self._receivers.append(deliver)
            engines = list(self._engines.values())
        for engine in engines:
            engine.observe(deliver)

    def start(self, launch: Launch, *, token: str) -> None:
        """Start the attempt as its owner. Raises what the mapping raises: who is nobody on the cluster starts nothing there."""
        self._of_user(self._user(launch)).start(launch, token=token)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """Whoever an attempt was given to goes on with it, whatever the mapping says today."""
        for one in attempts:
            try:
                engine = self._of_user(self._user(one[1]))
            except CarrelError as error:
                self._refuse(one[1], error)
            else:
                engine.adopt([one])

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask for the end of the job."""
        if engine := self._of(job_id, attempt):
            engine.cancel(job_id, attempt, by=by)

    def preempt(
        self,
        job_id: int,
        attempt: int,
        preemption: Preemption | None,
        *,
        devices: Sequence[str] = (),  # noqa: ARG002 - Slurm's are as they are
    ) -> None:
        """Ask the job to give way, or to go on."""
        if engine := self._of(job_id, attempt):
            engine.preempt(job_id, attempt, preemption)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded."""
        if engine := self._of(job_id, attempt):
            engine.forget(job_id, attempt, over=over)
        self._users.pop((job_id, attempt), None)

    def read_address(self, job_id: int, attempt: int) -> bytes | None:
        """Return what a session that somebody's deputy looks after has written about where it is; None for all others."""
        engine = self._of(job_id, attempt)
        return engine.read_address(job_id, attempt) if isinstance(engine, DeputyEngine) else None

    def deputy_of(self, job_id: int, attempt: int) -> DeputyEngine | None:
        """Return whose hands an attempt's files are in that is over; None when they are the lab's own."""
        try:
            user = user_file(self._spool, job_id, attempt).read_text().strip()
        except OSError:
            return None
        engine = self._of_user(user)
        return engine if isinstance(engine, DeputyEngine) else None

    def close(self) -> None:
        """Stop observing. Jobs go on."""
        with self._lock:
            engines = list(self._engines.values())
        for engine in engines:
            engine.close()

    def _user(self, launch: Launch) -> str:
        key = launch.job_id, launch.attempt
        try:
            user = user_file(self._spool, *key).read_text().strip()
        except OSError:
            # The lab's own spool has files of what it has started itself.
            started = self._spool.attempt(*key).launch.exists()
            user = OWN if started else self._user_of(launch.owner)
        self._users[key] = user
        return user

    def _of_user(self, user: str) -> Engine:
        with self._lock:
            engine = self._engines.get(user)
            if engine is None:
                engine = self._make(user)
                for receiver in self._receivers:
                    engine.observe(receiver)
                self._engines[user] = engine
            return engine

    def _of(self, job_id: int, attempt: int) -> Engine | None:
        user = self._users.get((job_id, attempt))
        return None if user is None else self._of_user(user)

    def _refuse(self, launch: Launch, error: CarrelError) -> None:
        """It was never given to anybody, and there is nobody to give it to."""
        ended = Ended(state=JobState.FAILED, reason=Reason(code="LaunchFailed", message=str(error)))
        entries = (Journaled(at=self._clock(), record=ended),)
        for receiver in self._receivers:
            receiver([Observation(job_id=launch.job_id, attempt=launch.attempt, entries=entries, offset=1)])

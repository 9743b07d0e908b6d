"""The engine for one machine: runners are processes here, forked from a warm parent, and outlive the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock
from carrel.core.spool import Spool, read_claim, write_preempt
from carrel.core.spool.trees import remove_tree
from carrel.engines.attempts import Key, Watched, clear, discard_launch, write_cancel, write_launch
from carrel.engines.doorbells import Doorbells
from carrel.engines.nursery import Nursery
from carrel.engines.observer import Observer
from carrel.node.devices.locks import DeviceLocks

#: Seconds for which it is remembered which devices others hold.
_WITHHELD_FOR = 2.0


class LocalEngine:
    """`carrel.core.domain.ports.Engine` for this machine.

    Nothing that matters is in its memory: the spool has it, so a new engine on the same spool and run directory goes on
    where another one was killed. There must be one at a time (the lab's lock sees to that).
    """

    def __init__(
        self,
        *,
        spool: Spool,
        node: Node,
        run_dir: Path,
        environ: Mapping[str, str],
        monotonic: Clock = time.monotonic,
        locks: DeviceLocks | None = None,
        cgroups: bool = True,
        lent: Callable[[], frozenset[str]] = frozenset,
        state: Callable[[], GpuState] = GpuState,
        composed: Callable[[], tuple[Node, ...]] = tuple,
    ) -> None:
        """Make the sockets and start the nursery.

        `run_dir` is a directory of the lab's own (it is made, mode 0700), always the same for the same spool; `environ` are
        the server's variables, of which jobs get a short list. With `cgroups` false, runners watch memory by themselves.
        `lent` says which devices the node's broker keeps for cells of sessions, `state` what idle ones have on the others.
        `composed` are simulated machines that were made from parts: their jobs run here, too.
        """
        self._lent = lent
        self._state = state
        self._spool = Spool(spool.root.absolute())
        self._node, self._composed = node, composed
        self._monotonic = monotonic
        self._locks = locks or DeviceLocks()
        run_dir = run_dir.absolute()
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bell = str(run_dir / "doorbell")
        self._doorbells = Doorbells(run_dir / "doorbell")
        self._nursery = Nursery(
            environ=environ,
            log=run_dir / "nursery.log",
            options=() if cgroups else ("--no-cgroups",),
            locks=self._locks,
            monotonic=monotonic,
        )
        self._nursery.start()
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._observer = Observer(doorbells=self._doorbells, nursery=self._nursery, deliver=self._deliver, monotonic=monotonic)
        self._withheld: frozenset[str] = frozenset()
        self._withheld_until = 0.0

    @property
    def nursery_pid(self) -> int | None:
        """Process id of the nursery, for `carrel doctor`; None while it is being started again."""
        return self._nursery.pid

    def nodes(self) -> tuple[Node, ...]:
        """This machine, and those that were made from parts."""
        return (self._node, *self._composed())

    def withheld(self) -> frozenset[str]:
        """UUIDs of devices that another lab on this machine holds (at most 2 s old) or that cells of sessions use or want."""
        return self._elsewhere() | self._lent()

    def gpu_state(self) -> GpuState:
        """What idle sessions have on the devices, by the broker's last word."""
        return self._state()

    def _elsewhere(self) -> frozenset[str]:
        now = self._monotonic()
        if now >= self._withheld_until:
            own = {device.uuid for watched in self._observer.all() for device in watched.launch.devices}
            with suppress(CarrelError, OSError):
                self._withheld = frozenset(
                    device.uuid for device in self._node.devices if device.uuid not in own and self._locks.is_held(device)
                )
            self._withheld_until = now + _WITHHELD_FOR
        return self._withheld

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with news, in order for each attempt, from a thread of the engine's, until `close`.

        News that `deliver` raises an exception on are delivered again. To be called once.
        """
        self._receivers.append(deliver)
        self._observer.start()

    def start(self, launch: Launch, *, token: str) -> None:
        """Start a runner for the attempt and return at once. Calling it again for the same attempt starts nothing twice.

        Raises `Unavailable` (a device is taken, the nursery is being started again) and `StorageFull`; then no runner
        exists and none will.
        """
        watched = self._make(launch, token)
        watched.in_flight = True
        watched.asked = 1
        if not self._observer.watch(watched):
            return
        if read_claim(watched.directory.claim) is not None:
            self._observer.call(partial(self._observer.resettle, watched))
            return
        try:
            write_launch(watched)
            self._nursery.ask(watched.directory.path, launch.devices)
        except CarrelError:
            self._observer.forget(watched.key)
            discard_launch(watched.directory)
            raise

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """After a restart: watch these attempts again.

        One that was never claimed is started now, one whose runner is gone without an end is reported as gone, and what is
        left of it is killed.
        """
        for attempt, launch, token in attempts:
            watched = self._make(launch, token)
            watched.offset = attempt.offset
            if self._observer.watch(watched):
                self._observer.call(partial(self._observer.settle, watched))

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end the job, in the name of `by`. Unknown attempts are ignored."""
        watched = self._observer.find((job_id, attempt))
        if watched is None:
            return
        write_cancel(watched.directory, by)
        self._observer.call(watched.tell)

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Preempt the job, or let it go on where `preemption` is None. Unknown attempts are ignored."""
        watched = self._observer.find((job_id, attempt))
        if watched is None:
            return
        if preemption is None:
            watched.directory.preempt.unlink(missing_ok=True)
        else:
            write_preempt(watched.directory.preempt, preemption)
        self._observer.call(watched.tell)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded: stop watching it, and remove its token and temporary files.

        With the job itself `over`, what its attempts kept for each other goes too. Attempt 0, which started no command, leaves
        its log to a job that it was the end of, and else nothing.
        """
        key: Key = (job_id, attempt)
        watched = self._observer.find(key)
        self._observer.forget(key)
        directory = watched.directory if watched else self._spool.attempt(job_id, attempt)
        if attempt == 0 and not directory.path.is_dir():
            return
        clear(directory)
        if attempt == 0 and not over:
            remove_tree(directory.path)
        if over:
            remove_tree(directory.checkpoint)

    def close(self) -> None:
        """Stop observing. Runners go on."""
        self._observer.close()
        self._nursery.close()
        self._doorbells.close()

    def _make(self, launch: Launch, token: str) -> Watched:
        # The broker lends this machine's own devices, and knows no others.
        foreign = bool(launch.devices) and any(node.name == launch.node for node in self._composed())
        broker = "" if foreign else launch.paths.broker
        launch = replace(launch, paths=replace(launch.paths, doorbell=self._bell, broker=broker))
        return Watched(launch=launch, token=token, directory=self._spool.attempt(launch.job_id, launch.attempt))

    def _deliver(self, observations: Sequence[Observation]) -> None:
        for receiver in self._receivers:
            receiver(observations)

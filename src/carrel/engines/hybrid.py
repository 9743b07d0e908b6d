"""One engine for a lab that has a machine of its own and a cluster: each attempt goes to the engine that its place names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from carrel.domain.job import Preemption
from carrel.domain.launch import Launch, Observation
from carrel.domain.node import Node
from carrel.domain.partition import on_cluster
from carrel.domain.placement import GpuState
from carrel.domain.ports import Attempt, Engine


def everybody_admitted(_launch: Launch) -> None:
    """Whoever may submit may run here."""


class HybridEngine:
    """`carrel.domain.ports.Engine` over the lab's own machine and Slurm.

    Slurm's engine is made when the first attempt goes there: rules that name Slurm may come while the lab runs, and jobs may be
    there whose partition the rules do not name any more.
    """

    def __init__(
        self, *, local: Engine, slurm: Callable[[], Engine], admit: Callable[[Launch], None] = everybody_admitted
    ) -> None:
        """`slurm` makes the engine for Slurm; it is called once, or never. `admit` raises for what may not begin here."""
        self._local = local
        self._admit = admit
        self._make_slurm = slurm
        self._slurm: Engine | None = None
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._there: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def nodes(self) -> tuple[Node, ...]:
        """The lab's own machine. Nodes of the cluster are Slurm's to give: the lab places nothing there."""
        return self._local.nodes()

    def withheld(self) -> frozenset[str]:
        """UUIDs of devices of the lab's own machine that nobody may be given now."""
        return self._local.withheld()

    def gpu_state(self) -> GpuState:
        """What sessions have on the GPUs of the lab's own machine."""
        return self._local.gpu_state()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with the news of both."""
        with self._lock:
            self._receivers.append(deliver)
            slurm = self._slurm
        self._local.observe(deliver)
        if slurm is not None:
            slurm.observe(deliver)

    def start(self, launch: Launch, *, token: str) -> None:
        """Start the attempt where it was placed. Raises as the engine there does."""
        if not on_cluster(launch.node):
            self._admit(launch)
            self._local.start(launch, token=token)
            return
        self._there.add((launch.job_id, launch.attempt))
        self.cluster().start(launch, token=token)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """Each engine takes up its own."""
        here: list[tuple[Attempt, Launch, str]] = []
        there: list[tuple[Attempt, Launch, str]] = []
        for one in attempts:
            (there if on_cluster(one[1].node) else here).append(one)
        self._local.adopt(here)
        if there:
            self._there |= {(launch.job_id, launch.attempt) for _, launch, _ in there}
            self.cluster().adopt(there)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end the job, wherever it is."""
        self._of(job_id, attempt).cancel(job_id, attempt, by=by)

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None, *, devices: Sequence[str] = ()) -> None:
        """Ask the runner to give way, or to go on."""
        self._of(job_id, attempt).preempt(job_id, attempt, preemption, devices=devices)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded."""
        self._of(job_id, attempt).forget(job_id, attempt, over=over)
        self._there.discard((job_id, attempt))

    def close(self) -> None:
        """Stop observing. Runners go on."""
        self._local.close()
        with self._lock:
            slurm = self._slurm
        if slurm is not None:
            slurm.close()

    def _of(self, job_id: int, attempt: int) -> Engine:
        return self.cluster() if (job_id, attempt) in self._there else self._local

    def cluster(self) -> Engine:
        """The engine for Slurm, made now if it was not needed before."""
        with self._lock:
            if self._slurm is None:
                slurm = self._make_slurm()
                for receiver in self._receivers:
                    slurm.observe(receiver)
                self._slurm = slurm
            return self._slurm

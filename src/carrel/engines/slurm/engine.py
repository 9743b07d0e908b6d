"""The engine for a Slurm cluster: each attempt is a job of Slurm's, in which the lab's own runner runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import GpuState
from carrel.core.domain.ports import Attempt, Clock
from carrel.core.spool import Spool, read_claim, write_preempt
from carrel.core.spool.seal import SignedOrder
from carrel.core.spool.trees import remove_tree
from carrel.engines.attempts import Watched, clear, write_cancel, write_launch
from carrel.engines.doorbells import Doorbells, NetworkDoorbells
from carrel.engines.slurm.arrays import leave_array, sweep_arrays
from carrel.engines.slurm.batch import ELEMENT, FOR, SIGNED, STRICT
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.followed import Followed
from carrel.engines.slurm.follower import Follower
from carrel.engines.slurm.immediate import Allocations, never
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.pilot import START as PILOT
from carrel.engines.slurm.pilots import Pilots, no_time
from carrel.engines.slurm.reconciler import Reconciler
from carrel.engines.slurm.shared import Listing
from carrel.node.runner.lease import LONGEST_WAIT

#: Seconds beyond a job's walltime that Slurm is asked for, so that the runner's own limit comes first.
MARGIN = 60
#: Bytes beyond a job's memory that the runner itself needs.
_OVERHEAD = 128 * 1024**2
_LAB = re.compile(r"[A-Za-z0-9_-]+")
_SHARDS = re.compile(r"(?<![\w/])shard(?::[^:,()]+)?:(\d{1,6})(?![\d.])")
_GRES = re.compile(r"gpu(?::(?P<type>[^:,()]+))?:(?P<number>\d{1,4})(?![\d.])")


def options_for(launch: Launch) -> SlurmOptions:
    """Return what Slurm is asked for where a site says nothing else: the job's resources."""
    wanted = launch.resources
    shards = launch.task.session.shards if launch.task.session is not None else launch.task.borrows or launch.shards
    return SlurmOptions(
        time=wanted.time + MARGIN + (int(LONGEST_WAIT) if launch.shards else 0),
        memory=wanted.memory + _OVERHEAD,
        cpus=wanted.cpus or 1,
        # Slurm gives the shares of one GPU without saying of which type; who decides on them has seen to that.
        gpus=0 if launch.shards else wanted.gpus,
        gpu_type="" if launch.shards else wanted.gpu_type or "",
        nodes=wanted.nodes,
        shards=shards,
    )


def not_signed(_launch: Launch) -> SignedOrder | None:
    """Nobody asks for the lab's signature."""
    return None


class SlurmEngine:
    """`carrel.core.domain.ports.Engine` for a Slurm cluster whose nodes see the spool at the same path.

    Nothing that matters is in its memory: the spool has it, and Slurm has the jobs, whose comments hold the lab, the job and
    the attempt. The runner's claim on the attempt keeps it from running twice, also if Slurm starts it twice.
    """

    def __init__(
        self,
        *,
        spool: Spool,
        run_dir: Path,
        lab: str,
        environ: Mapping[str, str],
        commands: SlurmCommands | None = None,
        listing: Listing | None = None,
        options: Callable[[Launch], SlurmOptions] = options_for,
        immediate: Callable[[Launch], bool] = never,
        hold: Callable[[Launch], float] = no_time,
        user: str = "",
        host: str = "",
        python: str = sys.executable,
        strict: bool = False,
        order: Callable[[Launch], SignedOrder | None] = not_signed,
        key: str = "",
        ordered_of: str = "",
        interval: float = 5.0,
        monotonic: Clock = time.monotonic,
        clock: Clock = time.time,
    ) -> None:
        """Make the socket; no command is run yet.

        `listing` is shared with others. `immediate` says which jobs are to have an allocation at once where Slurm gives one,
        instead of being submitted (`carrel.engines.slurm.immediate.short_or_session` is the rule of most sites). `hold` says for
        how many seconds an allocation stays with its user for the next short task, 0 for none. `lab` tells labs apart that share
        a cluster. `user` is who owns the jobs ("": comments alone are believed). `host` is the name by which nodes reach this
        machine, so that runners can ring there ("": they cannot, and news are looked for). `python` is the interpreter with
        Carrel in it, at the same path on all nodes. With `strict`, nodes run nothing that lies where other users could have put
        it (`carrel.core.spool.strict`). Where `order` gives what the lab has signed, they run nothing that the holder of `key`
        has not ordered of the Unix user `ordered_of` ("": of the lab's own).
        `interval` is the seconds between two looks; while nothing is expected, every fourth asks Slurm.
        """
        if not _LAB.fullmatch(lab):
            raise Invalid(f"The lab's name for Slurm is {lab!r}.", remedy="Use letters, digits, _ and -.")
        self._spool = Spool(spool.root.absolute())
        self._lab = lab
        #: The configuration of guards of attempts.
        signed = (f"{SIGNED}{key}", *((f"{FOR}{ordered_of}",) if ordered_of else ())) if key else ()
        self._told = (*((STRICT,) if strict else ()), *signed)
        self._order = order
        self._guardian = [python, "-I", "-m", "carrel.engines.slurm.batch"]
        self._commands = commands or SlurmCommands(environ=environ)
        run_dir = run_dir.absolute()
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._spool.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bell = str(run_dir / "doorbell")
        self._doorbells: list[Doorbells | NetworkDoorbells] = [Doorbells(run_dir / "doorbell")]
        self._far_bell = ""
        if host:
            far = NetworkDoorbells(run_dir / "bell", host)
            self._doorbells.append(far)
            self._far_bell = far.address
        self._receivers: list[Callable[[Sequence[Observation]], None]] = []
        self._follower = Follower(doorbells=self._doorbells, deliver=self._deliver, monotonic=monotonic, clock=clock)
        self._reconciler = Reconciler(
            slurm=self._commands,
            follower=self._follower,
            options=options,
            command=self._command,
            element_command=self._element_command,
            lab=lab,
            allocations=Allocations(
                commands=self._commands,
                command=self._command,
                wanted=immediate,
                spool=self._spool,
                lab=lab,
                monotonic=monotonic,
            ),
            pilots=lambda do, again: Pilots(
                commands=self._commands,
                command=[python, "-P", "-c", PILOT, *self._told],
                hold=hold,
                lab=lab,
                directory=self._spool.root,
                do=do,
                again=again,
                monotonic=monotonic,
            ),
            listing=listing,
            user=user,
            interval=interval,
            monotonic=monotonic,
            clock=clock,
        )
        self._nodes: tuple[Node, ...] = ()
        sweep_arrays(lab, self._spool.root)

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's nodes as Slurm has them now; as they were last when it does not answer."""
        with suppress(CarrelError):
            self._nodes = tuple(node_of(record) for record in self._commands.nodes())
        return self._nodes

    def withheld(self) -> frozenset[str]:
        """No devices: Slurm itself sees to it that nobody is given a device twice."""
        return frozenset()

    def gpu_state(self) -> GpuState:
        """None: devices that Slurm gave to a job are the job's own."""
        return GpuState()

    def observe(self, deliver: Callable[[Sequence[Observation]], None]) -> None:
        """Call `deliver` with news, in order for each attempt, from a thread of the engine's, until `close`; once."""
        self._receivers.append(deliver)
        self._follower.start()
        self._reconciler.start()

    def start(self, launch: Launch, *, token: str) -> None:
        """Submit a job for the attempt and return at once. Calling it again for the same attempt starts nothing twice.

        Raises `StorageFull` and `Unavailable` when the spool cannot be written; then no job exists and none will. Whether Slurm
        takes the job is reported as news: while it does not answer this is tried again, and what it refuses has failed.
        """
        followed = self._make(launch, token)
        if not self._follower.follow(followed):
            return
        if read_claim(followed.directory.claim) is None and not followed.asked:
            try:
                write_launch(followed.watched)
            except CarrelError:
                self._follower.forget(followed.watched.key)
                raise
        self._reconciler.submit(followed)

    def adopt(self, attempts: Iterable[tuple[Attempt, Launch, str]]) -> None:
        """After a restart: follow these attempts again, and submit those that nobody submitted."""
        for attempt, launch, token in attempts:
            followed = self._make(launch, token)
            followed.watched.offset = attempt.offset
            followed.cancelled = followed.cancelled_by() is not None
            if self._follower.follow(followed):
                self._reconciler.submit(followed)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        """Ask the runner to end the job, in the name of `by`; one that waits in Slurm never starts. Unknown ones are ignored."""
        followed = self._follower.find((job_id, attempt))
        if followed is None:
            return
        write_cancel(followed.directory, by)
        followed.cancelled = True
        self._reconciler.cancel(followed)

    def preempt(self, job_id: int, attempt: int, preemption: Preemption | None) -> None:
        """Preempt the job, or let it go on where `preemption` is None. Unknown attempts are ignored.

        One that is stopped keeps what Slurm has given it: Slurm does not know that it could be lent on.
        """
        followed = self._follower.find((job_id, attempt))
        if followed is None:
            return
        if preemption is None:
            followed.directory.preempt.unlink(missing_ok=True)
        else:
            followed.directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_preempt(followed.directory.preempt, preemption)
        self._reconciler.alert(followed)

    def forget(self, job_id: int, attempt: int, *, over: bool = True) -> None:
        """The end of the attempt is recorded: stop following it, and remove its token and temporary files.

        With the job itself `over`, what its attempts kept for each other goes too.
        """
        followed = self._follower.forget((job_id, attempt))
        if followed is not None and followed.array:
            leave_array(followed)
        directory = self._spool.attempt(job_id, attempt)
        clear(directory)
        if followed is None or followed.number is not None:
            self._reconciler.ended()
        elif not followed.asked and not over:
            remove_tree(directory.path)  # Slurm never took it, so no runner comes for it
        if attempt == 0 and not over:  # it started no command
            remove_tree(directory.path)
        if over:
            remove_tree(directory.checkpoint)

    def close(self) -> None:
        """Stop observing. Jobs go on."""
        self._reconciler.close()
        self._follower.close()
        for doorbells in self._doorbells:
            doorbells.close()

    def _make(self, launch: Launch, token: str) -> Followed:
        order = self._order(launch)
        launch = replace(launch, paths=replace(launch.paths, doorbell=self._bell, bell=self._far_bell))
        watched = Watched(launch=launch, token=token, directory=self._spool.attempt(launch.job_id, launch.attempt), order=order)
        followed = Followed(watched=watched, name=f"carrel.{self._lab}.{launch.job_id}.{launch.attempt}")
        followed.recall()
        return followed

    def _command(self, followed: Followed) -> list[str]:
        return [*self._guardian, str(followed.directory.path), *self._told]

    def _element_command(self, array: Path) -> list[str]:
        return [*self._guardian, str(array), ELEMENT, *self._told]

    def _deliver(self, observations: Sequence[Observation]) -> None:
        for receiver in self._receivers:
            receiver(observations)


def node_of(record: Mapping[str, str]) -> Node:
    """Return a node from what `scontrol show node` says of it; what cannot be read counts as nothing."""
    name = record["NodeName"]
    state = record.get("State", "")
    devices: list[Device] = []
    for found in _GRES.finditer(record.get("Gres", "")):
        kind = found["type"] or "gpu"
        for _ in range(int(found["number"])):
            index = len(devices)
            devices.append(Device(uuid=f"{name}/gpu{index}", index=index, type=kind, name=kind, memory=0))
    drained = state if re.search(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|\*|MAINT|UNKNOWN", state) else None
    return Node(
        name=name,
        cpus=_number(record.get("CPUTot", "")),
        memory=_number(record.get("RealMemory", "")) * 1024**2,
        devices=tuple(devices),
        shards=sum(int(number) for number in _SHARDS.findall(record.get("Gres", ""))),
        drained=f"Slurm says {drained}." if drained else None,
    )


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else 0

"""The immediate path: an allocation that Slurm gives at once, into which srun puts the runner.

sbatch is started by a timer; salloc is decided upon at once. The allocation belongs to nobody's shell: it stays until the
guardian in it gives it back. srun is not needed once the runner lives, and is ended then, in a way that leaves its step alone.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from carrel.domain.launch import Launch
from carrel.domain.ports import Clock
from carrel.domain.qos import JobKind
from carrel.engines.slurm.batch import GIVE_BACK, RELEASED
from carrel.engines.slurm.commands import SlurmCommands, SlurmRefused
from carrel.engines.slurm.followed import HELD, Followed, runner_of
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.options import SlurmOptions, gres_of, sbatch_arguments
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import is_live
from carrel.spool import AttemptDirectory, Spool, read_claim

#: Seconds of walltime up to which a task is short.
SHORT = 15 * 60
#: What only sbatch knows, of what `sbatch_arguments` says.
_BATCH_ONLY = re.compile(r"--(parsable|open-mode=.*|export=.*|requeue|no-requeue|output=.*)")
#: What has no meaning for an allocation that is there at once.
_LATER = ("--begin", "--batch", "--deadline", "--time-min")
#: Times that srun is tried before the attempt is submitted instead.
_TRIES = 2
#: Seconds that a step may take to begin.
_BEGINS = 60.0
#: Seconds of life after which a runner's srun is ended. A step whose srun is gone takes some seconds longer to end, which matters
#: to short jobs only; and they have little time to lose their srun in.
_DETACH = 15.0


def short_or_session(launch: Launch) -> bool:
    """The rule of most sites: sessions, and tasks with a walltime of at most `SHORT` seconds, do not wait for a timer."""
    return launch.kind is JobKind.SESSION or launch.resources.time <= SHORT


def never(_launch: Launch) -> bool:
    """Everything is submitted."""
    return False


def may_be_immediate(options: SlurmOptions) -> bool:
    """Return whether an allocation can stand for such a job: some things only a batch job can do."""
    return not (
        options.requeue
        or options.notice
        or (options.nodes or 1) > 1
        or (options.tasks_per_node or 1) > 1
        or any(option.partition("=")[0] in _LATER for option in options.passed)
    )


def salloc_arguments(options: SlurmOptions, *, name: str, comment: str, directory: str) -> list[str]:
    """Return the arguments of salloc(1) for what `sbatch_arguments` asks of sbatch."""
    arguments = sbatch_arguments(options, name=name, comment=comment, directory=directory, output="")
    return [argument for argument in arguments if not _BATCH_ONLY.fullmatch(argument)]


def srun_arguments(options: SlurmOptions, *, number: int, name: str, directory: str, script: str) -> list[str]:
    """Return the arguments of srun(1) that start `script` once, with everything that allocation `number` has."""
    arguments = [f"--jobid={number}", f"--job-name={name}", f"--chdir={directory}"]
    arguments += ["--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--mpi=none", "--export=ALL", "--quiet"]
    if options.cpus:
        arguments.append(f"--cpus-per-task={options.cpus}")
    if gres := gres_of(options):
        arguments.append(f"--gres={gres}")
    # Not through srun, which is not needed for long.
    return [*arguments, "--input=none", "--output=none", "--error=none", "/bin/bash", script]


class Allocations:
    """Makes and tends them; only the reconciler's thread calls it."""

    def __init__(
        self,
        *,
        commands: SlurmCommands,
        command: Callable[[Followed], Sequence[str]],
        wanted: Callable[[Launch], bool],
        spool: Spool,
        lab: str,
        monotonic: Clock,
    ) -> None:
        self._slurm = commands
        self._command = command
        self._wanted = wanted
        self._spool = spool
        self._name = re.compile(rf"carrel\.{re.escape(lab)}\.([0-9]{{1,18}})\.([0-9]{{1,9}}){re.escape(HELD)}")
        self._monotonic = monotonic
        #: Children that have to be waited for.
        self._children: set[int] = set()
        #: Allocations that were made, and have not been seen to end.
        self._made: set[int] = set()
        #: Allocations without a runner, as of the last listing.
        self._idle: set[int] = set()

    def take(self, followed: Followed, options: SlurmOptions) -> bool:
        """Have the attempt run in an allocation; False when it has to be submitted.

        Other errors than a refusal are raised: there may be an allocation under its name, which is to be looked for.
        """
        launch = followed.watched.launch
        if followed.batch_only or not self._wanted(launch) or not may_be_immediate(options):
            followed.hold(False)
            return False
        followed.batch_only = True  # one that is not granted now, for whatever reason, is not tried again
        followed.hold(True)
        followed.remember(None)
        directory = str(followed.directory.path)
        arguments = salloc_arguments(options, name=followed.name, comment=launch.name, directory=directory)
        try:
            followed.remember(self._slurm.allocate(arguments))
        except SlurmRefused:  # busy, or something that sbatch will say, too
            followed.hold(False)
            return False
        self.put(followed, options)
        return True

    def put(self, followed: Followed, options: SlurmOptions) -> None:
        """Start the runner in the allocation. Doing it twice does no harm: the second one finds the attempt claimed."""
        assert followed.number is not None
        script = followed.directory.path / "slurm.sh"
        script.write_text(batch_script([*self._command(followed), GIVE_BACK], options, output=str(followed.output)))
        arguments = srun_arguments(
            options,
            number=followed.number,
            name=followed.name,
            directory=str(followed.directory.path),
            script=str(script),
        )
        pid = self._slurm.step(arguments)
        self._children.add(pid)
        self._made.add(followed.number)
        followed.sruns += 1
        followed.srun_at = self._monotonic()
        followed.remember_srun(pid)

    def tend_waiting(self, followed: Followed, options: SlurmOptions) -> bool:
        """It has an allocation and no runner yet: see to it. False: it was given up, and the attempt is to be submitted."""
        assert followed.number is not None
        if self._is_srun(followed) and self._monotonic() - followed.srun_at < _BEGINS:
            return True
        if followed.sruns < _TRIES:
            self.put(followed, options)
            return True
        if runner_of(followed) is not None:
            return True
        followed.batch_only = True
        self._slurm.cancel(followed.number, name=followed.name)
        self._end_srun(followed)
        followed.hold(False)
        followed.srun = -1
        followed.remember(None)
        return False

    def tend_running(self, followed: Followed) -> None:
        """Its runner lives: after a while it can do without its srun."""
        if followed.srun > 0 and self._monotonic() - followed.srun_at > _DETACH:
            self._end_srun(followed)
            followed.remember_srun(-1)

    def outstanding(self) -> bool:
        """Return whether there are allocations, or were at the last listing; and wait for what srun has ended."""
        for pid in list(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)
        return bool(self._made)

    def tend_all(self, jobs: Iterable[SlurmJob]) -> None:
        """Give back allocations whose runner is gone and whose guardian did not, once they were seen so twice."""
        live = [job for job in jobs if is_live(job)]
        self._made &= {job.id for job in live}
        idle = {job.id: (directory, job.name) for job in live if (directory := self._without_runner(job)) is not None}
        left = [number for number in sorted(idle) if number in self._idle]
        self._idle = set(idle)
        for number in left:
            directory, name = idle[number]
            with suppress(OSError):
                (directory.path / RELEASED).touch(mode=0o600)
            self._slurm.cancel(number, name=name)

    def _without_runner(self, job: SlurmJob) -> AttemptDirectory | None:
        """Return the attempt of an allocation that Slurm has not begun to end, and whose runner was there and is gone."""
        match = self._name.fullmatch(job.name)
        if match is None or job.state != "RUNNING":
            return None
        directory = self._spool.attempt(int(match[1]), int(match[2]))
        claim = read_claim(directory.claim)
        return None if claim is None or claim.held else directory

    def _is_srun(self, followed: Followed) -> bool:
        """Return whether the srun that was written down is one, and still this attempt's: its number may be another's by now."""
        if followed.srun <= 0:
            return False
        try:
            words = Path(f"/proc/{followed.srun}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"--jobid={followed.number}".encode() in words and f"--job-name={followed.name}".encode() in words

    def _end_srun(self, followed: Followed) -> None:
        """End srun, but not its step: srun's child, which would end the step upon the death of srun, goes first."""
        if not self._is_srun(followed):
            return
        with suppress(OSError):
            children = Path(f"/proc/{followed.srun}/task/{followed.srun}/children").read_text().split()
            for pid in (*map(int, children), followed.srun):
                os.kill(pid, signal.SIGKILL)

"""The immediate path: an allocation that Slurm gives at once, into which srun puts the runner.

sbatch is started by a timer; what srun asks for is decided upon at once. If any process is killed, the allocation comes back:
srun makes it together with the step in which the runner lives. It ends with that step; when srun is killed, by srun's own helper,
and where that cannot, by srun's keeper (`carrel.engines.slurm.keeper`). A long runner does not need its srun: both are ended
then, in a way that leaves the step alone, and from then on the runner's guardian gives the allocation back.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.domain.ports import Clock
from carrel.core.domain.qos import JobKind
from carrel.core.spool import AttemptDirectory, Spool, read_claim
from carrel.engines.attempts import Key
from carrel.engines.slurm.batch import DETACHED, GIVE_BACK, RELEASED, SCRIPT, WATCH
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.errors import SlurmRefused
from carrel.engines.slurm.followed import HELD, Followed, runner_of
from carrel.engines.slurm.keeper import KeptAllocation, srun_of
from carrel.engines.slurm.listing import SlurmJob, slurm_name
from carrel.engines.slurm.options import SlurmOptions, sbatch_arguments
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import is_live

#: Seconds of walltime up to which a task is short.
SHORT = 15 * 60
#: What only sbatch knows, of what `sbatch_arguments` says.
_BATCH_ONLY = re.compile(r"--(parsable|open-mode=.*|export=.*|requeue|no-requeue|output=.*)")
#: What has no meaning for an allocation that is there at once; what srun does not know; and what would start several runners.
_LATER = ("--begin", "--batch", "--deadline", "--time-min", "--wait-all-nodes")
_SEVERAL = ("--ntasks", "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-socket")
#: Arguments of a step with which nobody speaks.
_SILENT = ("--input=none", "--output=none", "--error=none")
#: Seconds that a step may take to begin.
_BEGINS = 60.0
#: Seconds for which an allocation is looked at that has neither runner nor srun, before it is given back: one may just begin.
_STRAY = 2.0
#: Seconds for which an allocation is looked for that Slurm may still make for an srun that is gone.
_MAY_APPEAR = 120.0
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
        or any(option.partition("=")[0] in (*_LATER, *_SEVERAL) for option in options.passed)
    )


def srun_arguments(options: SlurmOptions, *, name: str, comment: str, directory: str, script: str) -> list[str]:
    """Return the arguments of srun(1) for what `sbatch_arguments` asks of sbatch: an allocation, all of it for `script`, once."""
    arguments = sbatch_arguments(options, name=name, comment=comment, directory=directory, output="")
    arguments = [argument for argument in arguments if not _BATCH_ONLY.fullmatch(argument)]
    # What the runner has to say goes not through srun, which is not needed for long.
    return [*arguments, "--ntasks=1", "--overlap", "--mpi=none", *_SILENT, "/bin/bash", script]


def watched(script: Path, identity: str, command: Sequence[str]) -> list[str]:
    """Return what runs `command`, and gives the allocation back should that end without having removed `script`."""
    return ["/bin/bash", "-c", WATCH, str(script), identity, *command]


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
        self._identity = re.compile(rf"carrel\.{re.escape(lab)}\.([0-9]{{1,18}})\.([0-9]{{1,9}}){re.escape(HELD)}")
        self._monotonic = monotonic
        #: Children that have to be waited for.
        self._children: set[int] = set()
        #: Allocations that were made, and have not been seen to end.
        self._made: set[int] = set()
        self._look_until = -math.inf
        #: Allocations without a runner, as of the last listing.
        self._idle: set[int] = set()
        #: Whether there was a listing: an engine that was killed may have left some whose attempts are long over.
        self._has_looked = False

    def take(self, followed: Followed, options: SlurmOptions) -> bool:
        """Have the attempt run in an allocation; False when it has to be submitted.

        Other errors than a refusal are raised: there may be an allocation of its identity, which is to be looked for.
        """
        launch = followed.watched.launch
        if followed.batch_only or not self._wanted(launch) or not may_be_immediate(options):
            followed.hold(False)
            return False
        followed.batch_only = True  # one that is not granted now, for any reason, is not tried again
        script = followed.directory.path / SCRIPT
        followed.hold(True)
        command = watched(script, followed.name, [*self._command(followed), GIVE_BACK])
        script.write_text(batch_script(command, options, output=str(followed.output)))
        followed.remember(None)
        directory = str(followed.directory.path)
        arguments = srun_arguments(
            options, name=slurm_name(launch.name), comment=followed.name, directory=directory, script=str(script)
        )
        try:
            number, process = self._slurm.begin(
                arguments, KeptAllocation(followed.name, script, followed.directory.claim, followed.directory.path / DETACHED)
            )
        except SlurmRefused:  # busy, or something that sbatch will say, too
            followed.hold(False)
            return False
        except CarrelError:
            self._look_until = self._monotonic() + _MAY_APPEAR
            raise
        self._children.add(process.pid)
        process.returncode = 0  # it outlives this object, and is waited for by its number
        self._made.add(number)
        followed.number, followed.srun_at = number, self._monotonic()
        followed.remember_srun(srun_of(process.pid))
        return True

    def tend_waiting(self, followed: Followed) -> bool:
        """It has an allocation and no runner yet: see to it. False: it was given back, and the attempt is to be submitted."""
        assert followed.number is not None
        self._made.add(followed.number)
        now = self._monotonic()
        followed.srun_at = followed.srun_at or now
        patience = _STRAY if _srun_of(followed) is None else _BEGINS
        if now - followed.srun_at < patience or runner_of(followed) is not None:
            return True
        self._slurm.cancel(followed.number, name=followed.name)
        self._end_srun(followed)
        followed.batch_only = True
        followed.hold(False)
        followed.srun = -1
        followed.remember(None)
        return False

    def tend_running(self, followed: Followed) -> None:
        """Its runner lives: after a while it can do without its srun."""
        if followed.srun > 0 and self._monotonic() - followed.srun_at > _DETACH:
            self._made.add(followed.number or 0)
            (followed.directory.path / DETACHED).touch(mode=0o600)
            self._end_srun(followed)
            followed.remember_srun(-1)

    def outstanding(self) -> bool:
        """Return whether an allocation may be there that nobody needs; and wait for what srun has ended."""
        for pid in list(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)
        return not self._has_looked or bool(self._idle) or self._monotonic() < self._look_until

    def tend_all(self, jobs: Iterable[SlurmJob], numbers: Mapping[Key, int | None]) -> None:
        """Give back allocations that nobody needs and that did not end by themselves, once they were seen so twice.

        `numbers` are those of the jobs in Slurm of all attempts that are followed.
        """
        self._has_looked = True
        live = [job for job in jobs if is_live(job)]
        self._made &= {job.id for job in live}
        idle = {
            job.id: (directory, job.identity) for job in live if (directory := self._without_runner(job, numbers)) is not None
        }
        left = [number for number in sorted(idle) if number in self._idle]
        self._idle = set(idle)
        for number in left:
            directory, identity = idle[number]
            with suppress(OSError):
                (directory.path / RELEASED).touch(mode=0o600)
            self._slurm.cancel(number, name=identity)

    def _without_runner(self, job: SlurmJob, numbers: Mapping[Key, int | None]) -> AttemptDirectory | None:
        """Return the attempt of an allocation that Slurm has not begun to end, and that has no runner and will have none."""
        match = self._identity.fullmatch(job.identity)
        if match is None or job.state != "RUNNING":
            return None
        key = int(match[1]), int(match[2])
        directory = self._spool.attempt(*key)
        if numbers.get(key) not in (None, job.id):  # it came too late: the attempt is elsewhere
            return directory
        claim = read_claim(directory.claim)
        return None if claim is None or claim.held else directory

    def _end_srun(self, followed: Followed) -> None:
        """End srun, but not its step: srun's child, which would end the step upon the death of srun, goes first."""
        pid = _srun_of(followed)
        if pid is None:
            return
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for one in (*map(int, children), pid):
                os.kill(one, signal.SIGKILL)


def _srun_of(followed: Followed) -> int | None:
    """Return the process id of the srun that has made the attempt's allocation, None when there is none on this machine."""
    # It may not have been written down, and its number may be another's by now.
    if followed.srun > 0 and _is_srun(followed.srun, followed.name):
        return followed.srun
    numbers = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    # Its helper has the same arguments, and is younger.
    return min((pid for pid in numbers if _is_srun(pid, followed.name)), default=None)


def _is_srun(pid: int, identity: str) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"--comment={identity}".encode() in words and any(word.endswith(b"srun") for word in words[:2])
    return False

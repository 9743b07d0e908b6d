"""The life of one attempt, from its claim to its last journal line.

A runner that was not forked from a warm parent pays for every import, so what is not needed before the command starts is imported
after it has started (`warm_up` for those who can do it beforehand).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError, StorageFull
from carrel.core.domain.job import MACHINE_LIMIT
from carrel.core.domain.launch import Claimed, Launch, LaunchTracking, Started, Usage
from carrel.core.domain.network import Network, least
from carrel.core.domain.serial import from_plain
from carrel.core.spool import AttemptDirectory, LogWriter, note_begun, take_claim
from carrel.node.runner.cgroups import CgroupParent, JobCgroup, machine_oom_kills
from carrel.node.runner.prepare import Preparation
from carrel.node.runner.prepared import Prepared
from carrel.node.runner.process import Command, LaunchError, NotNow, become_subreaper, image_shell, let_ssh_in, shell, start
from carrel.node.runner.report import Doorbell, Reporter, keep_traceback
from carrel.node.runner.run_lease import RunLease
from carrel.node.runner.signals import Cancelled, Preempted, PreparationTimeout, Signals
from carrel.node.runner.variables import base_variables, command_variables, seeds, with_python, without_network

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock
    from carrel.node.runner.endings import Ending
    from carrel.node.runner.group.plan import Allocation
    from carrel.node.runner.group.start import Group
    from carrel.node.runner.outcome import Outcome
    from carrel.node.runner.samples import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """What a runner takes over from the process that forked it."""

    clock: Clock = time.time
    monotonic: Clock = time.monotonic
    #: The environment variables of the lab.
    environ: Mapping[str, str] = field(default_factory=dict)
    #: Those of them that a command sees beyond the short list (`base_variables`).
    more: Mapping[str, str] = field(default_factory=dict)
    #: Tells facts about the machine; asked when the command runs.
    facts: Callable[[], Mapping[str, str]] = dict
    #: Where cgroups can be made, or None.
    cgroups: CgroupParent | None = None
    #: Descriptors that hold the locks of the job's devices.
    device_locks: Sequence[int] = ()
    #: How processes are started on all nodes of a job, where an engine has several.
    allocate: Callable[[Launch], Allocation] | None = None


def run_attempt(path: Path, surroundings: RunnerContext) -> None:
    """Claim and live the attempt whose directory is `path`. Returns at once when it was claimed before.

    The journal ends with an `Ended` in any case, unless this process is killed.
    """
    directory = AttemptDirectory(path)
    signals = Signals(directory.cancel, directory.preempt)
    try:
        launch = from_plain(Launch, json.loads(directory.launch.read_bytes()))
        doorbell = Doorbell(
            launch.paths.doorbell,
            f"{launch.job_id} {launch.attempt}".encode(),
            surroundings.monotonic,
            network=launch.paths.bell,
        )
        # First, because a runner with the claim must be able to say what becomes of it: on a full disk none takes it.
        reporter = Reporter(directory.journal, doorbell, surroundings.clock)
        claim = take_claim(directory.claim, os.getpid())
        if claim is None:
            return
        AttemptRun(directory, launch, reporter, signals, surroundings).live()
    except Exception:
        keep_traceback(directory)
        raise


#: What a runner imports only after its command has started, or not always.
_LATER = (
    "hashlib",
    "shutil",
    "socket",
    "tempfile",
    "urllib.parse",
    "carrel.node.runner.disk",
    "carrel.node.runner.endings",
    "carrel.node.runner.finish",
    "carrel.node.runner.hardware",
    "carrel.node.runner.limits",
    "carrel.node.runner.low_use",
    "carrel.node.runner.outputs",
    "carrel.node.runner.ssh_listener",
    "carrel.node.runner.walls",
    "carrel.node.runner.watch",
)


def warm_up() -> None:
    """Import now what a runner would import later: for a parent that forks many of them."""
    for name in _LATER:
        import_module(name)


class AttemptRun:
    """One attempt, claimed by this process."""

    def __init__(
        self, directory: AttemptDirectory, launch: Launch, reporter: Reporter, signals: Signals, surroundings: RunnerContext
    ) -> None:
        self._directory = directory
        self._launch = launch
        self._reporter = reporter
        self._signals = signals
        self._around = surroundings
        self._token = ""
        self._log: LogWriter | None = None
        self._sampler: Sampler | None = None
        self._cgroup: JobCgroup | None = None
        self._usage = Usage()
        self._temporary: Path | None = None
        #: The command's processes, where it is several.
        self._group: Group | None = None
        #: Holds the devices against cells of sessions.
        self._lease: RunLease | None = None

    def live(self) -> None:
        """Do everything, and write how it ended."""
        self._reporter.record(Claimed(pid=os.getpid()), ring=False)
        ending: Ending
        try:
            with suppress(FileNotFoundError):
                self._token = self._directory.token.read_text().strip()
            become_subreaper()
            self._log = LogWriter(self._directory.log, limit=self._launch.limits.log, secrets=[self._token])
            self._lease = RunLease(
                self._directory,
                self._launch,
                self._token,
                self._log,
                self._signals,
                monotonic=self._around.monotonic,
                device_locks=self._around.device_locks,
            )
            for note in self._launch.task.notes:
                self._log.note(note)
            ending = self._prepare_and_run(self._lease)
        except Exception as error:  # noqa: BLE001 - a fault of ours is an ending too, not a job that never ends
            from carrel.node.runner.endings import unexpected

            keep_traceback(self._directory)
            ending = unexpected(error, self._directory)
        from carrel.node.runner.finish import AttemptEnd

        end = AttemptEnd(
            self._directory,
            self._launch,
            self._reporter,
            signals=self._signals,
            monotonic=self._around.monotonic,
            log=self._log,
            cgroup=self._cgroup,
            lease=self._lease,
            device_locks=self._around.device_locks,
            temporary=self._temporary,
        )
        end.finish(ending, self._usage)

    def _prepare_and_run(self, lease: RunLease) -> Ending:
        deadline = self._around.monotonic() + self._launch.limits.prepare
        preparation = Preparation(
            directory=self._directory,
            launch=self._launch,
            token=self._token,
            base=with_python({**self._around.more, **base_variables(self._around.environ)}, self._directory.path / "programs"),
            reporter=self._reporter,
            signals=self._signals,
            monotonic=self._around.monotonic,
            deadline=deadline,
        )
        try:
            self._signals.check()
            if self._launch.before_place:
                from carrel.node.runner.before_place import make_ready

                return make_ready(preparation, fetched_by=self._around.monotonic() + self._launch.limits.fetch)
            prepared = preparation.run()
            if self._log is not None:
                self._log.hide(prepared.secrets.values())
            tracking = self._tracking(preparation, prepared.lock, deadline)
            lease.take(preparation.report, deadline, elsewhere=True)
        except (Cancelled, Preempted, PreparationTimeout, CarrelError) as error:
            return self._not_prepared(error)
        self._temporary = prepared.places.temporary
        return self._run(prepared, tracking, lease)

    def _not_prepared(self, error: BaseException) -> Ending:
        from carrel.node.runner.endings import (
            blocked_before_start,
            cancelled_before_start,
            failed,
            preempted_before_start,
            said_of_build,
            storage_full,
        )

        if isinstance(error, Cancelled):
            return cancelled_before_start(self._signals.cancelled_by() or "somebody")
        if isinstance(error, Preempted):
            return preempted_before_start(self._signals.preemption())
        if isinstance(error, PreparationTimeout):
            seconds = self._launch.limits.fetch if self._launch.stage_in else self._launch.limits.prepare
            return failed("InputFailed", f"Preparing took longer than the {seconds} s that the lab allows.")
        if isinstance(error, StorageFull):
            return storage_full(str(error))
        if isinstance(error, CarrelError) and error.details.get("code") == "blocked":  # `leases.protocol.BLOCKED`
            return blocked_before_start(error.message)
        code = _REASONS.get(error.code if isinstance(error, CarrelError) else "", "LaunchFailed")
        if code == "EnvironmentFailed" and self._log is not None:
            self._log.write(said_of_build(self._directory.environment_log, beyond=str(error)))
        return failed(code, str(error))

    def _tracking(self, preparation: Preparation, lock: str, deadline: float) -> LaunchTracking | None:
        tracking = self._launch.tracking
        if tracking is None or tracking.run_id is not None or not self._launch.gateway or not lock:
            return tracking
        if self._launch.task.pool is not None:  # a worker has no run of its own
            return tracking
        from carrel.core.domain.task import EnvironmentKind
        from carrel.node.runner.asking import uses_mlflow, wait_for_run

        # What an image holds is not known.
        if not uses_mlflow(lock) and self._launch.task.environment.kind is not EnvironmentKind.IMAGE:
            return tracking
        with self._signals.interruptible(float(self._launch.limits.prepare) + 60):  # the deadline is kept by itself
            found = wait_for_run(self._launch, self._token, preparation.report, self._around.monotonic, deadline)
        if found is None and self._log is not None:
            self._log.note("The tracking server did not give this job a run; it starts without one.")
        return found or tracking

    # --- the command --------------------------------------------------------------------------------------------------------

    def _run(self, prepared: Prepared, tracking: LaunchTracking | None, lease: RunLease) -> Ending:
        from carrel.node.runner.samples import sampler_of
        from carrel.node.runner.session import VARIABLE, SessionMemory, notes_environment

        launch = self._launch
        assert self._log is not None
        self._cgroup = self._make_cgroup()
        variables = command_variables(prepared.activated, launch, self._token, tracking, prepared.places, prepared.secrets)
        if launch.walls is not None and launch.walls.home:
            variables["HOME"] = launch.walls.home
        network = launch.walls.network if launch.walls is not None else Network.ON
        if least(network, launch.task.network) is not network:
            from carrel.node.runner.endings import failed

            return failed("LaunchFailed", _NO_WALLS.format(launch.task.network))
        variables = without_network(variables, network)
        session = SessionMemory(launch, self._cgroup) if launch.task.session is not None else None
        if session is not None:
            variables[VARIABLE] = str(session.read_end)
        arguments = shell(prepared.command) if prepared.root is None else image_shell(prepared.command, prepared.root)
        started_with: Mapping[str, str] = variables
        from carrel.node.runner.walls import walls_of

        walls = walls_of(launch, self._directory, prepared)
        if launch.is_group:
            from carrel.node.runner.group.start import write_group

            self._group = group = write_group(
                self._directory,
                launch,
                prepared.directory,
                variables,
                environ=self._around.environ,
                allocate=self._around.allocate,
                walls=walls,
            )
            arguments, started_with = group.arguments, group.variables
            if group.across and launch.walls is None:
                walls = None  # its agents build them, each on its node
        elsewhere = self._group.use if self._group is not None and self._group.across else None
        self._sampler = sampler = sampler_of(launch, self._cgroup, elsewhere, cluster=self._around.allocate is not None)
        if self._signals.cancelled_by() is not None:
            return self._not_prepared(Cancelled())
        if self._signals.preemption() is not None:
            return self._not_prepared(Preempted())
        if launch.task.requeue:
            from carrel.core.spool.checkpoint import note_checkpoint

            note_checkpoint(self._directory)
        with suppress(OSError):  # the job's directory was removed: then there is no claim that could be mistaken
            note_begun(self._directory.claim)
        from carrel.node.runner.ssh_listener import listen

        read, write = os.pipe2(os.O_CLOEXEC)
        kills_before = 0 if self._cgroup else machine_oom_kills()
        command = Command(
            arguments=arguments,
            variables=started_with,
            directory=str(prepared.directory),
            output=write,
            keeps=session.read_end if session is not None else None,
            cgroup=self._cgroup.procs if self._cgroup else None,
            walls=walls,
            ssh=listen(self._directory, launch, prepared, variables),
        )
        try:
            pid = start(command)
        except LaunchError as error:
            from carrel.node.runner.endings import blocked_before_start, failed

            os.close(read)
            if isinstance(error, NotNow):
                return blocked_before_start(str(error), code=MACHINE_LIMIT)
            return failed("LaunchFailed", str(error))
        finally:
            os.close(write)
            if session is not None:
                session.started()
            if command.ssh is not None and walls is not None:
                command.ssh.socket.close()  # the first process inside has it
        if walls is not None:
            sampler.files.shm = f"/proc/{pid}/root/dev/shm"
        from carrel.node.runner.disk import disk_guard
        from carrel.node.runner.hardware import device_facts, limit_facts
        from carrel.node.runner.limits import MemoryGuard
        from carrel.node.runner.watch import Watch

        low_use = None
        if any(not device.simulated for device in launch.devices):
            from carrel.node.runner.low_use import LowUse

            temporary = prepared.places.temporary
            low_use = LowUse(launch, sampler, self._log, self._reporter, directory=prepared.directory, temporary=temporary)
        watch = Watch(
            pid=pid,
            output=read,
            walltime=launch.resources.time,
            limits=launch.limits,
            # Processes that Slurm's steps started are not below this one, and their memory is Slurm's matter.
            guard=None if self._cgroup or (self._group and self._group.across) else MemoryGuard(self._memory_limit(), sampler),
            disk=disk_guard(launch, self._directory, prepared),
            sampler=sampler,
            cgroup=self._cgroup,
            log=self._log,
            reporter=self._reporter,
            signals=self._signals,
            monotonic=self._around.monotonic,
            hold=lease,
            before_stop=self._group.stop if self._group else None,
            session=session,
            ssh=(command.ssh.socket.fileno(), partial(let_ssh_in, command)) if command.ssh and walls is None else None,
            low_use=low_use,
            on_sample=notes_environment(prepared.places.environment) if session is not None and prepared.view is None else None,
        )
        limits = limit_facts(self._cgroup.path if self._cgroup else None)
        hardware = {**self._around.facts(), **limits, **device_facts(launch.devices), "network": str(network), **launch.parts}
        self._reporter.record(Started(pid=pid, hardware=hardware, seeds=seeds(variables, prepared.secrets)))
        outcome = watch.run()
        return self._judge(outcome, kills_before)

    def _judge(self, outcome: Outcome, kills_before: int) -> Ending:
        from carrel.node.runner.endings import OomKills, command_ending

        assert self._sampler is not None
        self._usage = self._sampler.total()
        here = machine = 0
        peak = self._usage.memory_peak
        if outcome.status != 0 or outcome.cause is not None:
            here = self._cgroup.oom_kills() if self._cgroup else 0
            machine = 0 if self._cgroup else machine_oom_kills() - kills_before
            if here and self._cgroup:
                peak = max(peak, self._cgroup.peak())
                self._usage = self._sampler.total(peak)
        killings = OomKills(here=here, machine=machine, peak=peak)
        end = self._group.end() if self._group is not None else None
        return command_ending(outcome, self._launch, cancelled_by=self._signals.cancelled_by(), killings=killings, group=end)

    def _memory_limit(self) -> int:
        return self._launch.resources.memory + self._launch.limits.suspended

    def _make_cgroup(self) -> JobCgroup | None:
        if self._around.cgroups is None:
            return None
        name = f"carrel-{os.getpid()}-{self._launch.job_id}-{self._launch.attempt}"
        try:
            cgroup = JobCgroup(self._around.cgroups, name, self._memory_limit(), together=self._launch.task.session is None)
        except OSError:  # then the runner watches by itself
            return None
        self._directory.cgroup.write_text(f"{cgroup.path}\n")
        return cgroup


_NO_WALLS = (
    'It asks for network "{}", and jobs are not kept apart where it runs, so nothing can take the network from it. '
    'Leave network out, or ask an administrator for isolation = "kernel".'
)
#: Reason codes of the errors that preparing may end with.
_REASONS = {
    "environment_failed": "EnvironmentFailed",
    "environment_timeout": "EnvironmentFailed",
    "input_failed": "InputFailed",
    "code_failed": "LaunchFailed",
    # What a session's environment can be: not there, in somebody else's hands, unusable.
    "not_found": "EnvironmentFailed",
    "conflict": "EnvironmentFailed",
    "invalid": "EnvironmentFailed",
}

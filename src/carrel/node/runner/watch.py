"""The loop that watches a command: its output, its end, its limits, and the wish of others that it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Preemption
from carrel.core.domain.launch import Continued, LaunchLimits, Paused, Resumed, Sampled, Suspended
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.units import format_duration
from carrel.core.spool import LogWriter
from carrel.node.runner.cgroups import JobCgroup
from carrel.node.runner.limits import MemoryGuard
from carrel.node.runner.outcome import Cause, Outcome
from carrel.node.runner.output_pipe import OutputPipe
from carrel.node.runner.report import Reporter
from carrel.node.runner.run_lease import RunLease
from carrel.node.runner.running_time import RunningTime
from carrel.node.runner.samples import Sampler
from carrel.node.runner.session import SessionMemory
from carrel.node.runner.signals import Signals
from carrel.node.runner.tree import ask_to_end, continue_all, descendants, stop_all

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock
    from carrel.node.runner.disk import DiskGuard
    from carrel.node.runner.low_use import LowUse

#: Seconds that processes have to vanish after SIGKILL; longer means that the kernel holds them (state D, ps(1)).
_VANISH = 60.0
_FOREVER = float("inf")
#: Seconds until a broker that is gone is looked for again.
_BROKER = 1.0
#: Seconds between two looks at what the kernel ended in a session.
_KILLS = 0.5
#: Seconds of sleep at the most (poll(2) counts milliseconds in 31 bits).
_LONGEST = 3600.0


class Watch:
    """Watches one command from its start to its end. After `run` every process of the job is gone."""

    def __init__(
        self,
        *,
        pid: int,
        output: int,
        walltime: float,
        limits: LaunchLimits,
        guard: MemoryGuard | None,
        disk: DiskGuard | None = None,
        sampler: Sampler,
        cgroup: JobCgroup | None,
        log: LogWriter,
        reporter: Reporter,
        signals: Signals,
        monotonic: Clock,
        hold: RunLease,
        session: SessionMemory | None = None,
        on_sample: Callable[[], None] | None = None,
        before_stop: Callable[[int], None] | None = None,
        ssh: tuple[int, Callable[[], None]] | None = None,
        low_use: LowUse | None = None,
    ) -> None:
        """`session`: too much memory ends the process that has most of it, and the rest goes on. `on_sample`: also called last.
        `before_stop` stops what is not below this process; it is given the command's process. `ssh`: a descriptor at which
        connections come, and what takes one. `low_use` looks after GPUs that are hardly busy.
        """
        self._before_stop = before_stop
        self._session = session
        self._on_sample = on_sample
        self._low_use = low_use
        self._pid = pid
        self._limits = limits
        self._guard = guard
        self._disk = disk
        self._sampler = sampler
        self._cgroup = cgroup
        self._log = log
        self._reporter = reporter
        self._signals = signals
        self._monotonic = monotonic
        self._hold = hold
        self._preemption: Preemption | None = None
        #: The broker makes room, or has made it: its state leaves the devices, and its processes are not stopped.
        self._aside = False
        #: When its devices are asked for again.
        self._again_at = _FOREVER
        start = monotonic()
        self._time = RunningTime(start, walltime, limits.warning, pauses_count=not hold.walltime_stops)
        self._status: int | None = None
        self._childless = False
        self._cause: Cause | None = None
        self._warned = False
        self._memory, self._disk_used = 0, (0, 0)
        self._kill_at = _FOREVER
        self._sample_at = start + limits.sample
        self._look_at = start + 0.1 if guard or session else _FOREVER
        self._disk_at = start if disk else _FOREVER
        self._poll = select.poll()
        self._poll.register(signals.fd, select.POLLIN)
        self._output = OutputPipe(output, log, self._poll, monotonic, on_output=reporter.doorbell.ring_soon)
        self._ssh = ssh
        if ssh is not None:
            self._poll.register(ssh[0], select.POLLIN)
        self._broker: int | None = None
        self._broker_at = _FOREVER
        self._listen()

    def run(self) -> Outcome:
        """Return when the command and everything that it started is gone, and its output is in the log."""
        self._look_for_wishes()
        self._reap()
        while not self._over():
            self._wait(self._next_due())
            self._on_time(self._monotonic())
        ended = self._monotonic()
        self._end_pause()
        if pauses := self._time.pauses:
            times = "once" if pauses == 1 else f"{pauses} times"
            self._log.note(f"Cells of notebooks had its GPUs {times}, for {format_duration(self._time.paused)} in all.")
        if self._on_sample is not None:
            self._on_sample()
        left, stuck = self._kill_the_rest()
        while self._output.read():
            pass
        return Outcome(
            status=self._status,
            cause=self._cause,
            warned=self._warned,
            memory=self._memory,
            disk=self._disk_used,
            preemption=self._preemption,
            seconds=self._time.computed(ended),
            left_behind=left,
            stuck=stuck,
        )

    def _over(self) -> bool:
        if self._monotonic() >= self._kill_at or self._childless:
            return True
        # While it is being ended, what the command started may finish its own way, also when the command itself is gone.
        return self._status is not None and self._cause is None and not self._warned

    # --- what happens -------------------------------------------------------------------------------------------------------

    def _wait(self, until: float) -> None:
        timeout = 1000 * min(_LONGEST, max(0.0, until - self._monotonic()))
        for fd, _ in self._poll.poll(timeout):
            if fd == self._signals.fd:
                self._signals.drain()
                self._look_for_wishes()
                self._reap()
            elif fd == self._broker:
                self._hear()
            elif self._ssh is not None and fd == self._ssh[0]:
                self._ssh[1]()
            elif fd == self._output.fd:  # not a connection that was let go of in this very round
                self._output.read()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = os.waitstatus_to_exitcode(status)

    def _hear(self) -> None:
        """Do what the broker says of the devices, and listen on."""
        for word in self._hold.hear():
            if word == "paused" and self._time.paused_at is None and self._time.stopped_at is None:
                self._pause()
            elif word == "aside" and self._time.stopped_at is None:
                self._is_aside()
            elif word == "resumed" and self._aside and self._time.stopped_at is not None:
                self._aside = False
                self._gone_on("Its GPUs are its own again")
            elif word == "resumed":
                self._end_pause()
            elif word == "lost" and self._cause in (None, Cause.PREEMPTED):
                self._cause, self._kill_at = Cause.STATE_LOST, self._monotonic()
        self._listen()
        self._broker_at = self._monotonic() + _BROKER if self._broker is None and self._hold.lent else _FOREVER

    def _listen(self) -> None:
        fd = self._hold.fileno()
        if fd == self._broker:
            return
        if self._broker is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._broker)
        if fd is not None:
            self._poll.register(fd, select.POLLIN)
        self._broker = fd

    def _pause(self) -> None:
        """Cells have the devices: the command's next use of them waits. Its walltime stands still where it is the lab's."""
        if not self._time.pauses:
            self._log.note(
                "Cells of notebooks have its GPUs for a while; it goes on where it is. (--no-preempt keeps them from it.)"
            )
        self._time.pause(self._monotonic())
        if self._hold.freezes:
            stop_all(os.getpid())
        self._reporter.record(Paused())

    def _end_pause(self) -> None:
        if self._time.paused_at is None:
            return
        seconds = self._time.end_pause(self._monotonic())
        self._reporter.record(Continued(seconds=round(seconds, 3), people=self._hold.people))
        if self._hold.freezes and self._cause is None:
            continue_all(os.getpid())

    @property
    def _frozen(self) -> bool:
        """Its processes are stopped, and others have its devices."""
        return self._time.stopped_at is not None or (self._time.paused_at is not None and self._hold.freezes)

    def _look_for_wishes(self) -> None:
        """Do what others want of the job: its end, its place, or that it goes on."""
        if self._signals.cancelled_by() is not None:
            if self._cause in (None, Cause.PREEMPTED):
                self._cause = Cause.CANCELLED
                if self._frozen:  # where others are by now it must not run again, not even to end
                    self._kill_at = self._monotonic()
                else:
                    self._kill_at = min(self._kill_at, self._monotonic() + self._limits.grace)
                    self._ask_to_end()
            return
        wish = self._signals.preemption()
        if self._cause is not None:
            return
        if wish is None:
            if self._aside:
                self._ask_for_devices()
            elif self._time.stopped_at is not None:
                self._go_on()
        elif wish.mode is PreemptMode.REQUEUE:
            self._give_way(wish)
        elif self._time.stopped_at is None and not self._aside:
            self._stop(wish)

    def _give_way(self, wish: Preemption) -> None:
        now = self._monotonic()
        self._cause, self._preemption = Cause.PREEMPTED, wish
        self._kill_at = now if self._frozen else min(now + wish.grace, self._time.deadlines.end_at)
        self._log.note(
            f'SIGTERM: a job of QoS "{wish.qos}" takes this place; SIGKILL in {max(0.0, self._kill_at - now):.0f} s. '
            "The job goes back to the queue."
        )
        if not self._frozen:
            self._ask_to_end()

    def _stop(self, wish: Preemption) -> None:
        self._aside = self._hold.set_aside()
        if self._aside:
            self._log.note(f'Job {wish.by} of QoS "{wish.qos}" takes the GPUs. This job is paused, and resumes by itself.')
            return
        self._log.note(f'SIGSTOP: job {wish.by} of QoS "{wish.qos}" takes this place. This job resumes by itself.')
        self._preemption = wish
        if self._before_stop is not None and self._status is None:
            self._before_stop(self._pid)
        self._end_pause()
        stop_all(os.getpid())
        self._time.stop(self._monotonic())
        self._hold.give_back()
        self._hear()
        self._reporter.record(Suspended())

    def _is_aside(self) -> None:
        """The command is paused with its state, and others have its devices."""
        self._end_pause()
        self._time.stop(self._monotonic())
        self._reporter.record(Suspended())

    def _ask_for_devices(self) -> None:
        """The place is free again, or was not left yet."""
        if not self._hold.go_on():
            self._again_at = self._monotonic() + _BROKER
            return
        self._again_at = _FOREVER
        self._aside = self._time.stopped_at is not None

    def _go_on(self) -> None:
        try:
            if not self._hold.take_again():
                return
        except CarrelError as error:
            self._log.note(f"The job cannot go on here: {error} It goes back to the queue.")
            self._cause, self._kill_at = Cause.PREEMPTED, self._monotonic()
            return
        self._gone_on("SIGCONT")
        self._hear()
        continue_all(os.getpid())

    def _gone_on(self, how: str) -> None:
        seconds = self._time.go_on(self._monotonic())
        self._log.note(f"{how}: the job goes on after {seconds:.0f} s.")
        self._reporter.record(Resumed(seconds=round(seconds, 3)))

    def _ask_to_end(self) -> None:
        # Once it is reaped the number of its group may be another's.
        ask_to_end(os.getpid(), group=self._pid if self._status is None else None)

    # --- what is due --------------------------------------------------------------------------------------------------------

    def _next_due(self) -> float:
        looks = min(self._sample_at, self._look_at, self._disk_at, self._output.settle_at)
        always = min(looks, self._kill_at, self._broker_at, self._again_at, self._low_use.due if self._low_use else _FOREVER)
        due = min(always, self._time.deadlines.end_at)
        if not self._warned and self._cause is None and self._time.paused_at is None:
            due = min(due, self._time.deadlines.warn_at)
        if self._time.stands_still:
            due = always
        bell = self._reporter.doorbell.due
        return due if bell is None else min(due, bell)

    def _on_time(self, now: float) -> None:
        self._reporter.doorbell.tick(now)
        if now >= self._broker_at:
            self._hear()
        if now >= self._again_at:
            self._look_for_wishes()
        self._output.settle(now)
        if now >= self._sample_at:
            self._sample_at = now + self._limits.sample
            stopped = self._time.stopped_at is not None or self._time.paused_at is not None
            self._reporter.record(Sampled(usage=(usage := self._sampler.take(stopped=stopped))))
            if self._low_use is not None:
                self._low_use.sampled(usage, now, stopped=stopped)
            if self._on_sample is not None:
                self._on_sample()
        if self._low_use is not None and now >= self._low_use.due:
            self._low_use.look(now)
        if now >= self._look_at and self._guard is not None:
            too_much, pause = self._guard.look()
            self._look_at = now + pause
            if too_much is not None and self._session is not None and self._shed(self._session, too_much):
                self._look_at = now + 0.5  # the kernel takes a moment to give the memory back
            elif too_much is not None and self._cause in (None, Cause.PREEMPTED):
                self._memory, self._cause, self._kill_at = too_much, Cause.MEMORY, now
        elif now >= self._look_at and self._session is not None:
            self._look_at = now + _KILLS
            if said := self._session.killed_by_kernel():
                self._log.note(said)
        if now >= self._disk_at and self._disk is not None:
            taken, pause = self._disk.look()
            self._disk_at = self._monotonic() + pause
            if taken is not None and self._cause in (None, Cause.PREEMPTED):
                self._disk_used, self._cause, self._kill_at = taken, Cause.DISK, now
        if self._cause is not None or self._time.stands_still:
            return
        if now >= self._time.deadlines.end_at:
            self._cause = Cause.TIME
            # Where others have its devices it must not run, not even to end.
            self._kill_at = now if self._frozen else now + self._limits.grace
            if not self._frozen:
                self._log.note(f"SIGTERM: the walltime is over; SIGKILL in {self._limits.grace} s.")
                self._ask_to_end()
        elif now >= self._time.deadlines.warn_at and not self._warned and self._time.paused_at is None:
            self._warned = True
            self._log.note(f"SIGTERM: the walltime ends in {self._time.deadlines.end_at - now:.0f} s.")
            self._ask_to_end()

    def _shed(self, session: SessionMemory, used: int) -> bool:
        """End the largest process beside the command itself; return whether there was one."""
        said = session.shed((pid for pid in self._sampler.processes if pid != self._pid), used)
        if said is not None:
            self._log.note(said)
        return said is not None

    # --- the end ------------------------------------------------------------------------------------------------------------

    def _kill_the_rest(self) -> tuple[int, tuple[int, ...]]:
        """Kill until nothing is left; return how many the command had left behind, and those that did not go away."""
        by_itself = self._status is not None
        killed: set[int] = set()
        deadline = self._monotonic() + _VANISH
        self._reap()
        while not self._childless:
            found = descendants(os.getpid())
            if self._monotonic() >= deadline:
                return len(killed), tuple(found)
            for pid in found:
                killed.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._wait(self._monotonic() + 0.05)
            self._reap()
        return (len(killed) if by_itself and self._cause is None else 0), ()

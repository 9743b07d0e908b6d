"""Allocations that are held for a user's next short tasks, and the pilot in each that runs them.

A pilot is spoken to through its srun: a line for each attempt to it, and a word back when one begins and is over. Whoever dies,
nothing runs twice, because the claim on an attempt is taken once; and no allocation stays, because a pilot that nobody speaks to
gives its own back.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from carrel.domain.errors import CarrelError
from carrel.domain.launch import Launch
from carrel.domain.ports import Clock
from carrel.domain.qos import JobKind
from carrel.engines.slurm.commands import SlurmCommands, SlurmRefused
from carrel.engines.slurm.followed import Followed, runner_of
from carrel.engines.slurm.immediate import SHORT, may_be_immediate, salloc_arguments, srun_arguments
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.pilot import BEGINS, OVER
from carrel.engines.slurm.script import batch_script

#: Pilots of one shape that may be on their way at the same time: each takes longer than many a task.
_ON_THE_WAY = 2
#: Seconds for which an attempt waits for a pilot, where Slurm has no further allocation at once; then it is submitted.
_IN_LINE = 10.0
#: Seconds that an allocation is asked for at least, beyond the longest short task.
_BEYOND = 60

_log = logging.getLogger(__name__)


def no_time(_launch: Launch) -> float:
    """No allocation is held."""
    return 0.0


@dataclass(slots=True, eq=False)
class Pilot:
    """One allocation and who runs in it."""

    name: str
    number: int
    #: What it was asked for, but for names and times: tasks of the same shape may use it.
    shape: tuple[str, ...]
    process: subprocess.Popen[bytes]
    #: Monotonic seconds at which Slurm ends it.
    until: float
    #: For how many seconds it stays without work.
    hold: float
    busy: Followed | None = None
    begun: bool = False
    idle_since: float = 0.0

    def is_free(self) -> bool:
        """True when it has nothing to do and listens."""
        assert self.process.stdin is not None
        return self.busy is None and not self.process.stdin.closed and self.process.poll() is None

    def give(self, followed: Followed) -> bool:
        """Have it run the attempt; False when it is gone."""
        assert self.process.stdin is not None
        followed.board(self.name, self.number)
        try:
            self.process.stdin.write(f"{followed.directory.path}\n".encode())
            self.process.stdin.flush()
        except OSError:
            followed.leave()
            return False
        self.busy = followed
        return True

    def send_away(self) -> None:
        """It is to end what it does, and give its allocation back."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


@dataclass(slots=True)
class _Line:
    """Attempts of one shape that wait for a pilot."""

    options: SlurmOptions
    waiting: deque[Followed] = field(default_factory=deque)


class Pilots:
    """Makes and tends them. Only the reconciler's thread calls it; `do` brings news of pilots into that thread."""

    def __init__(
        self,
        *,
        commands: SlurmCommands,
        command: Sequence[str],
        hold: Callable[[Launch], float],
        lab: str,
        directory: Path,
        do: Callable[[Callable[[], None]], None],
        again: Callable[[Followed], None],
        monotonic: Clock,
    ) -> None:
        """`command` is what the script in an allocation becomes, which lies in `directory`, where nodes see it; `hold` says for
        how many seconds an allocation is held after a task; `again` submits an attempt that no pilot will run."""
        self._slurm = commands
        self._command = list(command)
        self._hold = hold
        self._lab = lab
        self._directory = directory
        self._do = do
        self._again = again
        self._monotonic = monotonic
        self._pilots: list[Pilot] = []
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._since: dict[tuple[int, int], float] = {}

    def take(self, followed: Followed, options: SlurmOptions) -> bool:
        """Have a pilot run the attempt, now or in a moment; False when it has to be started in another way.

        Raises what Slurm's commands raise, but for a refusal.
        """
        launch = followed.watched.launch
        hold = 0.0 if followed.batch_only or launch.kind is not JobKind.TASK else self._hold(launch)
        # What modules set is left beside the script, for one attempt.
        if hold <= 0 or launch.resources.time > SHORT or options.modules or not may_be_immediate(options):
            return False
        shape = _shape(options)
        if self._give(shape, options, followed):
            return True
        now = self._monotonic()
        since = self._since.setdefault(followed.watched.key, now)
        line = self._lines.setdefault(shape, _Line(options))
        if followed not in line.waiting:
            line.waiting.append(followed)
        if not self._grow(shape, hold) or now - since > _IN_LINE:
            self._leave_line(followed)
            followed.batch_only = True
            return False
        followed.ask_at = now + 1.0
        return True

    def again_at(self) -> float | None:
        """When to call `tend`, in monotonic seconds, or None."""
        return min((pilot.idle_since + pilot.hold for pilot in self._pilots if pilot.begun and pilot.is_free()), default=None)

    def tend(self) -> None:
        """Send away those that have had nothing to do for a while."""
        now = self._monotonic()
        for pilot in self._pilots:
            if pilot.begun and pilot.is_free() and now - pilot.idle_since >= pilot.hold:
                pilot.send_away()

    def has(self, followed: Followed) -> bool:
        """Return whether a pilot that lives has been given the attempt."""
        return any(pilot.busy is followed for pilot in self._pilots)

    def close(self) -> None:
        """Nobody speaks to them any more: each ends what it does, and then goes."""
        for pilot in self._pilots:
            pilot.send_away()

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _give(self, shape: tuple[str, ...], options: SlurmOptions, followed: Followed) -> bool:
        """Give the attempt to a pilot that has nothing to do, and time enough."""
        until = self._monotonic() + (options.time or 0)
        for pilot in self._pilots:
            if pilot.shape == shape and pilot.until >= until and pilot.is_free() and pilot.give(followed):
                self._leave_line(followed)
                return True
        return False

    def _grow(self, shape: tuple[str, ...], hold: float) -> bool:
        """See to it that there will be a pilot for the next in line. False when there is none of this shape, nor to be had."""
        line = self._lines[shape]
        # One whose task has ended says so in a moment.
        soon = sum(pilot.shape == shape and pilot.busy is not None and pilot.busy.watched.over for pilot in self._pilots)
        while len(line.waiting) > soon and sum(not pilot.begun and pilot.shape == shape for pilot in self._pilots) < _ON_THE_WAY:
            try:
                pilot = self._start(shape, line.options, hold)
            except SlurmRefused:
                break
            self._pilots.append(pilot)
            if not pilot.give(line.waiting[0]):
                break
            self._leave_line(line.waiting[0])
        return any(pilot.shape == shape for pilot in self._pilots)

    def _start(self, shape: tuple[str, ...], options: SlurmOptions, hold: float) -> Pilot:
        name = f"carrel.{self._lab}.hold.{secrets.token_hex(4)}"
        seconds = max(options.time or 0, SHORT + _BEYOND)
        comment = f"held for the next short tasks, until {hold:g} s have passed without one"
        arguments = salloc_arguments(replace(options, time=seconds), name=name, comment=comment, directory=str(self._directory))
        number = self._slurm.allocate(arguments)
        try:
            script = self._directory / f"{name}.sh"
            script.write_text(batch_script(self._command, options))
            started = srun_arguments(options, number=number, name=name, directory=str(self._directory), script=str(script))
            process = self._slurm.conversation([word for word in started if word not in ("--input=none", "--output=none")])
        except (CarrelError, OSError):
            self._slurm.cancel(number, name=name)
            raise
        pilot = Pilot(name, number, shape, process, self._monotonic() + seconds, hold, idle_since=self._monotonic())
        threading.Thread(target=self._listen, args=(pilot, script), name=name, daemon=True).start()
        return pilot

    def _listen(self, pilot: Pilot, script: Path) -> None:
        """In a thread of its own: pass on what a pilot says, until it is gone."""
        assert pilot.process.stdout is not None
        with suppress(OSError, ValueError):
            for line in pilot.process.stdout:
                word, _, path = line.decode(errors="replace").strip().partition(" ")
                if word == BEGINS:
                    self._do(partial(self._begun, pilot))
                elif word == OVER:
                    self._do(partial(self._free, pilot, path))
        pilot.process.wait()
        pilot.process.stdout.close()
        pilot.send_away()
        script.unlink(missing_ok=True)
        self._do(partial(self._gone, pilot))

    def _begun(self, pilot: Pilot) -> None:
        pilot.begun = True
        line = self._lines.get(pilot.shape)
        if line is not None and line.waiting:
            self._grow(pilot.shape, pilot.hold)

    def _free(self, pilot: Pilot, path: str) -> None:
        if pilot.busy is None or str(pilot.busy.directory.path) != path:
            return
        pilot.busy, pilot.idle_since = None, self._monotonic()
        line = self._lines.get(pilot.shape)
        while line is not None and line.waiting and pilot.busy is None:
            following = line.waiting[0]
            if following.cancelled or following.watched.over or not self._give(pilot.shape, line.options, following):
                self._leave_line(following)
                self._again(following)

    def _gone(self, pilot: Pilot) -> None:
        if pilot in self._pilots:
            self._pilots.remove(pilot)
        with suppress(CarrelError):
            self._slurm.cancel(pilot.number, name=pilot.name)  # it gives itself back, unless it was killed
        lost = pilot.busy
        if lost is not None and not lost.watched.over and runner_of(lost) is None:
            lost.leave()
            lost.batch_only = True
            self._again(lost)

    def _leave_line(self, followed: Followed) -> None:
        self._since.pop(followed.watched.key, None)
        for shape, line in list(self._lines.items()):
            if followed in line.waiting:
                line.waiting.remove(followed)
            if not line.waiting:
                del self._lines[shape]


def _shape(options: SlurmOptions) -> tuple[str, ...]:
    """What has to be the same for two tasks to follow each other in one allocation."""
    arguments = salloc_arguments(replace(options, time=None), name="", comment="", directory="")
    return (*arguments, *(f"{name}={value}" for name, value in sorted(options.variables.items())))

"""Allocations that are held for a user's next short tasks, and the pilot in each that runs them.

A pilot is spoken to through its srun: a line for each attempt to it, and a word back when one begins and is over. Whoever dies,
nothing runs twice, because the claim on an attempt is taken once; and no allocation stays. It ends with its srun and with its
pilot. A pilot that hears nothing for a while ends, so every few seconds an empty line is said to each. What srun could not give
back, because it was killed before it had a step, its keeper cancels; and what the keeper could not, is found by the script that
was written down before.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.domain.ports import Clock
from carrel.core.domain.qos import JobKind
from carrel.core.transport.channel import Channel
from carrel.core.transport.framing import Ended, Lines
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.errors import SlurmRefused
from carrel.engines.slurm.followed import Followed, runner_of
from carrel.engines.slurm.immediate import SHORT, may_be_immediate, srun_arguments, watched
from carrel.engines.slurm.keeper import KeptAllocation
from carrel.engines.slurm.listing import SlurmJob, slurm_name
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.pilot import BEAT, BEGINS, GO, OVER, is_locked
from carrel.engines.slurm.script import batch_script
from carrel.engines.slurm.states import is_live

#: What stands for the job in the names of allocations that are held.
HOLD = "hold"
#: Arguments of a step with which nobody speaks.
_SPOKEN = ("--input=none", "--output=none")
#: Pilots of one shape that may be on their way at the same time: each takes longer than many a task.
_ON_THE_WAY = 2
#: Seconds for which an attempt waits for a pilot, where Slurm has no further allocation at once; then it is submitted.
_IN_LINE = 10.0
#: Seconds for which an allocation is looked at that has no pilot, before it is given back: one may just begin.
_STRAY = 2.0
#: Seconds for which an allocation is looked for that Slurm may still make for an srun that is gone.
_MAY_APPEAR = 120.0
#: Seconds for which a task runs in an allocation that was called after another one, before Slurm gets its name.
_NAMED = 1.0
#: Seconds for which a note is kept that says of an allocation who ended it: the runner in it may not have been heard of yet.
_NOTED = 86400.0
#: Seconds that an allocation is asked for at least, beyond the longest short task.
_BEYOND = 60
#: Bytes of a line that a pilot says at most.
_LONGEST = 1 << 20

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
    #: What Slurm calls the allocation: the name of the task for which it was made, or of a later one.
    called: str
    busy: Followed | None = None
    busy_since: float = 0.0
    begun: bool = False
    idle_since: float = 0.0

    def is_free(self) -> bool:
        """True when it has nothing to do and listens."""
        assert self.process.stdin is not None
        return self.busy is None and not self.process.stdin.closed and self.process.poll() is None

    def wants_name(self) -> str:
        """Return the name of the task that it runs, where its allocation is called otherwise; "" where nothing is to be done."""
        name = slurm_name(self.busy.watched.launch.name) if self.busy is not None and not self.busy.watched.over else ""
        return name if self.begun and name != self.called else ""

    def give(self, followed: Followed, now: float) -> bool:
        """Have it run the attempt; False when it is gone."""
        assert self.process.stdin is not None
        followed.board(self.name, self.number)
        try:
            self.process.stdin.write(f"{followed.directory.path}\n".encode())
            self.process.stdin.flush()
        except OSError:
            followed.leave()
            return False
        self.busy, self.busy_since = followed, now
        return True

    def beat(self) -> None:
        """Say nothing, so that it knows that somebody is there."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):
            self.process.stdin.write(b"\n")

    def send_away(self) -> None:
        """It is to end what it does, and give its allocation back."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError), self.process.stdin as pipe:
            pipe.write(f"{GO}\n".encode())


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
        #: Scripts of allocations that are nobody's, and since when they have been looked at.
        self._strays: dict[Path, float] = {}
        self._find_strays()

    def take(self, followed: Followed, options: SlurmOptions) -> bool:
        """Have a pilot run the attempt, now or in a moment; False when it has to be started in another way.

        Raises what Slurm's commands raise, but for a refusal.
        """
        hold = self._held_for(followed, options)
        if hold <= 0:
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

    def may_take(self, followed: Followed, options: SlurmOptions) -> bool:
        """Return whether the attempt is one for a pilot."""
        return self._held_for(followed, options) > 0

    def _held_for(self, followed: Followed, options: SlurmOptions) -> float:
        """Return for how many seconds an allocation is held after such a task; 0: not at all."""
        launch = followed.watched.launch
        # What modules set is left beside the script, for one attempt.
        if launch.kind is not JobKind.TASK or launch.resources.time > SHORT or options.modules or not may_be_immediate(options):
            return 0.0
        return 0.0 if followed.batch_only else self._hold(launch)

    def again_at(self) -> float | None:
        """When to call `tend`, in monotonic seconds, or None."""
        idle = [pilot.idle_since + pilot.hold for pilot in self._pilots if pilot.begun and pilot.is_free()]
        named = [pilot.busy_since + _NAMED for pilot in self._pilots if pilot.wants_name()]
        return min((*idle, *named), default=None)

    def tend(self) -> None:
        """Send away those that have had nothing to do for a while; call allocations after the tasks in them."""
        now = self._monotonic()
        for pilot in self._pilots:
            if pilot.begun and pilot.is_free() and now - pilot.idle_since >= pilot.hold:
                pilot.send_away()
            elif (name := pilot.wants_name()) and now - pilot.busy_since >= _NAMED:
                pilot.called = name
                # Beside: who has an allocation needs no controller, and does not wait for one that is slow.
                threading.Thread(target=self._rename, args=(pilot.number, name), name=f"{pilot.name}-name", daemon=True).start()

    def _rename(self, number: int, name: str) -> None:
        try:
            self._slurm.rename(number, name)
        except CarrelError as error:
            _log.info("job %d of Slurm's keeps its name: %s", number, error)

    def has(self, followed: Followed) -> bool:
        """Return whether a pilot that lives has been given the attempt."""
        return any(pilot.busy is followed for pilot in self._pilots)

    def close(self) -> None:
        """Nobody speaks to them any more: each ends what it does, and then goes."""
        for pilot in self._pilots:
            pilot.send_away()

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _give(self, shape: tuple[str, ...], options: SlurmOptions, followed: Followed) -> bool:
        """Give the attempt to a pilot that has nothing to do, and time enough: one that is called like it, if there is one."""
        until = self._monotonic() + (options.time or 0)
        name = slurm_name(followed.watched.launch.name)
        for pilot in sorted(self._pilots, key=lambda pilot: pilot.called != name):
            if pilot.shape == shape and pilot.until >= until and pilot.is_free() and pilot.give(followed, self._monotonic()):
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
                pilot = self._start(shape, line.options, hold, slurm_name(line.waiting[0].watched.launch.name))
            except SlurmRefused:
                break
            self._pilots.append(pilot)
            if not pilot.give(line.waiting[0], self._monotonic()):
                break
            self._leave_line(line.waiting[0])
        return any(pilot.shape == shape for pilot in self._pilots)

    def _start(self, shape: tuple[str, ...], options: SlurmOptions, hold: float, called: str) -> Pilot:
        name = f"carrel.{self._lab}.{HOLD}.{secrets.token_hex(4)}"
        place = self._directory / name  # by which accounting knows it, which has no comments
        place.mkdir(mode=0o700)
        seconds = max(options.time or 0, SHORT + _BEYOND)
        script = self._directory / f"{name}.sh"
        # Written down before there is an allocation: the next engine finds that by its name.
        script.write_text(batch_script(watched(script, name, [*self._command, str(script)]), options))
        arguments = srun_arguments(
            replace(options, time=seconds), name=called, comment=name, directory=str(place), script=str(script)
        )
        try:
            number, process = self._slurm.begin(
                [word for word in arguments if word not in _SPOKEN], KeptAllocation(name, script, script), conversation=True
            )
        except SlurmRefused:
            _remove(script)
            raise
        except CarrelError:
            self._strays[script] = self._monotonic()
            raise
        now = self._monotonic()
        pilot = Pilot(name, number, shape, process, now + seconds, hold, called, idle_since=now)
        threading.Thread(target=self._listen, args=(pilot, script), name=name, daemon=True).start()
        return pilot

    def _listen(self, pilot: Pilot, script: Path) -> None:
        """In a thread of its own: pass on what a pilot says, until it is gone, and see to it that it hears something."""
        assert pilot.process.stdout is not None
        channel = Channel(Lines(_LONGEST), pilot.process.stdout)
        with suppress(Ended):
            while True:
                line = channel.receive(BEAT)
                if line is None:
                    pilot.beat()
                else:
                    self._hear(pilot, line.decode(errors="replace"))
        pilot.process.wait()
        channel.close()
        pilot.send_away()
        self._do(partial(self._gone, pilot, script))

    def _hear(self, pilot: Pilot, line: str) -> None:
        word, _, path = line.strip().partition(" ")
        if word == BEGINS:
            self._do(partial(self._begun, pilot))
        elif word == OVER:
            self._do(partial(self._free, pilot, path))

    def outstanding(self) -> bool:
        """Return whether an allocation may be there that nobody speaks to."""
        return bool(self._strays)

    def tend_strays(self, jobs: Iterable[SlurmJob]) -> None:
        """Give back those allocations among `jobs` in which no pilot lives, of this engine's or of one that was killed."""
        named = {job.identity: job for job in jobs if is_live(job)}
        now = self._monotonic()
        for script, since in list(self._strays.items()):
            if now - since < _STRAY or is_locked(script):  # a pilot that lives ends by itself
                continue
            job = named.get(script.stem)
            if job is not None and job.state == "RUNNING":
                with suppress(CarrelError):
                    self._slurm.cancel(job.id, name=job.identity)
            elif job is None and now - since > _MAY_APPEAR:
                del self._strays[script]
                _remove(script)

    def _find_strays(self) -> None:
        """Note what an earlier engine has left."""
        now = self._monotonic()
        for note in self._directory.glob(f"carrel.{self._lab}.{HOLD}.*.sh.released"):
            with suppress(OSError):
                if time.time() - note.stat().st_mtime > _NOTED:
                    note.unlink()
        self._strays = dict.fromkeys(self._directory.glob(f"carrel.{self._lab}.{HOLD}.*.sh"), now)
        for script in {
            place.with_name(f"{place.name}.sh") for place in self._directory.glob(f"carrel.{self._lab}.{HOLD}.????????")
        }:
            if script not in self._strays:
                _remove(script)

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

    def _gone(self, pilot: Pilot, script: Path) -> None:
        if pilot in self._pilots:
            self._pilots.remove(pilot)
        if script.exists():  # it was killed, or its srun was: who gives the allocation back is not known
            try:
                self._slurm.cancel(pilot.number, name=pilot.name)
                _remove(script)
            except CarrelError:
                self._strays[script] = self._monotonic()
        else:
            _remove(script)
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


def _remove(script: Path) -> None:
    """The allocation is over, or was never made: its script goes, and the directory that is named like it."""
    script.unlink(missing_ok=True)
    with suppress(OSError):
        script.with_suffix("").rmdir()


def _shape(options: SlurmOptions) -> tuple[str, ...]:
    """What has to be the same for two tasks to follow each other in one allocation."""
    arguments = srun_arguments(replace(options, time=None), name="", comment="", directory="", script="")
    return (*arguments, *(f"{name}={value}" for name, value in sorted(options.variables.items())))

"""One attempt in Slurm: what its files say, and what may be concluded from what Slurm says."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Ended, Preparing
from carrel.core.spool import AttemptDirectory, append_entry, read_claim, take_claim
from carrel.core.spool.foreign import read_last, read_regular
from carrel.core.spool.lines import read_lines
from carrel.engines.attempts import Watched
from carrel.engines.slurm.batch import RELEASED, TERMINATED
from carrel.engines.slurm.listing import SlurmJob
from carrel.engines.slurm.numbers import shown
from carrel.engines.slurm.states import SlurmEnd

#: Signals with which Slurm ends a job (slurm.conf(5), KillWait), and the kernel one that has too little memory.
_KILLS = (signal.SIGTERM, signal.SIGKILL)
#: What the identities of allocations end with.
HELD = ".now"
#: Bytes of the batch script's own output that are shown when it ended before the runner began.
_SHOWN = 500


@dataclass(slots=True)
class Followed:
    """An attempt that is followed.

    The follower's thread changes `watched`, `says` and `doubtful_since`; the reconciler's everything else.
    """

    watched: Watched
    #: The identity of its job in Slurm, where the job's comment has it: lab, job and attempt.
    name: str
    #: Its number in Slurm, None while it is not known.
    number: int | None = None
    #: True when Slurm was asked for it: there may be a job of its identity.
    asked: bool = False
    #: True when its runner is put into an allocation, False when it is a batch script.
    held: bool = False
    #: True when it is not to be given an allocation (again): it is submitted.
    batch_only: bool = False
    #: What its own job is called, while a pilot runs it in another; "" otherwise.
    own: str = ""
    #: The array of Slurm's in which it is an element, by its identity; "" where its job is its own.
    array: str = ""
    #: The srun that made its allocation and put its runner there, -1 when it is not known; and when it was started.
    srun: int = -1
    srun_at: float = 0.0
    #: When to ask for it again, in monotonic seconds.
    ask_at: float = 0.0
    #: Times that it was asked for in vain.
    failures: int = 0
    #: Since when, in monotonic seconds: its runner is gone, and Slurm has not said why.
    dead_since: float | None = None
    #: Since when Slurm, which answers, does not know its job; how often it was submitted again, for that or a site's fault.
    missing_since: float | None = None
    again: int = 0
    #: Nodes that could not start it, and what happened there, in a sentence.
    avoid: tuple[str, ...] = ()
    fault: str = ""
    #: Since when Slurm says that it ended while its runner lives.
    ended_since: float | None = None
    #: What Slurm says of an end that may be its own doing, and when that end was first seen.
    explanation: SlurmEnd | None = None
    doubtful_since: float | None = None
    #: True when somebody asked for its end; and when.
    cancelled: bool = False
    cancel_since: float | None = None
    #: The last thing that was said about it, and what waits to be delivered.
    said: str = ""
    says: Preparing | None = None

    @property
    def directory(self) -> AttemptDirectory:
        """Where the attempt lives."""
        return self.watched.directory

    @property
    def identity(self) -> str:
        """What its job's comment says in Slurm."""
        return self.array or self.name

    @property
    def task(self) -> int | None:
        """Its index in an array of Slurm's, which is the one in the lab's; None where its job is its own."""
        element = self.watched.launch.element
        return element.index if self.array and element is not None else None

    @property
    def shown(self) -> str:
        """Its number as Slurm shows it."""
        return shown(self.number or 0, self.task)

    @property
    def array_directory(self) -> Path:
        """Where the elements of its array are written down."""
        return self.directory.path.parents[1] / self.array

    @property
    def number_file(self) -> Path:
        """Its number in Slurm; empty from just before sbatch is called."""
        return self.directory.path / "slurm"

    @property
    def output(self) -> Path:
        """What the batch script says before the runner keeps a log."""
        return self.directory.path / "slurm.log"

    @property
    def released(self) -> Path:
        """There once the allocation was given back because its runner was through: Slurm then says that it was cancelled."""
        if self.own:
            return self.directory.path.parents[1] / f"{self.name}.sh.released"
        return self.directory.path / RELEASED

    @property
    def terminated(self) -> Path:
        """There once a SIGTERM came that was not the lab's: Slurm may know why it ended, with any exit code."""
        return self.directory.path / TERMINATED

    def remember(self, number: int | None) -> None:
        """Write the number down, so that the next engine finds it."""
        self.asked = True
        self.number = number
        self._write("" if number is None else f"{number}")

    def hold(self, held: bool) -> None:
        """It is (or is not) to have an allocation; its job in Slurm has another identity then. `remember` writes it down."""
        if held != self.held:
            self.held = held
            self.name = f"{self.name}{HELD}" if held else self.name.removesuffix(HELD)

    def join(self, array: str) -> None:
        """It is to be an element of that array, which Slurm may know from now on; that is written down."""
        self.array = array
        self.remember(None)

    def board(self, pilot: str, number: int) -> None:
        """A pilot runs it, in the job `number` that is called `pilot`; that is written down."""
        if not self.own:
            self.own, self.name = self.name, pilot
        self.held = True
        self.remember(number)

    def leave(self) -> None:
        """No pilot runs it; there is no job of its own name."""
        if self.own:
            self.name, self.own = self.own, ""
        self.held, self.number = False, None
        self.unask()

    def _write(self, number: str) -> None:
        words = [
            *(["held"] if self.held else []),
            *([f"pilot={self.name}"] if self.own else []),
            *([f"array={self.array}"] if self.array else []),
            *([number] if number else []),
            *([f"srun={self.srun}"] if self.srun > 0 else []),
            *([f"again={self.again}"] if self.again else []),
            *([f"avoid={','.join(self.avoid)}"] if self.avoid else []),
        ]
        draft = self.number_file.with_name("slurm.new")
        draft.write_text(f"{' '.join(words)}\n" if words else "")
        draft.rename(self.number_file)

    def remember_srun(self, pid: int) -> None:
        """Write down which process put the runner into the allocation."""
        self.srun = pid
        self.remember(self.number)

    def unask(self) -> None:
        """It was not asked for after all: no job of its identity exists."""
        self.number_file.unlink(missing_ok=True)
        self.asked, self.array = False, ""

    def recall(self) -> None:
        """Read what an earlier engine wrote down."""
        try:
            words = read_regular(self.number_file).decode(errors="replace").split()
        except OSError:
            return
        self.asked = True
        pilots = [word.removeprefix("pilot=") for word in words if word.startswith("pilot=")]
        if pilots:
            self.own, self.name, self.held = self.name, pilots[0], True
        else:
            self.hold("held" in words)
        self.number = next((int(word) for word in words if word.isascii() and word.isdigit()), None)
        pids = [word.removeprefix("srun=") for word in words if word.startswith("srun=")]
        self.srun = int(pids[0]) if pids and pids[0].isascii() and pids[0].isdigit() else -1
        for word in words:
            name, _, value = word.partition("=")
            if name == "again" and value.isascii() and value.isdigit():
                self.again = int(value)
            elif name == "array":
                self.array = value
            elif name == "avoid" and value:
                self.avoid = (value,)

    def is_its(self, job: SlurmJob) -> bool:
        """Return whether `job`, which has its number, is the attempt's: numbers are given again.

        Accounting has no comments (slurm.conf(5), AccountingStoreFlags): there the directory tells, which a pilot has to itself.
        """
        if job.task != self.task:
            return False
        if self.own:
            place = self.directory.path.parents[1] / self.name
        else:
            place = self.array_directory if self.array else self.directory.path
        return job.identity == self.identity or job.directory == str(place)

    def cancelled_by(self) -> str | None:
        """Who asked for the end, or None."""
        try:
            return read_regular(self.directory.cancel).decode(errors="replace").strip() or "somebody"
        except OSError:
            return None

    def script_said(self) -> str:
        """The end of what the batch script said, in one line."""
        with suppress(OSError):
            return " ".join(read_last(self.output, _SHOWN).decode(errors="replace").split())
        return ""


def is_doubtful(ended: Ended, *, terminated: bool = False) -> bool:
    """True when the runner saw its command killed, and could not see by whom: Slurm kills all processes of a job alike.

    Also when it failed after a SIGTERM that was not the lab's (`terminated`): who writes a checkpoint then ends as it likes.
    """
    if ended.state is not JobState.FAILED:
        return False
    return terminated or ended.signal in _KILLS or (ended.exit_code or 0) - 128 in _KILLS


def explained(ended: Ended, end: SlurmEnd | None) -> Ended:
    """Return the end with Slurm's reason for it, where Slurm has a better one than that a script failed."""
    if end is None or end.state in (JobState.COMPLETED, JobState.FAILED):
        return ended
    return replace(ended, state=end.state, reason=end.reason, retryable=end.retryable)


def never_to_run(followed: Followed, ended: Ended, at: float) -> bool:
    """End an attempt that no runner has claimed: claim it, so that none ever will, and write its end. False: it was claimed."""
    claim = take_claim(followed.directory.claim, os.getpid())
    if claim is None:
        return False
    try:
        write_end(followed.directory, ended, at)
    finally:
        os.close(claim)
    return True


def write_end(directory: AttemptDirectory, ended: Ended, at: float) -> None:
    """Write the end into the journal of a runner that is gone, after its last whole line."""
    fd = os.open(directory.journal, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, 65536, max(0, size - 65536))
        if tail and not tail.endswith(b"\n"):  # it was killed in the middle of a line, or the end of one is damaged
            torn = tail[tail.rfind(b"\n") + 1 :]
            if any(read_lines(torn, over=True)):
                os.write(fd, b"\n")
            else:
                os.ftruncate(fd, size - len(torn))
        append_entry(fd, at, ended)
    finally:
        os.close(fd)


def end_without_runner(followed: Followed, end: SlurmEnd, fault: str = "") -> Ended:
    """Return how an attempt ended whose runner never began; `fault` is what the site did to it, time and again."""
    by = followed.cancelled_by()
    if by is not None:
        return cancelled(by)
    if fault and end.state is not JobState.FAILED:
        message = f"{fault}. It was submitted {followed.again + 1} times and never began."
        state = JobState.NODE_FAIL if end.state is JobState.NODE_FAIL else JobState.FAILED
        code = "NodeLost" if state is JobState.NODE_FAIL else "LaunchFailed"
        return Ended(state=state, reason=Reason(code=code, message=message), retryable=True)
    if end.state in (JobState.COMPLETED, JobState.FAILED):
        said = followed.script_said()
        message = f"{end.reason.message} It had not begun." + (f" Its script said: {said}" if said else "")
        return Ended(
            state=JobState.FAILED, reason=Reason(code="LaunchFailed", message=message), retryable=end.retryable or bool(fault)
        )
    return Ended(state=end.state, reason=end.reason, retryable=end.retryable)


def cancelled(by: str) -> Ended:
    """The end of an attempt that was cancelled before it began."""
    return Ended(state=JobState.CANCELLED, reason=Reason(code="Cancelled", message=f"Cancelled by {by} before it started."))


def runner_of(followed: Followed) -> bool | None:
    """True while the runner lives, False when it is gone, None when none ever took the attempt.

    Where the spool is shared, so are its locks (flock(2): over NFS since Linux 2.6.12).
    """
    claim = read_claim(followed.directory.claim)
    if claim is None:
        removed = followed.watched.offset > 0 or (followed.asked and not followed.directory.launch.exists())
        return False if removed else None
    return claim.held

"""Runs Slurm's commands. Every call ends in time, with a value or with an error that says what may be concluded from it.

Nothing is tried again here: the caller knows whether that makes sense.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.submit_limits import MAX_JOB_COUNT
from carrel.engines.slurm.errors import SlurmEmpty, SlurmFailed, SlurmFull, SlurmMissing, SlurmRefused, SlurmSlow, failure
from carrel.engines.slurm.keeper import NOT_STARTED, KeptAllocation, kept
from carrel.engines.slurm.limits import FIELDS, parse_limits
from carrel.engines.slurm.listing import (
    SACCT_FIELDS,
    Garbage,
    SlurmJob,
    find,
    parse_events,
    parse_granted,
    parse_json,
    parse_out_of_use,
    parse_records,
    parse_sacct,
    parse_squeue,
    parse_submitted,
    squeue_format,
)
from carrel.engines.slurm.numbers import shown

#: What the commands get of the caller's variables. Not those of Slurm's own, which would change what is asked and how it is
#: answered (sbatch(1), INPUT ENVIRONMENT VARIABLES), but for the one that says where the cluster is.
_PASSED = frozenset(
    {"HOME", "USER", "LOGNAME", "LANG", "TZ", "PATH", "SLURM_CONF", "LD_LIBRARY_PATH", "MODULESHOME", "MODULEPATH"}
)
#: Job numbers in one question: arguments are limited (execve(2), 128 KiB for each).
_BATCH = 500
#: Seconds before a job's start, and after it, within which a node that failed it is taken out of use.
_A_MOMENT, _PROLOGS = 5, 3600
#: From this version on, the JSON of squeue honours its filters and is documented.
_JSON_SINCE = (23, 2)

#: What sbatch says while it waits by itself until the controller has room (slurm.conf(5), MaxJobCount).
_QUEUE_FULL = re.compile(r"Slurm job queue full|Slurm temporarily unable to accept job|Job creation temporarily disabled")
#: Seconds between two looks at what sbatch says: less than the second for which it waits before it asks again.
_LISTENS = 0.25
_UNKNOWN_JOB = re.compile(r"Invalid job id specified")
_OVER = re.compile(r"Job/step already completing or completed|Invalid job id specified")


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    out: str
    err: str


class SlurmCommands:
    """Slurm's commands as one user. Safe to use from several threads."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        users: Sequence[str] = (),
        timeout: float = 30.0,
        json: bool | None = None,
        mark: Callable[[], str] = partial(secrets.token_hex, 8),
    ) -> None:
        """`environ` are the server's variables, of which the commands get a short list.

        Only jobs of `users` are listed, all when there are none. `timeout` is in seconds; Slurm's own patience with a dead
        controller is 10 to 20. `json` chooses the form of the listing; None: by version. `mark` makes a random word.
        """
        self._environ = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("LC_")}
        self._users = tuple(users)
        self._timeout = timeout
        self._json = json
        self._mark = mark

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that the commands get."""
        return self._environ

    def version(self) -> tuple[int, int]:
        """Major and minor version: (22, 5)."""
        text = self._run("sbatch", "--version").out
        match = re.search(r"\b(\d{2})\.(\d{1,2})\b", text)
        if match is None:
            raise Garbage("The version of Slurm", text)
        return int(match[1]), int(match[2])

    def submit(self, arguments: Sequence[str], script: str) -> int:
        """Submit `script` and return the job's number.

        `SlurmRefused` says that no job will run, `SlurmFull` that there is no room for it now. After any other error there may be
        one: look for it first.
        """
        answer = self._run("sbatch", *arguments, stdin=script)
        return parse_submitted(self._something("sbatch", answer))

    def begin(
        self, arguments: Sequence[str], allocation: KeptAllocation, *, conversation: bool = False
    ) -> tuple[int, subprocess.Popen[bytes]]:
        """Have srun make an allocation that is there at once, and a step in it. Return the number, and srun's keeper.

        The allocation ends with its step, and with srun. srun goes on when this process ends; its keeper, which exits like srun,
        has to be waited for. srun says nothing; in a `conversation` its standard input and output are pipes to here and those of
        the step.
        `SlurmRefused` says that there is no allocation, now or ever. After any other error there may be one: look for it first.
        """
        said = os.memfd_create("keeper")
        words = kept(allocation, ["srun", "--verbose", "--immediate", *arguments], said)
        inside = subprocess.PIPE if conversation else subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                words,
                env=self._environ,
                cwd="/",
                stdin=inside,
                stdout=inside,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(said,),
            )
        except OSError as error:
            raise SlurmMissing(f"srun cannot be started: {error.strerror}.", remedy="Install Slurm's commands here.") from error
        finally:
            os.close(said)
        try:
            return self._granted(process), process
        except CarrelError:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            raise

    def _granted(self, process: subprocess.Popen[bytes]) -> int:
        """Read what srun says until it has an allocation, and return its number. An srun that fails is waited for."""
        assert process.stderr is not None
        said, until = b"", time.monotonic() + self._timeout
        with process.stderr as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (number := parse_granted(said.decode(errors="replace"))) is None:
                if not selector.select(max(0.0, until - time.monotonic())):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    raise SlurmSlow(
                        f"srun did not answer within {self._timeout:g} s.", remedy="Slurm's controller is slow or hangs."
                    )
                if not (more := pipe.read(4096)):
                    break
                said += more
        if number is not None:
            return number
        # It has closed its mouth, so it is about to end.
        answer = _Answer(process.wait(), "", said.decode(errors="replace").strip())
        if answer.code in NOT_STARTED and not answer.err.startswith("srun"):
            raise SlurmMissing(f"srun cannot be started: {answer.err}.", remedy="Install Slurm's commands here.")
        if not answer.code:
            raise SlurmEmpty("srun ended at once.", remedy="Whether there is an allocation is looked for.")
        raise failure("srun", answer.code, answer.err)

    def listing(self) -> tuple[SlurmJob, ...]:
        """Return all jobs in the controller's memory, ended ones for a while (slurm.conf(5), MinJobAge): one call for all."""
        users = [f"--user={','.join(self._users)}"] if self._users else []
        if self._json is None:
            self._json = self.version() >= _JSON_SINCE
        if self._json:
            return parse_json(self._something("squeue", self._run("squeue", "--json", "--states=all", *users)))
        mark = self._mark()
        # Not --array: of "4-40:2" squeue of 22.05 then leaves the last element out.
        answer = self._run("squeue", "--states=all", *users, f"--format={squeue_format(mark)}", epoch=True)
        return parse_squeue(self._something("squeue", answer), mark)

    def job(self, number: int, identity: str, task: int | None = None) -> SlurmJob | None:
        """Return what the controller knows of one job, or None: it does not know it, or the number is another job's.

        With `task` it is that element of the array.

        Numbers are given again after a controller has lost its memory, so the number alone names nobody. Its exit code is not
        told.
        """
        mark = self._mark()
        try:
            which = f"--jobs={shown(number, task)}"
            answer = self._run("squeue", "--states=all", which, f"--format={squeue_format(mark)}", epoch=True)
        except (SlurmFailed, SlurmRefused) as error:
            if _UNKNOWN_JOB.search(error.message):
                return None
            raise
        jobs = parse_squeue(self._something("squeue", answer), mark)
        return next((job for job in find(jobs, identity, task=task) if job.id == number), None)

    def history(self, numbers: Iterable[int]) -> tuple[SlurmJob, ...]:
        """Return what the accounting database knows of jobs of this user's with these numbers; oldest first.

        A number may have been another job's before. A job that is not known there is left out, which proves nothing: records
        arrive late, or never.
        """
        found: list[SlurmJob] = []
        asked = sorted(set(numbers))
        for start in range(0, len(asked), _BATCH):
            # Only of one's own: the names and directories of others may say anything.
            arguments = ["--allocations", "--duplicates", f"--user={os.geteuid()}", "--parsable2"]
            which = f"--jobs={','.join(map(str, asked[start : start + _BATCH]))}"
            answer = self._run("sacct", *arguments, which, f"--format={','.join(SACCT_FIELDS)}", epoch=True)
            found += parse_sacct(self._something("sacct", answer))
        return tuple(replace(job, cancelled_by=_name_of(job.cancelled_by)) for job in found)

    def out_of_use(self, nodes: str, since: int | None) -> Mapping[str, str]:
        """Return which of `nodes` take no jobs, and why; or were taken out of use within an hour of `since` (Unix seconds).

        The second needs the accounting database; where that says nothing, nothing follows. What it says goes before the state of
        now: a node that was mended is still coming back, for a moment, and its state names no reason.
        """
        answer = self._run("scontrol", "--oneliner", "show", "node", nodes)
        found = parse_out_of_use(self._something("scontrol", answer))
        if since is None:
            return found
        start = datetime.fromtimestamp(since - _A_MOMENT).strftime("%Y-%m-%dT%H:%M:%S")  # Slurm reads local time
        asked = ("show", "event", f"nodes={nodes}", f"start={start}", "format=NodeName,Start,State,Reason")
        with suppress(CarrelError):
            text = self._run("sacctmgr", "--noheader", "--parsable2", *asked, epoch=True).out
            return found | parse_events(text, since - _A_MOMENT, since + _PROLOGS)
        return found

    def daemons(self) -> frozenset[str]:
        """Return the names of the users that Slurm's own daemons run as."""
        configuration = self.configuration()
        named = (configuration.get(key, "").partition("(")[0] for key in ("SlurmUser", "SlurmdUser"))
        return frozenset({"root", *named}) - {""}

    def cancel(self, number: int, *, name: str, task: int | None = None) -> None:
        """End a job, or that element of an array, in any state; one that has ended already is no error.

        Its identity has to be `name`: a controller that was killed gives numbers again, and nobody else's job must be hit. So it
        is looked at just before.
        """
        self._cancel([], number, name, task)

    def cancel_waiting(self, number: int, *, name: str, task: int | None = None) -> None:
        """End the job if it has not started."""
        self._cancel([], number, name, task, waiting=True)

    def signal(self, number: int, signal_name: str, *, name: str, task: int | None = None) -> None:
        """Send a signal to the batch script of a job that runs, and to nothing else of it."""
        self._cancel(["--batch", f"--signal={signal_name}"], number, name, task)

    def wake(self, number: int, *, name: str) -> None:
        """Send all processes in an allocation SIGURG, which means nothing to those that do not ask for it."""
        self._cancel(["--signal=URG"], number, name, None)

    def rename(self, number: int, name: str) -> None:
        """Call a job `name` from now on, which means nothing to anybody but people: its number is not looked at before."""
        self._run("scontrol", "update", f"JobId={number}", f"JobName={name}")

    def _cancel(self, options: Sequence[str], number: int, name: str, task: int | None, *, waiting: bool = False) -> None:
        job = self.job(number, name, task)
        if job is None or (waiting and job.state != "PENDING"):
            return
        try:
            self._run("scancel", *options, shown(number, task))
        except SlurmFailed as error:
            if not _OVER.search(error.message):
                raise

    def nodes(self) -> tuple[Mapping[str, str], ...]:
        """Return the nodes, as `scontrol show node` has them."""
        answer = self._run("scontrol", "--oneliner", "show", "node")
        return parse_records(self._something("scontrol", answer), "NodeName")

    def partitions(self) -> tuple[Mapping[str, str], ...]:
        """Return the partitions, as `scontrol show partition` has them."""
        answer = self._run("scontrol", "--oneliner", "show", "partition")
        return parse_records(self._something("scontrol", answer), "PartitionName")

    def configuration(self) -> Mapping[str, str]:
        """Return what slurm.conf says, as `scontrol show config` has it."""
        lines = self._something("scontrol", self._run("scontrol", "show", "config")).splitlines()
        pairs = (line.split("=", 1) for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, value in pairs}

    def token(self, lifespan: int) -> str:
        """Return a new token by which Slurm's daemons know this user for `lifespan` seconds. It is a secret."""
        found = re.fullmatch(r"SLURM_JWT=([\w.=-]+)\s*", self._run("scontrol", "token", f"lifespan={lifespan}").out)
        if found is None:
            raise Garbage("The token that scontrol gave", "")
        return found[1]

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes of service (QoS) in the accounting database."""
        return tuple(self._run("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name").out.split())

    def limits(self) -> Mapping[str, Mapping[str, str]]:
        """Return how much each class of service (QoS) in the accounting database allows."""
        return parse_limits(self._run("sacctmgr", "--noheader", "--parsable2", "show", "qos", f"format={','.join(FIELDS)}").out)

    def max_submit(self) -> Mapping[str, str]:
        """Return how many jobs this user may have in Slurm (MaxSubmitJobs), by account, where the database has a limit."""
        user = pwd.getpwuid(os.geteuid()).pw_name
        asked = ("show", "assoc", f"user={user}", "format=Account,MaxSubmitJobs")
        rows = (line.split("|") for line in self._run("sacctmgr", "--noheader", "--parsable2", *asked).out.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[1].isdigit()}

    def qos_of(self, number: int) -> str:
        """Return the class of service of a job that the controller knows."""
        return next(iter(self._run("squeue", "--noheader", f"--jobs={number}", "--format=%q").out.split()), "")

    def array_size(self) -> int:
        """Return what the indices of arrays are less than (slurm.conf(5), MaxArraySize); 0 where there are none."""
        found = self.configuration().get("MaxArraySize", "")
        if not re.fullmatch(r"[0-9]{1,9}", found):
            raise Garbage("MaxArraySize", found)
        return int(found)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _something(self, program: str, answer: _Answer) -> str:
        if not answer.out.strip():
            raise SlurmEmpty(f"{program} said nothing.", remedy="It is asked again; nothing is concluded from this.")
        return answer.out

    def _run(self, program: str, *arguments: str, stdin: str = "", epoch: bool = False) -> _Answer:
        """Run to the end or to the timeout; raise for every exit code but 0."""
        # `sacct --json` of 22.05 cannot read the times that it is given itself when they are in another format.
        environ = {**self._environ, "SLURM_TIME_FORMAT": "%s"} if epoch else self._environ
        if program in ("squeue", "sacct"):  # lists of elements of arrays are cut short otherwise
            environ = {**environ, "SLURM_BITSTR_LEN": "0"}
        try:
            process = subprocess.Popen(
                [program, *arguments],
                env=environ,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise SlurmMissing(
                f"{program} cannot be started: {error.strerror}.", remedy="Install Slurm's commands here."
            ) from error
        with process:
            out, err = self._hear(program, process, stdin.encode())
        answer = _Answer(process.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip())
        if answer.code:
            raise failure(program, answer.code, answer.err)
        return answer

    def _hear(self, program: str, process: subprocess.Popen[bytes], stdin: bytes) -> tuple[bytes, bytes]:
        """Return what a program says until it ends. It is killed after the timeout, and sbatch as soon as it only waits."""
        until, given = time.monotonic() + self._timeout, stdin
        while True:
            left = until - time.monotonic()
            try:
                return process.communicate(given, timeout=min(left, _LISTENS) if program == "sbatch" else left)
            except subprocess.TimeoutExpired as error:
                given = b""
                said = (error.stderr or b"").decode(errors="replace")
                full = _QUEUE_FULL.search(said) if program == "sbatch" else None
                if full is None and until > time.monotonic():
                    continue
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
                process.communicate()
                if full is not None:
                    raise SlurmFull(f"sbatch failed: {full[0]}.", reason=MAX_JOB_COUNT, perhaps=True) from error
                raise SlurmSlow(
                    f"{program} did not answer within {self._timeout:g} s.", remedy="Slurm's controller is slow or hangs."
                ) from error


def _name_of(user: str) -> str:
    """Return the name of a user whose number sacct gives; the number where nobody here has it."""
    with suppress(KeyError, OverflowError):
        return pwd.getpwuid(int(user)).pw_name if user.isdigit() else user
    return user

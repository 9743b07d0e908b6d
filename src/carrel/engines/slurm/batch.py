"""What a batch script becomes on its node: the guardian of one runner: ``python -I -m ... ATTEMPT``, the attempt's directory.

With ``--element`` the directory is that of an array, and the attempt one of its elements. With ``--give-back`` it is a step
in an allocation that was made for this attempt alone, which ends with it.

It forks the runner, passes signals on to it, ends what a runner left behind that was killed, and says to Slurm how that went.
The second script (Slurm may start a script again, or have two of them) finds the attempt claimed, and does nothing.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from carrel.core.domain.errors import CarrelError, Denied
from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Claimed, Ended, Launch
from carrel.core.domain.node import Device
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import Launcher
from carrel.core.spool import AttemptDirectory, append_entry, read_claim, read_entries, take_claim
from carrel.core.spool.seal import check_launch, read_order
from carrel.core.spool.strict import trusted_directory
from carrel.engines.slurm.environ import MODULES, command_environ, read_environ
from carrel.node.runner.group.plan import Allocation
from carrel.node.runner.hardware import machine_facts
from carrel.node.runner.main import RunnerContext, run_attempt

if TYPE_CHECKING:
    from carrel.node.runner.group.plan import Allocation


#: Passed on to the runner. What it makes of SIGTERM is in its cancel file. Slurm sends a step's signals to all its processes, so
#: the engine sends SIGURG, which the command does not notice; the runner gets SIGTERM for it.
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG)
#: The argument of the guardian of an allocation.
GIVE_BACK = "--give-back"
#: The argument of the guardian of an element of an array.
ELEMENT = "--element"
#: The argument that says: only where nobody but root and the user could have made what the attempt lies in, as this node sees it.
STRICT = "--strict"
#: The beginning of the argument that says by whose key what is run has to be signed.
SIGNED = "--signed="
#: The beginning of the argument that says of which Unix user the lab has to have ordered it; without it, of its own.
FOR = "--for="
#: Seconds that a broker has to take a connection.
_ANSWER = 2.0
#: The script of an allocation; and what it becomes, with its own path and a command. When the command has ended and left the
#: script there, because it was killed or has no srun, the allocation is given back: if it has the identity that stands before the
#: command, as a controller that was killed may have given the number to somebody else's job. The command gets the signals that
#: the shell waits through.
SCRIPT = "slurm.sh"
WATCH = (
    'trap : TERM USR1 USR2; "${@:2}"; code=$?; [ ! -e "$0" ] || '
    '[ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%k)" != "$1" ] || '
    '{ : > "$0.released"; scancel --quiet "$SLURM_JOB_ID"; }; exit $code'
)
#: The note that the srun which would give the allocation back was ended.
DETACHED = "slurm.detached"
#: The note that an allocation was given back by us, beside its script.
RELEASED = f"{SCRIPT}.released"
#: The note that a SIGTERM came that the lab did not send: Slurm, or a person through Slurm, ends the job.
TERMINATED = "slurm.terminated"


def main(arguments: Sequence[str]) -> int:
    """Guard the runner of the attempt whose directory is the first argument; return the exit code for Slurm."""
    gc.freeze()
    gc.enable()
    directory = AttemptDirectory(attempt_of(Path(arguments[0]), os.environ) if ELEMENT in arguments[1:] else Path(arguments[0]))
    held = GIVE_BACK in arguments[1:]
    os.umask(0o077)
    if STRICT in arguments[1:]:
        try:
            trusted_directory(directory.path.absolute())
        except CarrelError as error:  # there is nothing here that could be written to
            print(f"This attempt does not begin: {error}", file=sys.stderr)
            return 1
    if read_claim(directory.claim) is not None:
        return 0
    launch = json.loads(directory.launch.read_bytes())  # the runner makes a `Launch` of it, and complains if it is none
    if key := _told(arguments, SIGNED):
        try:
            _check_order(directory, launch, key, _told(arguments, FOR))
        except CarrelError as error:
            return _refuse(directory, error)
    note_allocation(directory, launch, os.environ)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    pid = os.fork()
    if pid == 0:
        _be_runner(directory)

    ended_by_slurm = False

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal ended_by_slurm
        ended_by_slurm = ended_by_slurm or number == signal.SIGTERM
        if number == signal.SIGTERM and not directory.cancel.exists() and not directory.preempt.exists():
            with suppress(OSError):
                (directory.path / TERMINATED).touch(mode=0o600)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if number == signal.SIGURG else number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        from carrel.engines.leftovers import kill_leftovers

        kill_leftovers(directory)
    if held and (claim := read_claim(directory.claim)) is not None and claim.pid == pid and not claim.held:
        give_back(directory, silent=ended_by_slurm)
    if code:
        return code if code > 0 else 128 - code
    return code_of(directory)


def attempt_of(array: Path, environ: Mapping[str, str]) -> Path:
    """Return the directory of the attempt that is this element of an array, as the lab wrote it down before there was one."""
    return (array / environ["SLURM_ARRAY_TASK_ID"]).readlink()


def give_back(directory: AttemptDirectory, *, silent: bool) -> None:
    """See to it that the attempt's allocation ends with this process: by srun, or where that was ended, by the script (`WATCH`).

    Slurm will say of the latter that it was cancelled, which a note explains; it is of no use where Slurm itself had begun to end
    it (`silent`).
    """
    if silent or not (directory.path / DETACHED).exists():
        with suppress(OSError):
            (directory.path / SCRIPT).unlink(missing_ok=True)


def code_of(directory: AttemptDirectory) -> int:
    """Return the exit code with which Slurm is to remember the job: the command's own, or 1 for another end than a good one."""
    with suppress(ValueError, KeyError, TypeError, OSError):
        entries, _ = read_entries(directory.journal, over=True)
        if entries and isinstance(ended := entries[-1].record, Ended):
            return ended.exit_code or int(ended.state is not JobState.COMPLETED)
    return 1


def _be_runner(directory: AttemptDirectory) -> None:
    """In the child: live the attempt, and end without going back."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        environ = job_environ(directory, os.environ)
        surroundings = RunnerContext(
            environ=environ,
            more=command_environ(environ),
            facts=job_facts,
            # No cgroup of its own: those of Slurm's steps are root's, and entering one takes the kernel 15 ms.
            allocate=_allocate,
        )
        run_attempt(directory.path, surroundings)
        status = 0
    finally:
        os._exit(status)


def job_facts() -> dict[str, str]:
    """Return what the machine is, and which job of Slurm's on which nodes this is."""
    named = {"slurm_job": "SLURM_JOB_ID", "slurm_nodes": "SLURM_JOB_NODELIST", "node": "SLURMD_NODENAME"}
    return machine_facts() | {fact: value for fact, name in named.items() if (value := os.environ.get(name))}


def job_environ(directory: AttemptDirectory, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the job has been given, with its modules loaded."""
    try:
        return read_environ((directory.path / MODULES).read_bytes())
    except FileNotFoundError:
        return dict(environ)


def _allocate(launch: Launch) -> Allocation:
    """How the runner starts processes on all nodes of its job."""

    return allocation_of(launch, os.environ)


def _told(arguments: Sequence[str], beginning: str) -> str:
    return next((word.removeprefix(beginning) for word in arguments[1:] if word.startswith(beginning)), "")


def _check_order(directory: AttemptDirectory, launch: Mapping[str, Any], key: str, user: str) -> None:
    """Raise a `CarrelError` unless this launch is what the lab has signed, for `user` ("": for the lab's own)."""
    try:
        order = read_order(directory.order.read_bytes())
    except OSError as error:
        raise Denied(f"There is no order of the lab's to run this: {error.strerror}.", remedy="Submit it again.") from error
    order.check(key)
    if user:
        import pwd

        if (account := pwd.getpwnam(user)).pw_uid != os.geteuid():
            raise Denied(f"This is {user}'s (uid {account.pw_uid}) and runs as uid {os.geteuid()}.", remedy="Submit it again.")
    check_launch(launch, order, directory.path.absolute(), user)


def _refuse(directory: AttemptDirectory, error: CarrelError) -> int:
    """Write down that the attempt has failed and why, in the place of a runner; return the exit code for Slurm."""
    print(f"This attempt does not begin: {error}", file=sys.stderr)
    if (claim := take_claim(directory.claim, os.getpid())) is None:
        return 0
    journal = os.open(directory.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    now = time.time()
    append_entry(journal, now, Claimed(pid=os.getpid()))
    append_entry(journal, now, Ended(state=JobState.FAILED, reason=Reason(code="LaunchFailed", message=str(error))))
    os.close(journal)
    os.close(claim)
    return 1


def note_allocation(directory: AttemptDirectory, launch: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Write into the launch file which node and which GPUs Slurm has given: it knows only now."""
    paths = launch["paths"]
    session = launch["task"].get("session") or {}
    borrows = session or launch["task"].get("borrows")
    sharded = session.get("shards") or launch["task"].get("borrows") or launch.get("shards")
    shares = shared(environ) if sharded and answers(paths.get("broker", "")) else ()
    # What the broker lends is seen by a cell or call that has it, by no other. A task has it from start to end, but for pauses.
    devices = () if shares and borrows else allocated(environ, launch["resources"].get("gpu_type") or "gpu")
    launch |= {"node": environ.get("SLURMD_NODENAME") or launch["node"], "devices": to_plain(devices), "shares": list(shares)}
    library = paths.get("residency", "")
    lent = {"broker": paths["broker"], "residency": library if os.access(library, os.R_OK) else ""}
    launch["paths"] = {**paths, **(lent if shares else {"broker": "", "residency": ""})}
    draft = directory.launch.with_name(f"launch.{environ.get('SLURM_JOB_ID', '')}.{os.getpid()}")
    draft.write_text(json.dumps(launch, separators=(",", ":")))
    draft.rename(directory.launch)


def shared(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the positions on the node of the GPUs on which the allocation's shards lie."""
    listed = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or ""
    found: list[int] = []
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found += range(int(first), int(last or first) + 1)
    return tuple(found)


def answers(broker: str) -> bool:
    """Return whether a broker listens on this node at the path `broker`."""
    if not broker:
        return False
    import socket

    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_ANSWER)
        probe.connect(broker)
        return True
    return False


def allocated(environ: Mapping[str, str], kind: str) -> tuple[Device, ...]:
    """Return the GPUs of the allocation, named as CUDA_VISIBLE_DEVICES names them: by position, or by UUID."""
    names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name and name != "NoDevFiles"]
    return tuple(Device(uuid=name, index=index, type=kind, name=kind, memory=0) for index, name in enumerate(names))


#: What srun may be asked to speak with the processes, the best first.
_PMI = ("pmix", "pmi2")
#: Variables of the batch script that srun goes by, or that say what it would get otherwise.
_NEEDED = re.compile(r"SLURM_(?:CONF|JOB_?ID|JOB_NODELIST|NODELIST|JOB_NUM_NODES|NNODES|CLUSTER_NAME|WORKING_CLUSTER)")
#: Seconds that a command may take which only asks.
_PATIENCE = 60


def allocation_of(launch: Launch, environ: Mapping[str, str]) -> Allocation:
    """Return how processes are started on the nodes of the job that this is part of."""
    mpi = launch.task.launcher is Launcher.MPI
    kind = _pmi(launch, environ) if mpi else ""
    return Allocation(
        each_node=step_arguments(launch, tasks_per_node=1),
        each_process=step_arguments(launch, tasks_per_node=launch.task.tasks_per_node, mpi=kind) if kind else (),
        variables={name: value for name, value in environ.items() if _NEEDED.fullmatch(name)},
        nodes=_nodes(environ) if mpi and not kind else (),
    )


def step_arguments(launch: Launch, *, tasks_per_node: int, mpi: str = "none") -> tuple[str, ...]:
    """Return srun with the arguments of a step that has all of the job's nodes, and on each of them all that the job has."""
    wanted = launch.resources
    gres = ":".join(part for part in ("gres", "gpu", wanted.gpu_type or "", str(wanted.gpus)) if part)
    return (
        "srun",
        f"--nodes={wanted.nodes}",
        f"--ntasks={wanted.nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--cpus-per-task={max(1, wanted.cpus // tasks_per_node)}",
        f"--gres={gres.removeprefix('gres:') if wanted.gpus else 'none'}",
        # Beside the runner, which is a step of its own.
        *("--overlap", "--overcommit", "--mem=0", f"--mpi={mpi}", "--export=ALL"),
        # The leader ends the processes, of which it knows more.
        *("--kill-on-bad-exit=0", "--wait=0", "--input=none", "--unbuffered", "--quiet"),
    )


def _pmi(launch: Launch, environ: Mapping[str, str]) -> str:
    """The best that this Slurm offers and that works; "" when there is none."""
    _, answer = _ask(["srun", "--mpi=list"], environ)
    # A plugin is listed also where the library that it needs is not installed, so it is tried.
    return next(
        (
            kind
            for kind in _PMI
            if kind in answer.split() and _ask([*step_arguments(launch, tasks_per_node=1, mpi=kind), "true"], environ)[0] == 0
        ),
        "",
    )


def _nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    _, answer = _ask(["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")], environ)
    return tuple(answer.split())


def _ask(command: list[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code, and what was said."""
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 1, ""
    return done.returncode, done.stdout + done.stderr  # older ones answer on standard error


if __name__ == "__main__":
    gc.disable()  # nothing that is imported becomes garbage
    os._exit(main(sys.argv[1:]))

"""Starting the command: its own session, its own limits, tied to the life of the runner."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from carrel.core.transport.descriptors import limit_command

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from carrel.node.containment.entering import Guests
    from carrel.node.containment.walls import Walls

# Numbers of prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

#: The kernel prefers to end a job to ending the lab when memory runs out (proc(5), oom_score_adj).
_OOM_SCORE = b"500"


class LaunchError(Exception):
    """The command could not be started; the text says why."""


class NotNow(LaunchError):
    """The lab's user has all processes or namespaces that it may have; later the same may work."""


#: Begins what is said of a command that can be started later.
_LATER = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start."""

    arguments: list[str]
    variables: Mapping[str, str]
    directory: str
    #: Standard output and standard error.
    output: int
    #: A descriptor that it has under the same number, or None.
    keeps: int | None = None
    #: cgroup.procs of the cgroup to enter, or None.
    cgroup: str | None = None
    #: What it sees; None: all that the lab's own user does.
    walls: Walls | None = None
    #: The root of an image that is entered first, from within walls that show it (`carrel.node.containment.view`).
    image: str | None = None
    #: What is started beside it for connections that come.
    ssh: SshListener | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SshListener:
    """A socket for ssh connections, and what serves one that is its standard input."""

    socket: socket.socket
    arguments: list[str]
    variables: Mapping[str, str]


def become_subreaper() -> None:
    """Make every orphan among this process' descendants its child (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shell(command: str) -> list[str]:
    """Return the arguments that run `command` in bash, or in sh where there is no bash, on this machine."""
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.access(path, os.X_OK)), None)
    return [bash, "-c", command] if bash else ["/bin/sh", "-c", command]


def image_shell(command: str, root: Path) -> list[str]:
    """Return the arguments that run `command` in the image whose files lie at `root`."""
    # What a link there leads to is for the image to say, not for this machine.
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.lexists(f"{root}{path}")), None)
    return [bash or "/bin/sh", "-c", command]


def start(command: Command) -> int:
    """Start `command` and return its process id once it runs. Raises `LaunchError`, or `NotNow`; then nothing runs.

    It leads a session and a process group of its own, dies with this process, has no core dumps and no standard input.
    """
    failed_read, failed_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    lifeline = _lifeline(parent) if command.walls is not None else -1
    try:
        pid = os.fork()
    except BlockingIOError as error:
        os.close(failed_read)
        os.close(failed_write)
        raise NotNow(f"The command could not be started: {error.strerror}.") from error
    if pid == 0:
        _become(command, parent, failed_write, lifeline)
    os.close(failed_write)
    with open(failed_read, "rb", buffering=0) as failed:
        message = failed.readall()
    if message:
        os.waitpid(pid, 0)
        kind = NotNow if message.startswith(_LATER) else LaunchError
        raise kind(message.removeprefix(_LATER).decode(errors="replace"))
    return pid


def let_ssh_in(command: Command) -> None:
    """Serve one ssh connection to a command without walls: as a child of this process, which dies with it."""
    from carrel.node.containment.entering import let_in

    assert command.ssh is not None
    parent = os.getpid()

    def prepare(become: Callable[[], None]) -> None:
        _detach(command, parent)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        become()

    let_in(_guests(command, command.ssh), prepare)


def _guests(command: Command, ssh: SshListener) -> Guests:
    from carrel.node.containment.entering import Guests

    server = replace(command, arguments=ssh.arguments, variables=ssh.variables, image=None)
    return Guests(ssh.socket, lambda: _execute(server, -1))


@cache
def _lifeline(_of: int) -> int:
    """A descriptor that is readable when this process, by its number, is gone: the other end is closed by nobody else."""
    read, _write_end = os.pipe2(os.O_CLOEXEC)
    return read


def _become(command: Command, parent: int, failed: int, lifeline: int) -> None:
    """In the child: become the command. Never returns."""
    step = "put into its cgroup"
    try:
        _detach(command, parent)
        step = "given its output"
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(command.output, 1)
        os.dup2(command.output, 2)
        kept = () if command.keeps is None else (command.keeps,)
        for descriptor in kept:
            os.set_inheritable(descriptor, True)
        if command.walls is not None:
            from carrel.node.containment.entering import contain

            step = "contained"
            guests = None if command.ssh is None else _guests(command, command.ssh)
            contain(command.walls, lifeline, lambda: _execute(command, failed), (failed, *kept), guests=guests)
        _execute(command, failed)
    except BaseException as error:  # noqa: BLE001 - after any error, this process must not go on as a second runner
        _say_why_not(step, error, failed)
    os._exit(125)


def _detach(command: Command, parent: int) -> None:
    for number in (
        signal.SIGTERM,
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGPIPE,
        signal.SIGALRM,
        signal.SIGXFSZ,
    ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(125)
    os.umask(0o022)
    _limit()
    if command.cgroup is not None:
        _write(command.cgroup, b"0")


def _execute(command: Command, failed: int) -> None:
    step = "put into its image"
    try:
        if command.image is not None:
            from carrel.node.containment.view import enter

            enter(command.image)
        step = f"started in {command.directory}"
        os.chdir(command.directory)
        step = "started"
        os.execve(command.arguments[0], command.arguments, command.variables)
    except BaseException as error:  # noqa: BLE001 - as above
        _say_why_not(step, error, failed)
    os._exit(125)


def _say_why_not(step: str, error: BaseException, failed: int) -> None:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    later = _LATER if isinstance(error, BlockingIOError) else b""
    about = f" ({error.filename})" if step == "contained" and not later and isinstance(error, OSError) and error.filename else ""
    os.write(failed, later + f"The command could not be {step}: {reason}{about}.".encode())


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_command()
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", _OOM_SCORE)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

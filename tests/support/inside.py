"""A program behind walls, started by the tests themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from carrel.node.containment.entering import contain
from carrel.node.containment.walls import Walls

#: Bytes of the program's answer.
_LONGEST = 1 << 20


def run_inside(walls: Walls, arguments: Sequence[str]) -> tuple[int, bytes]:
    """Run a program inside `walls`; return its exit code and what it said (or why it could not be started)."""
    read, write = os.pipe2(os.O_CLOEXEC)
    lifeline, _ours = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become_contained(walls, arguments, write, lifeline)
    os.close(write)
    said = b""
    while len(said) < _LONGEST and (piece := os.read(read, 65536)):
        said += piece
    _pid, status = os.waitpid(pid, 0)
    for fd in (read, lifeline, _ours):
        os.close(fd)
    return os.waitstatus_to_exitcode(status), said


def _become_contained(walls: Walls, arguments: Sequence[str], output: int, lifeline: int) -> None:
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)

        def become() -> None:
            os.chdir("/tmp")
            os.execve(arguments[0], list(arguments), {"PATH": os.defpath, "LANG": "C.UTF-8"})

        contain(walls, lifeline, become, (output,))
    except BaseException as error:  # noqa: BLE001 - after any error, this process must not go on as a second caller
        about = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        with suppress(OSError):
            os.write(output, f"{about}{getattr(error, 'strerror', None) or error}".encode())
    finally:
        os._exit(125)


def outside() -> dict[str, str]:
    """The namespaces of this process, which the program must not find itself in."""
    names = {"outside": "mnt", "outside_network": "net", "outside_user": "user"}
    return {key: str(Path(f"/proc/self/ns/{name}").readlink()) for key, name in names.items()}

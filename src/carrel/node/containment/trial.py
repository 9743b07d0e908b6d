"""Whether this machine can keep users' code apart: tried, not guessed; and attacked, so that what gets through is known.

The attacks (`attacks`) are a program that runs inside, on what a real job sees, and says of each whether it succeeded. `carrel
doctor` and the tests use the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.node.containment import calls
from carrel.node.containment.attacks import ATTACKS, NOTHING
from carrel.node.containment.entering import contain
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Bind, Walls

#: Bytes of the program's answer.
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of it."""

    #: Why it does not work here, "" when it does; and what can be done about it.
    why_not: str = ""
    remedy: str = ""
    #: What this kernel leaves open.
    gaps: tuple[str, ...] = ()


def try_walls(*, network: bool = True) -> Trial:
    """Build walls around a process of our own, and look; with `network` it gets one of its own, too."""
    if sys.platform != "linux":
        return Trial(why_not="It needs Linux.")
    with tempfile.TemporaryDirectory(prefix="carrel-walls-") as scratch:
        temporary, secret = Path(scratch, "tmp"), Path(scratch, "hidden")
        temporary.mkdir()
        secret.mkdir()
        Path(secret, "file").write_text("x")
        walls = Walls(hidden=(str(secret),), binds=(Bind(scratch),), temporary=str(temporary), doors=() if network else None)
        look = f"test ! -e {secret}/file && test -r /proc/self/status && echo inside"
        # Not by a fork of this process, which may have threads.
        program = start_program(
            walls,
            ["/bin/sh", "-c", look],
            directory="/",
            variables={"PATH": os.defpath},
            stderr=subprocess.STDOUT,
            waits=False,
        )
        with program.process as process:
            said = process.stdout.read(_LONGEST).removeprefix(b"error: ") if process.stdout else b""
            code = process.wait()
        program.end()
    if code == 0 and said.strip() == b"inside":
        return Trial(gaps=_gaps())
    return Trial(why_not=said.decode(errors="replace").strip() or f"A process inside ended with {code}.", remedy=_remedy())


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


def _gaps() -> tuple[str, ...]:
    found = []
    if calls.landlock_version() < 6:
        found.append("abstract sockets of other programs can be reached (this kernel's Landlock is older than 6.12's)")
    return tuple(found)


def _remedy() -> str:
    for file, bad, said in (
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "a profile of AppArmor's that lets the lab's Python make user namespaces, or "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        try:
            if Path(file).read_text().strip() == bad:
                return f"An administrator of the machine can allow it: {said}."
        except OSError:
            continue
    return "It needs Linux 5.12 with user namespaces; in a container they are often forbidden."


def outside() -> dict[str, str]:
    """The namespaces of this process, which the program must not find itself in."""
    names = {"outside": "mnt", "outside_network": "net", "outside_user": "user"}
    return {key: str(Path(f"/proc/self/ns/{name}").readlink()) for key, name in names.items()}


def attack(
    walls: Walls,
    *,
    secrets: Sequence[str],
    directories: Sequence[str] = (),
    processes: Sequence[int] = (),
    sockets: Sequence[str] = (),
    addresses: Sequence[tuple[str, int]] = (),
    devices: Sequence[str] = (),
    writable: str = "/tmp",
    python: str = "",
) -> dict[str, str]:
    """Try to get out of `walls`; return what got through, by what was tried. Raises `OSError` when it could not be tried."""
    about = {
        **NOTHING,
        "files": {"token and secret": list(secrets)},
        "directories": list(directories),
        "processes": list(processes),
        "sockets": list(sockets),
        "addresses": [list(address) for address in addresses],
        "closed": walls.doors is not None,
        "devices": list(devices),
        "hidden": list(walls.hidden),
        "own": [bind.place for bind in walls.binds if bind.writable],
        "given": [Path(device).name for device in walls.devices],
        "writable": writable,
        "memory": walls.shared_memory,
        **outside(),
    }
    code, said = run_inside(walls, [python or os.path.realpath(sys.executable), "-I", "-c", ATTACKS, json.dumps(about)])
    try:
        found = json.loads(said.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise OSError(0, f"the attacks ended with {code}: {said.decode(errors='replace')[-500:]}") from error
    return dict(found)

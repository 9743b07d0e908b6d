"""Whether this machine can keep users' code apart: tried, not guessed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.node.containment import calls
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Bind, Walls

#: Bytes of the program's answer.
_LONGEST = 1 << 20
_PYTHON = "Install Python and Carrel where every user of the machine may read and run them, as in /opt, and start that one."


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
        try:
            why_not = _run(walls, ["/bin/sh", "-c", look])
        except OSError as error:
            return Trial(why_not=f"{sys.executable} cannot be started: {error.strerror}.", remedy=_PYTHON)
    return Trial(why_not=why_not, remedy=_remedy()) if why_not else Trial(gaps=_gaps())


def try_python(walls: Walls) -> Trial:
    """Run the lab's own Python behind walls (their /tmp is chosen here), with Carrel: sessions and groups need it there."""
    with tempfile.TemporaryDirectory(prefix="carrel-walls-") as scratch:
        command = [sys.executable, "-c", "import carrel, ctypes, ssl; print('inside')"]
        try:
            said = _run(replace(walls, temporary=scratch), command)
        except OSError as error:
            said = str(error.strerror)
    if not said:
        return Trial()
    return Trial(why_not=f"The lab's own Python cannot be run behind the walls ({said.splitlines()[-1]}).", remedy=_PYTHON)


def _run(walls: Walls, command: Sequence[str]) -> str:
    """Return "" where a program inside says so, else what it said. Not by a fork of this process, which may have threads."""
    variables = {"PATH": os.defpath}
    program = start_program(walls, command, directory="/", variables=variables, stderr=subprocess.STDOUT, waits=False)
    with program.process as process:
        said = process.stdout.read(_LONGEST).removeprefix(b"error: ").strip() if process.stdout else b""
        code = process.wait()
    program.end()
    if code == 0 and said == b"inside":
        return ""
    return said.decode(errors="replace") or f"A process inside ended with {code}."


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

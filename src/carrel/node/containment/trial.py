"""Whether this machine can keep users' code apart: tried, not guessed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from carrel.node.containment import calls
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

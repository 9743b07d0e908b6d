"""A program behind walls, started from a process that may have threads: a build's tool, or what fetches an input.

It is started by an interpreter of its own, because what a process with threads may do after fork(2) is little. When it ends, or
the process that started it does, nothing that it started is left.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from carrel.core.transport.descriptors import limit_command
from carrel.node.containment.walls import Bind, Bounds, Door, View, Walls

_ENTER = "import sys; sys.path.append(sys.argv[1]); from {} import main; main()"
#: What enters the walls at once, and what stays outside to watch what the program takes.
_ALONE, _WATCHED = "carrel.node.containment.program", "carrel.node.runner.bounded"
_OURS = str(Path(__file__).resolve().parents[3])
#: The exit code of a program that could not be contained, or took too much.
REFUSED = 125
#: Seconds in which the kernel ends what is inside.
_PATIENCE = 30.0


@dataclass(slots=True)
class Program:
    """One that was started. Call `end` when it is no longer wanted, or has ended."""

    process: subprocess.Popen[bytes]
    _lifeline: int

    def end(self) -> None:
        """See that nothing of it is left; again is harmless. Who wants to know how it ended waits for `process` before."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
        try:
            # It waits for the first process inside, which ends after all the others.
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_program(
    walls: Walls,
    arguments: Sequence[str],
    *,
    directory: str,
    variables: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    waits: bool = True,
) -> Program:
    """Start a program inside `walls`, in `directory` as it is called there; what it says comes through pipes.

    It leads a process group, to which signals may be sent. That it could not be contained, or took too much, it says itself, and
    ends with `REFUSED`; for namespaces it `waits`, with a line that begins with "Waiting".
    Raises `OSError` when the machine has no room for a process.
    """
    lifeline, ours = os.pipe2(os.O_CLOEXEC)
    about = {"walls": asdict(walls), "arguments": list(arguments), "directory": directory, "lifeline": lifeline, "waits": waits}
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ENTER.format(_WATCHED if walls.bounds else _ALONE), _OURS, json.dumps(about)],
            cwd="/",
            env=dict(variables),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=(lifeline,),
            process_group=0,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(lifeline)
    return Program(process, ours)


def main() -> None:
    """What the interpreter that `start_program` starts does."""
    about = json.loads(sys.argv[2])
    enter(read_walls(about["walls"]), about)


def enter(walls: Walls, about: Mapping[str, Any]) -> None:
    """Become the program behind its walls; `about` is what `start_program` said. Never returns."""
    from carrel.node.containment.entering import contain

    arguments, lifeline = about["arguments"], int(about["lifeline"])
    os.set_inheritable(lifeline, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_command()
    # The kernel prefers to end this to ending the lab when memory runs out (proc(5)).
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")

    def become() -> None:
        try:
            os.chdir(about["directory"])
            os.execvpe(arguments[0], arguments, os.environ)
        except OSError as error:
            fail(f"{arguments[0]} cannot be started: {error.strerror}")

    said: set[str] = set()

    def wait(why: str) -> None:
        if why not in said:
            os.write(2, f"Waiting: {why}.\n".encode())
        said.add(why)

    try:
        contain(walls, lifeline, become, whole=True, waits=wait if about["waits"] else None)
    except OSError as error:
        fail(f"It cannot be kept apart from the lab: {error.strerror} ({error.filename})")


def read_walls(plain: Mapping[str, Any]) -> Walls:
    """Return the walls that were written down as JSON (`dataclasses.asdict`)."""
    doors, view, bounds = plain["doors"], plain["view"], plain["bounds"]
    return Walls(
        **{
            **plain,
            "binds": tuple(Bind(**bind) for bind in plain["binds"]),
            "doors": None if doors is None else tuple(Door(**door) for door in doors),
            "view": None if view is None else View(**{**view, "binds": tuple(Bind(**bind) for bind in view["binds"])}),
            "bounds": None if bounds is None else Bounds(**bounds),
        }
    )


def fail(why: str) -> None:
    """Say why there is no program (any more), and end."""
    with suppress(OSError):
        os.write(2, f"error: {why}\n".encode())
    os._exit(REFUSED)

"""Lives in an allocation that is held for a user's short tasks, and runs one after the other: ``python -c START [TOLD] SCRIPT``.

Each line that it reads is the directory of an attempt; a process of its own guards that attempt's runner, as a batch script does.
It says a word when one begins and when one is over. An empty line says that somebody is there. At the order to go it removes
the script and ends, and its srun ends the allocation. Where nobody says anything any more its srun may be gone, too: then it ends
and leaves the script there, whose shell gives the allocation back.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from carrel.core.spool import AttemptDirectory
from carrel.engines.slurm.batch import main as guard
from carrel.engines.slurm.listing import slurm_name

#: The program of the interpreter.
START = "import gc, sys; gc.disable(); from carrel.engines.slurm.pilot import main; sys.exit(main(sys.argv[1:]))"
#: What it says: an attempt begins, and is over.
BEGINS, OVER = "begins", "over"
#: Seconds between two words to a pilot, and for which it believes that somebody is there.
BEAT, SILENCE = 2.0, 8.0
#: The order to go, when it is not needed any more.
GO = "go"
#: What an attempt's guard has to say beside the runner's log (the batch script's output).
OUTPUT = "slurm.log"


def main(arguments: Sequence[str]) -> int:
    """Run what is named on standard input until it ends. The last argument is the script of the allocation, which stays locked;
    those before it are for the guard of each attempt (`carrel.engines.slurm.batch`)."""
    *told, own = arguments
    gc.freeze()
    gc.enable()
    _lock(own)
    ending = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True  # Slurm ends everything here: the guard passes that on to its runner, and no other begins

    signal.signal(signal.SIGTERM, end)
    warm = False
    line = ""
    while not ending and (line := _next_line()) not in ("", GO):
        pid = os.fork()
        if pid == 0:
            _be_guard(AttemptDirectory(Path(line)), told)
        _say(f"{BEGINS} {line}")
        if not warm:
            warm = True
            _warm_up()
        os.waitpid(pid, 0)
        _say(f"{OVER} {line}")
    if line or ending:
        script = Path(own)
        script.unlink(missing_ok=True)
        with suppress(OSError):
            script.with_suffix("").rmdir()  # where it was started
    return 0


def is_locked(script: Path) -> bool:
    """Return whether the pilot of this allocation, or the runner of its last attempt, lives: on whichever node."""
    try:
        fd = os.open(script, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _lock(script: str) -> None:
    with suppress(OSError):  # removed meanwhile: the engine has gone
        # Open, and locked, until the last of the processes forked from here has ended.
        fcntl.flock(os.open(script, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _next_line() -> str:
    """Return the next line, "" when none will come or none has come for a while.

    Read by single bytes: what a fork has in its buffer would be read twice.
    """
    line = b""
    while True:
        try:
            if not select.select([0], [], [], SILENCE)[0]:
                return ""
            letter = os.read(0, 1)
        except OSError:
            return ""
        if not letter:
            return ""
        if letter != b"\n":
            line += letter
        elif line:
            return line.decode()


def _say(words: str) -> None:
    try:
        os.write(1, f"{words}\n".encode())
    except OSError:
        # The lab has gone. What runs goes on, and nothing else begins: the next read says so.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)


def _warm_up() -> None:
    from carrel.node.runner.main import warm_up

    warm_up()


def _be_guard(directory: AttemptDirectory, told: Sequence[str]) -> None:
    """In the child: guard the attempt, and end without going back."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(directory.path / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Slurm set it to the name of the task for which the allocation was made.
        os.environ["SLURM_JOB_NAME"] = slurm_name(json.loads(directory.launch.read_bytes())["name"])
        status = guard([str(directory.path), *told])
    except BaseException:
        import traceback

        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)

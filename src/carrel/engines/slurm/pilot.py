"""Lives in an allocation that is held for a user's short tasks, and runs one after the other. ``python -c START``.

Each line that it reads is the directory of an attempt; a process of its own guards that attempt's runner, as a batch script does.
It says a word when one begins and when one is over. When nobody will say anything any more it gives the allocation back.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from carrel.engines.slurm.batch import give_back
from carrel.engines.slurm.batch import main as guard
from carrel.spool import AttemptDirectory

#: What the interpreter is told to do.
START = "import gc, sys; gc.disable(); from carrel.engines.slurm.pilot import main; sys.exit(main())"
#: What it says: an attempt begins, and is over.
BEGINS, OVER = "begins", "over"
#: What an attempt's guard has to say beside the runner's log (the batch script's output).
OUTPUT = "slurm.log"


def main() -> int:
    """Run what is named on standard input until it ends, then give the allocation back."""
    gc.freeze()
    gc.enable()
    ending = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True  # Slurm ends everything here: the guard passes that on to its runner, and no other begins

    signal.signal(signal.SIGTERM, end)
    last: AttemptDirectory | None = None
    warm = False
    while not ending and (line := _next_line()):
        last = AttemptDirectory(Path(line))
        pid = os.fork()
        if pid == 0:
            _be_guard(last)
        _say(f"{BEGINS} {line}")
        if not warm:
            warm = True
            _warm_up()
        os.waitpid(pid, 0)
        _say(f"{OVER} {line}")
    if last is not None:
        give_back(last, silent=ending)
    return 0


def _next_line() -> str:
    """Return the next line, "" when none will come. Read by single bytes: what a fork has in its buffer would be read twice."""
    line = b""
    while True:
        try:
            letter = os.read(0, 1)
        except OSError:
            return ""
        if not letter:
            return ""
        if letter == b"\n":
            return line.decode()
        line += letter


def _say(words: str) -> None:
    try:
        os.write(1, f"{words}\n".encode())
    except OSError:
        # The lab has gone. What runs goes on, and nothing else begins: the next read says so.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)


def _warm_up() -> None:
    from carrel.runner.main import warm_up

    warm_up()


def _be_guard(directory: AttemptDirectory) -> None:
    """In the child: guard the attempt, and end without going back."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(directory.path / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = guard([str(directory.path)])
    except BaseException:
        import traceback

        traceback.print_exc()
        raise
    finally:
        sys.stderr.flush()
        os._exit(status)

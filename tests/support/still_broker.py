"""A broker for whom time stands still: it goes on only when the test says so.

`python -P still_broker.py …` is `python -m carrel.node.broker …` with a clock that begins at the Unix seconds in
CARREL_STILL_TIME. A line on its standard input is the moment (Unix seconds) that it is then; when all has been done that was due
by then, the line comes back on its standard output. What takes real time (moves, other processes) still takes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from carrel.core.transport.framing import Lines
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.main import main

#: The variable with the moment at which it begins.
VARIABLE = "CARREL_STILL_TIME"


class StillClock:
    """A moment that is moved by lines on standard input."""

    def __init__(self, moment: float) -> None:
        self._moment = moment
        self._lines = Lines(64)

    def __call__(self) -> float:
        """The moment that it is (Unix seconds)."""
        return self._moment

    def obey(self, loop: Reactor) -> None:
        """Be moved from now on."""
        loop.watch(sys.stdin.fileno(), partial(self._moved, loop))

    def _moved(self, loop: Reactor) -> None:
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            loop.unwatch(sys.stdin.fileno())
            return
        for line in self._lines.feed(piece):
            self._moment = float(line)
            # After the timers of this round of the loop.
            loop.post(partial(_answer, line))


def _answer(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line + b"\n")


def run(words: Sequence[str] | None = None) -> int:
    """Run a broker whose time is the test's until SIGTERM. Returns its exit code."""
    clock = StillClock(float(os.environ[VARIABLE]))
    loop = Reactor(clock)
    clock.obey(loop)
    return main(words, clock=clock, loop=loop)


if __name__ == "__main__":
    sys.exit(run())

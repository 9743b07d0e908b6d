"""What it costs to start a command behind walls: a program that does nothing, with and without them, by turns.

The walls are those of another user's job on this machine: what a lab hides here, and the directories that it shows as they are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from carrel.lab.server.home import LabHome
from carrel.lab.server.isolation import LocalWalls
from carrel.node.containment.walls import Bind, Walls
from carrel.node.runner.process import Command, start


def once(walls: Walls | None, directory: str) -> float:
    """Milliseconds from the decision to the end of the program."""
    read, write = os.pipe2(os.O_CLOEXEC)
    begin = time.perf_counter()
    pid = start(Command(arguments=["/bin/true"], variables={}, directory=directory, output=write, walls=walls))
    os.close(write)
    os.waitpid(pid, 0)
    os.close(read)
    return 1000 * (time.perf_counter() - begin)


def main() -> None:
    """Print medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        for name in ("home", "tmp", "work"):
            Path(scratch, name).mkdir()
        of_lab = LocalWalls(LabHome(Path(scratch, "home")))
        seen = of_lab("somebody who is not there")
        walls = Walls(
            hidden=seen.hidden,
            frozen=seen.frozen,
            binds=(*map(Bind, seen.readable), Bind(f"{scratch}/work", writable=True)),
            temporary=f"{scratch}/tmp",
        )
        once(walls, "/")
        without, within, decided = [], [], []
        for _round in range(rounds):
            without.append(once(None, "/"))
            within.append(once(walls, "/"))
            begin = time.perf_counter()
            of_lab("somebody who is not there")
            decided.append(1000 * (time.perf_counter() - begin))
    for name, times in (("without", without), ("behind walls", within), ("in the lab", decided)):
        print(f"{name:>14}: {statistics.median(times):6.1f} ms ({min(times):.1f} to {max(times):.1f})")
    print(f"{'more':>14}: {statistics.median(within) - statistics.median(without) + statistics.median(decided):6.1f} ms")
    print(f"{len(seen.hidden)} paths are hidden, {len(seen.frozen)} directories are frozen")


if __name__ == "__main__":
    main()

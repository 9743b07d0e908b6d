"""How many GPUs notebooks need where their states come back on any GPU, and where only at home: `python benchmarks/homes.py`.

Sessions of one GPU each on a virtual clock, under the broker's own policy. They are drawn from what was measured of a recorded
week (4,640 cells of the NotebookOS project, github.com/ds2-lab/NotebookOS-Dashboard, MIT, of which only these quantiles are
here): of its sessions with one GPU, how long a cell computes and how long its user thinks before it. With a FILE of cells
(`notebookos/*.csv`) the sessions are those that its cells form, with their own numbers of GPUs.

Where one pool of GPUs would delay no cell (at as many GPUs as compute at once) none should wait, and more GPUs are never worse.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random

from carrel.simulate.notebooks.by_policy import simulate
from carrel.simulate.notebooks.cells import NotebookSession
from foreign_traces import read_trace
from generator.quantiles import Quantiles
from references import form_sessions

#: Seconds before each cell but the first of its session, and seconds that a cell computes.
THINKS = Quantiles((
    0.0, 0.0, 0.0, 0.0, 0.0, 60.0, 60.0, 120.0, 180.0, 300.0, 360.0, 480.0, 660.0, 1020.0, 1260.0, 1800.0, 3050.4, 3856.8, 5498.4,
    7309.2, 11051.52, 14400.0,
))  # fmt: skip
COMPUTES = Quantiles((
    60.0, 180.0, 180.0, 180.0, 180.0, 180.0, 180.0, 180.0, 240.0, 360.0, 420.0, 540.0, 660.0, 960.0, 1200.0, 1620.0, 2017.8,
    2460.0, 3960.0, 14381.1, 25615.56, 84240.0,
))  # fmt: skip
#: As many sessions open on one day as make 64 of them compute at once if no cell waits. Each stays open when its cells are over.
SESSIONS, CELLS, DAY, LINGER = 1500, 8, 86400.0, 8 * 3600.0
GPUS = (56, 58, 60, 61, 62, 63, 64, 66, 67, 68, 72, 79)


def draw_sessions(seed: int, number: int = SESSIONS) -> Sequence[NotebookSession]:
    """Return the sessions of one day, in the order in which they open; the same for the same seed."""
    random, sessions = Random(seed), []
    for name in range(number):
        opens, cells = random.random() * DAY, random.randint(1, CELLS)
        thinks = [0.0, *(THINKS.draw(random) for _ in range(cells - 1))]
        computes = [COMPUTES.draw(random) for _ in range(cells)]
        sessions.append(NotebookSession(name=str(name), gpus=1, opens=opens, thinks=thinks, computes=computes, linger=LINGER))
    return sorted(sessions, key=lambda session: session.opens)


def at_once(sessions: Sequence[NotebookSession]) -> int:
    """Return the most GPUs on which cells compute at one moment if none ever waits."""
    changes: list[tuple[float, int]] = []
    for session in sessions:
        at = session.opens
        for think, computes in zip(session.thinks, session.computes, strict=True):
            changes += [(at + think, session.gpus), (at + think + computes, -session.gpus)]
            at += think + computes
    return max(accumulate(change for _, change in sorted(changes)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="cells as Tiresias writes jobs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS)
    parser.add_argument("--only", choices=("at home", "anywhere"), help="one of the two alone")
    options = parser.parse_args()
    file: Path | None = options.file
    sessions = form_sessions(read_trace(file, form="tiresias").jobs) if file else draw_sessions(options.seed)
    cells = sum(len(session.thinks) for session in sessions)
    print(f"{len(sessions)} sessions, {cells} cells, at most {at_once(sessions)} GPUs at once\n")
    print("| states come back | GPUs | cells that wait (%) | p95 of waits (s) | cells that are paused (%) | cells after a move |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for where in [options.only] if options.only else ["at home", "anywhere"]:
        for gpus in options.gpus:
            week = simulate(sessions, gpus, homes_move=where == "anywhere")
            late = 100 * sum(cell.wait > 0 for cell in week.cells) / cells
            paused = 100 * sum(cell.paused > 0 for cell in week.cells) / cells
            back = sum(cell.swap > 0 for cell in week.cells)
            print(f"| {where} | {gpus} | {late:.2f} | {week.p95_wait():,.0f} | {paused:.2f} | {back:,} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

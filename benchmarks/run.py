"""`make bench`: the figures that Carrel promises, measured on this machine, in one table.

Timed against real clocks and real processes; never part of the tests. A figure that misses its target is printed as such.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import at_rest
import calls
import challenges
import composing
import gpu_use
import handover
import listing
import pages
import place
import placer
import reads
import residency
import session_ready
import simulate
import slurm
import slurm_guest
import slurm_here
import slurm_throughput
import start_ranges
import state_disk
import sweeps
import tasks
import warm_cell
from figure import Figure

MEASUREMENTS: dict[str, Callable[[Path], list[Figure]]] = {
    "tasks": tasks.measure,
    "slurm": slurm_here.measure,
    "slurm_engine": slurm.measure,
    "slurm_guest": slurm_guest.measure,
    "slurm_throughput": slurm_throughput.measure,
    "at_rest": at_rest.measure,
    "listing": listing.measure,
    "gpu_use": gpu_use.measure,
    "reads": reads.measure,
    "pages": pages.measure,
    "warm_cell": warm_cell.measure,
    "calls": calls.measure,
    "challenges": challenges.measure,
    "composing": lambda _scratch: list(composing.figures()),
    "handover": handover.measure,
    "sessions": session_ready.measure,
    "residency": residency.measure,
    "state_disk": state_disk.measure,
    "sweeps": sweeps.measure,
    "place": lambda _scratch: place.figures(),
    "placer": lambda _scratch: list(placer.figures()),
    "simulate": simulate.measure,
    "start_ranges": start_ranges.measure,
}


#: Carrel's figure, Slurm's figure of the same thing, and what the quotient of the two is called.
RATIOS = (
    (tasks.FIRST_LINE, slurm_here.FIRST_LINE, "submit → first line: Carrel ÷ Slurm"),
    (tasks.THROUGHPUT, slurm_here.THROUGHPUT, "500 trivial tasks, rate: Carrel ÷ Slurm"),
)


def ratios(figures: list[Figure]) -> list[Figure]:
    """Quotients of what was measured in this run."""
    known = {figure.name: figure.value for figure in figures}
    return [
        Figure(name=title, value=known[ours] / known[theirs], unit="×")
        for ours, theirs, title in RATIOS
        if ours in known and theirs in known
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of: {', '.join(MEASUREMENTS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(MEASUREMENTS))
    if unknown:
        parser.error(f"there is no measurement {unknown[0]!r}; valid are: {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    for name in chosen.names or MEASUREMENTS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="carrel-bench-") as scratch:
            figures += MEASUREMENTS[name](Path(scratch))
    figures += ratios(figures)
    if chosen.json:
        print(json.dumps([figure.plain() for figure in figures], indent=2))
        return 0
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}\n")
    print("| figure | measured | spread | target | |\n|---|---|---|---|---|")
    for figure in figures:
        print(figure.row())
    return 0


if __name__ == "__main__":
    sys.exit(main())

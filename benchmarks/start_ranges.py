"""Do jobs start when they were told? `python benchmarks/start_ranges.py`.

A lab is simulated with generated jobs. Whoever has to wait is told at the submission when the job should start, and between
which two moments with a probability of 80 %, from what has been learned from the jobs that had ended by then. The range should
hold in 75 to 85 of 100 cases. The first tenth of the jobs, of which nothing is known yet, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from carrel.domain.placement import Hold
from carrel.server.rules import read_lab_rules
from carrel.simulate.generator import generate_jobs
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster
from figure import Figure

SEEDS = (1, 2, 3)
JOBS = 1200
CLUSTER = Cluster(nodes=8, gpus_per_node=8)


@dataclass(frozen=True, slots=True)
class Told:
    """What one owner was told, and what happened. Seconds after the submission."""

    start: float
    estimate: float | None
    between: tuple[float, float] | None


def replay(seed: int, *, load: float, share_weight: str | int) -> Iterator[Told]:
    """Everybody who had to wait."""
    trace = generate_jobs(seed, jobs=JOBS, gpus=CLUSTER.gpus, load=load)
    rules = read_lab_rules(Path("no such file"), {"priority.share_weight": share_weight})
    told: dict[int, tuple[Hold, float]] = {}

    def answer(hold: Hold, now: float) -> None:
        told[hold.job_id] = (hold, now)

    outcome = simulate_lab(rules, trace, nodes_of(CLUSTER), answer=answer)
    for run in outcome.runs[JOBS // 10 :]:
        if run.id in told:
            hold, now = told[run.id]
            between = hold.estimated_range
            yield Told(
                start=run.start - now,
                estimate=None if hold.estimated_start is None else hold.estimated_start - now,
                between=None if between is None else (between[0] - now, between[1] - now),
            )


def figures_of(name: str, told: Sequence[Told]) -> list[Figure]:
    """How often the range held, and how good the middle of it is."""
    ranged = [(one, one.between) for one in told if one.between is not None]
    early = sum(one.start < low - 1 for one, (low, _) in ranged)
    late = sum(one.start > high + 1 for one, (_, high) in ranged)
    held = 1 - (early + late) / len(ranged)
    off = median(max(one.start, 60.0) / max(one.estimate, 60.0) for one, _ in ranged if one.estimate is not None)
    spread = (
        f"{len(ranged):,} that waited; {early / len(ranged):.0%} started before it, {late / len(ranged):.0%} after it; "
        f"{len(told) - len(ranged)} without a range; real ÷ told {off:.2f} in the middle"
    )
    return [Figure(name=f"80 % range of the start holds, {name}", value=100 * held, unit="%", spread=spread, at_least=75.0)]


def measure(_scratch: Path) -> list[Figure]:
    """The figures of `make bench`."""
    found: list[Figure] = []
    for name, load, weight in (("fair share of 6 h", 0.8, "6h"), ("without fair share", 0.8, 0), ("a crowded lab", 1.1, "6h")):
        told = [one for seed in SEEDS for one in replay(seed, load=load, share_weight=weight)]
        found += figures_of(f"{CLUSTER.gpus} GPUs, {name}", told)
    return found


if __name__ == "__main__":
    for figure in measure(Path()):
        print(figure.row())

"""What is said of a job that holds GPUs and hardly uses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.launch import Usage
from carrel.core.domain.resources import Resources
from carrel.core.gpu_use import ENOUGH, low_use
from carrel.core.gpu_use.recorded import mean_of


def used(*means: float, cpu_seconds: float = 600.0, samples: int = ENOUGH) -> Usage:
    return Usage(cpu_seconds=cpu_seconds, gpu_mean={f"GPU-{n}": mean for n, mean in enumerate(means)}, gpu_samples=samples)


@pytest.mark.parametrize(
    ("usage", "cpus", "said"),
    [
        (used(4), 1, "Its GPU was busy for 4 % of 10 min. The processor was busy meanwhile: what feeds the GPU is"),
        (used(4), 8, "About one of its 8 processors was busy meanwhile: one process probably feeds the GPU."),
        (used(4, cpu_seconds=4800), 8, "All 8 processors were busy meanwhile"),
        (used(4, cpu_seconds=60), 8, "Its processors were idle, too: it probably waits for files"),
        (used(4, cpu_seconds=2400), 8, "Its processors were not the limit: steps are probably small for this GPU."),
        (used(0, 25), 8, "Its 2 GPUs were busy for 12 % of 10 min. One of them was never used: does the program"),
        (used(0, 0, 30), 8, "2 of them were never used"),
    ],
)  # fmt: skip
def test_what_it_probably_waits_for_is_named(usage: Usage, cpus: int, said: str) -> None:
    assert said in low_use(usage, Resources(cpus=cpus, gpus=len(usage.gpu_mean)), 600.0)


@given(st.lists(st.floats(0, 100), max_size=8), st.integers(0, 400), st.floats(0, 1e7), st.floats(-10, 1e6), st.integers(1, 64))
def test_nothing_is_said_of_what_is_busy_or_was_not_measured(
    means: list[float], samples: int, cpu_seconds: float, seconds: float, cpus: int
) -> None:
    usage = used(*means, cpu_seconds=cpu_seconds, samples=samples)
    said = low_use(usage, Resources(cpus=cpus, gpus=max(1, len(means))), seconds)
    mean = mean_of(usage.gpu_mean)
    assert bool(said) == (mean is not None and mean < 15 and samples >= ENOUGH and seconds > 0)

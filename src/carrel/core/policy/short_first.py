"""How much later a job counts as submitted in a class of service whose short jobs go first.

Ordered by predicted GPU time, jobs wait less on average (QSSF: Q. Hu et al., "Characterization and Prediction of Deep Learning
Workloads in Large-Scale GPU Datacenters", SC 2021). Pure orders of that kind let long jobs starve. Here the prediction is a
number of seconds of waiting, made once, and bounded: a job that has waited for long enough goes first in any case. Pure.
"""

from __future__ import annotations

from carrel.core.domain.expectation import Expected
from carrel.core.domain.placement import Waiting

#: Seconds by which a job counts as later, at most.
LATEST = 7 * 86400.0


def late_by(job: Waiting, factor: float, expected: Expected | None) -> float:
    """Return seconds: `factor` times the GPU time that `job` should take, a job without GPUs as if it had one.

    That is the median of what is `expected`, or its walltime where nothing is known.
    """
    seconds = job.resources.time if expected is None else expected.median
    return min(LATEST, factor * seconds * max(1, job.resources.total_gpus))

"""A job that holds GPUs and hardly uses them, and what it probably waits for. From samples, in words that say what was seen."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.core.domain.launch import Usage
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import format_duration
from carrel.core.gpu_use.recorded import mean_of

#: Percent of the time below which a GPU is hardly used.
LOW = 15.0
#: Samples after which something is said: ten minutes of the runner's, of every five seconds.
ENOUGH = 120
#: Of one processor: busy all the time, and idle.
_BUSY, _IDLE = 0.8, 0.3


def low_use(usage: Usage, resources: Resources, seconds: float) -> str:
    """Return what to say of an attempt that has computed for so many `seconds`; "" where there is nothing to say.

    A GPU counts as busy while a kernel runs on it, however small (nvmlDeviceGetUtilizationRates): one that is hardly busy by
    that measure is hardly used by any.
    """
    mean = mean_of(usage.gpu_mean)
    if mean is None or mean >= LOW or usage.gpu_samples < ENOUGH or seconds <= 0:
        return ""
    gpus = "Its GPU was" if len(usage.gpu_mean) == 1 else f"Its {len(usage.gpu_mean)} GPUs were"
    cause = _one_of_several(usage.gpu_mean) or _cause(usage, resources, seconds)
    return f"{gpus} busy for {mean:.0f} % of {format_duration(round(seconds))}. {cause}"


def _one_of_several(means: Mapping[str, float]) -> str:
    """GPUs that nobody uses beside one that somebody does."""
    unused = sum(mean < 1 for mean in means.values())
    if not 0 < unused < len(means):
        return ""
    those = "One of them was" if unused == 1 else f"{unused} of them were"
    return f"{those} never used: does the program know that it has {len(means)}?"


def _cause(usage: Usage, resources: Resources, seconds: float) -> str:
    cpus = resources.cpus * resources.nodes
    used = usage.cpu_seconds / seconds
    if used >= _BUSY * cpus:
        said = "The processor was" if cpus == 1 else f"All {cpus} processors were"
        return f"{said} busy meanwhile: what feeds the GPU is probably too slow. Ask for more CPUs, or prepare the data once."
    if _BUSY <= used < 2:
        return (
            f"About one of its {cpus} processors was busy meanwhile: one process probably feeds the GPU. Give the loader workers "
            "(num_workers)."
        )
    if used < _IDLE:
        return "Its processors were idle, too: it probably waits for files, for the network or for other processes."
    return "Its processors were not the limit: steps are probably small for this GPU. Try larger batches."

"""What reports take from the record of an attempt, by the names of the store's columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from carrel.core.domain.launch import Usage
from carrel.core.domain.node import SIMULATED, short_type
from carrel.core.domain.units import parse_size

_GPU = re.compile(r"(.+), ([1-9]\d{0,5}(?:\.\d)?[KMGT]), ([^,]+)")
_LONGEST_TYPE = 64


def measured(usage: Usage) -> Mapping[str, Any]:
    """Return what was measured; None for what was not."""
    return {
        "gpu_busy": mean_of(usage.gpu_mean),
        "gpu_sm": mean_of(usage.gpu_sm_mean),
        "gpu_energy": sum(usage.gpu_energy.values()) if usage.gpu_energy else None,
        "memory_peak": usage.memory_peak or None,
        "gpu_memory_peak": sum(usage.gpu_memory_peak.values()) if usage.gpu_memory_peak else None,
    }


def mean_of(percents: Mapping[str, float]) -> float | None:
    """Return the mean over GPUs, in percent; None: nothing was measured."""
    return min(100.0, sum(percents.values()) / len(percents)) if percents else None


def gpus_of(hardware: Mapping[str, str]) -> Mapping[str, Any]:
    """Return type and memory of the GPUs of an attempt, from the lines that its runner wrote ("NVIDIA H200, 140G, GPU-…")."""
    found = [match for name, line in hardware.items() if name.startswith("gpu_") and (match := _GPU.fullmatch(line))]
    if not found:
        return {}
    return {
        "gpu_type": "simulated" if found[0][3].startswith(SIMULATED) else short_type(found[0][1])[:_LONGEST_TYPE],
        "gpu_memory": min(2**60, sum(parse_size(match[2]) for match in found)),
    }

"""What workers call in the measurements of calls; the module travels, so it needs nothing else."""

from __future__ import annotations


def plus_one(number: int) -> int:
    return number + 1

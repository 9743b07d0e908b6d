"""One measured figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A name, a value with its unit, how it spread, and what it should be."""

    name: str
    value: float
    unit: str
    spread: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the target was reached; None when there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"reached": self.reached}

    def row(self) -> str:
        """One line of a Markdown table."""
        target = (
            f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}" if self.at_least is not None else ""
        )
        verdict = {True: "ok", False: "**missed**", None: ""}[self.reached]
        return f"| {self.name} | {self.value:.4g} {self.unit} | {self.spread} | {target} | {verdict} |"


def median(name: str, values: Sequence[float], unit: str, **targets: float) -> Figure:
    """The median of several measurements, with their range."""
    spread = f"{min(values):.4g} to {max(values):.4g}, n={len(values)}"
    return Figure(name=name, value=statistics.median(values), unit=unit, spread=spread, **targets)


def percentile(name: str, values: Sequence[float], unit: str, percent: int, **targets: float) -> Figure:
    """A percentile of many measurements (nearest rank)."""
    ranked = sorted(values)
    rank = max(0, -(-len(ranked) * percent // 100) - 1)
    return Figure(name=name, value=ranked[rank], unit=unit, spread=f"n={len(values)}", **targets)

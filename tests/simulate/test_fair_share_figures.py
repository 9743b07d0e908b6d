"""The figures by which fair share's weight was chosen (decision 60) are what `benchmarks/fair_share.py` finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAY = 24 * 3600.0


def rows() -> dict[str, list[str]]:
    """By share_weight and half-life: the cells of the table of the decision."""
    text = (ROOT / "docs/decisions/0060-fair-share-orders-weeks.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| share_weight, half_life |")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in cells}


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "fair_share", raising=False)


def light(name: str, hogs: int) -> str:
    import fair_share

    weight, _, half_life = name.replace(" d", "").partition(", ")
    rules = fair_share.rules_with(float(weight) * DAY, float(half_life or 1) * DAY)
    return " / ".join(f"{fair_share.backlog(seed, hogs).waits(rules, light=True):.1f}" for seed in fair_share.SEEDS)


def test_behind_a_backlog() -> None:
    assert light("7 d, 1 d", 1) == rows()["7 d, 1 d"][0]

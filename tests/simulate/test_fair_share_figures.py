"""The figures by which fair share's weight was chosen (decision 60) are what `benchmarks/fair_share.py` finds."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[2]
HOUR = 3600.0


def rows(heading: str) -> dict[float, list[list[float]]]:
    """By weight in hours: the columns of a table of the decision, with a number for each seed."""
    text = (ROOT / "docs/decisions/0060-fair-share-orders-weeks.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| `share_weight`") and heading in part]
    found = {}
    for line in table.splitlines()[2:]:
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[float(first.removesuffix(" h"))] = [[float(number) for number in cell.split(" / ")] for cell in cells]
    return found


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "fair_share", raising=False)


def nine_and_one(weight: float, seed: int) -> tuple[float, float, float]:
    import fair_share

    one = fair_share.run(fair_share.one_and_nine(seed), weight * HOUR)
    nine = fmean(user.mean_wait_seconds for user in one.users if user.user != "heap")
    heap = next(user.mean_wait_seconds for user in one.users if user.user == "heap")
    assert one.finish_time_fairness is not None
    return nine / HOUR, heap / HOUR, one.finish_time_fairness


@pytest.mark.parametrize("weight", [6.0, 168.0])
def test_one_and_nine(weight: float) -> None:
    nine, heap, fairness = rows("the nine wait")[weight]
    assert nine_and_one(weight, 1) == pytest.approx((nine[0], heap[0], fairness[0]), abs=0.06)


@pytest.mark.soak
def test_one_and_nine_with_every_weight_and_seed() -> None:
    for weight, (nine, heap, fairness) in rows("the nine wait").items():
        for seed in (1, 2, 3):
            expected = (nine[seed - 1], heap[seed - 1], fairness[seed - 1])
            assert nine_and_one(weight, seed) == pytest.approx(expected, abs=0.06), (weight, seed)


@pytest.mark.soak
def test_generated_jobs_with_every_weight_and_seed() -> None:
    import fair_share

    for weight, (mean, p95, longest, slowdown, fairness, _median) in rows("mean wait").items():
        for seed in (1, 2, 3):
            one = fair_share.run(fair_share.generated(seed), weight * HOUR)
            assert one.wait_seconds is not None
            waits = one.wait_seconds
            found = (waits.mean / HOUR, waits.p95 / HOUR, waits.max / HOUR, one.bounded_slowdown.mean, one.finish_time_fairness)
            told = tuple(column[seed - 1] for column in (mean, p95, longest, slowdown, fairness))
            assert found == pytest.approx(told, rel=0.01, abs=0.6), (weight, seed)

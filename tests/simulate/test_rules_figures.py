"""The figures of docs/scheduling.md, "Which rule suits which lab", are what `benchmarks/rules.py` finds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Columns of the table whose traces are in the repository.
HERE = ("Muri 3", "seed 1", "seed 2", "seed 3")


def told() -> Mapping[str, Mapping[str, tuple[float, float]]]:
    """By trace and rule: mean wait in hours, and mean slowdown."""
    text = (ROOT / "docs/scheduling.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| mean wait, h (mean slowdown) |")]
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    found: dict[str, dict[str, tuple[float, float]]] = {name.strip(" |"): {} for name in head[1:]}
    for rule, *cells in lines:
        for name, cell in zip(found, cells, strict=True):
            wait, slowdown = cell.rstrip(" |)").split(" (")
            found[name][rule.strip("`")] = float(wait), float(slowdown)
    return found


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "rules", raising=False)
    import rules as found

    return found


def test_the_lab_on_muris_third_trace(rules: object) -> None:
    from rules import CLUSTER, TRACES, measure, nodes_of, read_lab_rules, read_trace, short_first, simulate_lab

    trace = read_trace(TRACES / "muri" / "trace3.csv")
    for rule, one in (("carrel", read_lab_rules(None)), ("short_first 1", short_first(read_lab_rules(None), 1.0))):
        found = measure(simulate_lab(one, trace, nodes_of(CLUSTER)), trace)
        assert found.waits is not None
        assert found.slowdown is not None
        assert (found.waits.mean / 3600, found.slowdown.mean) == pytest.approx(told()["Muri 3"][rule], abs=0.6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_rule_on_every_trace_of_the_repository(rules: object) -> None:
    from rules import measure, runs, works

    for name, (trace, cluster) in zip(HERE, works([], 64), strict=True):
        for rule, outcome in runs(trace, cluster):
            if rule in told()[name]:
                found = measure(outcome, trace)
                assert found.waits is not None
                assert found.slowdown is not None
                assert (found.waits.mean / 3600, found.slowdown.mean) == pytest.approx(told()[name][rule], rel=0.01, abs=0.6)

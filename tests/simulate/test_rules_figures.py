"""The figures of docs/scheduling.md, "Which rule suits which lab", are what `benchmarks/rules.py` finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from carrel.simulate.measures import Measures, Spread

ROOT = Path(__file__).parents[2]
#: Columns of the table whose traces are in the repository.
HERE = ("Muri 3", "Muri 3′", "seed 1", "seed 2", "seed 3")
#: Rows of the second table.
ROWS = 18


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


@pytest.mark.slow
def test_the_lab_on_muris_third_trace(rules: object) -> None:
    from rules import CLUSTER, MOVE_TIME, TRACES, measure, nodes_of, read_lab_rules, read_trace, short_first, simulate_lab

    trace, default = read_trace(TRACES / "muri" / "trace3.csv"), read_lab_rules(None)
    for rule, one in (("carrel", default), ("short_first 1", short_first(default, 1.0))):
        found = measure(simulate_lab(one, trace, nodes_of(CLUSTER), move=MOVE_TIME), trace)
        assert (found.wait_seconds.mean / 3600, found.bounded_slowdown.mean) == pytest.approx(told()["Muri 3"][rule], abs=0.6)


def told_of(measure: str, rule: str) -> Mapping[str, float]:
    """What the second table says of a rule, by trace, as numbers."""
    return {name: float(cell.replace(",", "")) for name, cell in cells_of(measure, rule).items()}


def cells_of(measure: str, rule: str) -> Mapping[str, str]:
    """What the second table says of a rule, by trace."""
    text = (ROOT / "docs/scheduling.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| | Muri 3 |")]
    heads, _, *lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    (row,) = [line for line in lines if line[0] == f"{measure}, `{rule}`"]
    names = [name.strip(" |") for name in heads if name.strip(" |")]
    return dict(zip(names, (cell.strip(" |") for cell in row[1:]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), [("Muri 3", "trace3.csv"), ("Muri 3′", "trace3_pr.csv")])
def test_what_the_fields_rules_come_to(rules: object, name: str, file: str) -> None:
    from rules import CLUSTER, EASY_RULES, MOVE_TIME, TRACES, measure, nodes_of, read_trace, simulate_baseline, simulate_lab

    trace = read_trace(TRACES / "muri" / file)
    easy = simulate_lab(EASY_RULES, trace, nodes_of(CLUSTER), move=MOVE_TIME)
    for rule, outcome in (("easy", easy), ("tiresias", simulate_baseline("tiresias", trace, CLUSTER, move=MOVE_TIME))):
        one = measure(outcome, trace)
        assert one.completion_seconds.mean / 3600 == pytest.approx(told_of("mean JCT, h", rule)[name], abs=0.6)
        assert one.makespan_seconds / 3600 == pytest.approx(told_of("makespan, h", rule)[name], abs=0.6)


#: Rows of the second table, and what they are.
MEASURES: Mapping[str, Callable[[Measures], float]] = {
    "mean JCT, h": lambda one: _spread(one.completion_seconds).mean / 3600,
    "p95 wait, h": lambda one: _spread(one.wait_seconds).p95 / 3600,
    "longest wait, h": lambda one: _spread(one.wait_seconds).max / 3600,
    "makespan, h": lambda one: one.makespan_seconds / 3600,
    "fairness": lambda one: one.finish_time_fairness or 0.0,
    "stops": lambda one: one.preemptions,
}


def _spread(found: Spread | None) -> Spread:
    assert found is not None
    return found


def second_table() -> list[tuple[str, str]]:
    """The measure and the rule of each row."""
    rows = [line.strip("|").split(" | ")[0].strip() for line in (ROOT / "docs/scheduling.md").read_text().splitlines()]
    return [(name, rule) for name in MEASURES for row in rows if row.startswith(f"{name}, `") for rule in [row.split("`")[1]]]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", HERE)
def test_every_rule_on_every_trace_of_the_repository(rules: object, name: str) -> None:
    from rules import CLUSTER, TRACES, completions_alone, measure, read_trace, runs, works

    prime = read_trace(TRACES / "muri" / "trace3_pr.csv"), CLUSTER
    first, *generated = works([], 64)
    trace, cluster = dict(zip(HERE, (first, prime, *generated), strict=True))[name]
    alone, rows = completions_alone(trace, cluster.gpus), second_table()
    assert len(rows) == ROWS
    for rule, outcome in runs(trace, cluster):
        found = measure(outcome, trace, alone=alone)
        if rule in told()[name]:
            expected = pytest.approx(told()[name][rule], rel=0.01, abs=0.6)
            assert (_spread(found.wait_seconds).mean / 3600, found.bounded_slowdown.mean) == expected, rule
        for row in [one for one, of in rows if of == rule and not (one == "fairness" and name.startswith("Muri"))]:
            shown = cells_of(row, rule)[name]
            assert MEASURES[row](found) == pytest.approx(float(shown.replace(",", "")), rel=0.01, abs=0.6), (row, rule)

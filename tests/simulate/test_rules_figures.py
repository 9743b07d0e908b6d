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
    from rules import (
        CLUSTER,
        MOVE_TIME,
        TRACES,
        measure,
        nodes_of,
        read_lab_rules,
        read_trace,
        rotating,
        short_first,
        simulate_lab,
    )

    trace, default = read_trace(TRACES / "muri" / "trace3.csv"), read_lab_rules(None)
    changed = (("carrel", default), ("short_first 1", short_first(default, 1.0)), ("rotate 1h", rotating(default, 3600)))
    for rule, one in changed:
        found = measure(simulate_lab(one, trace, nodes_of(CLUSTER), move=MOVE_TIME), trace)
        assert found.waits is not None
        assert found.slowdown is not None
        assert (found.waits.mean / 3600, found.slowdown.mean) == pytest.approx(told()["Muri 3"][rule], abs=0.6)


def told_of(measure: str, rule: str) -> Mapping[str, float]:
    """What the second table says of a rule, by trace."""
    text = (ROOT / "docs/scheduling.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| | Muri 3 |")]
    heads, _, *lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    (row,) = [line for line in lines if line[0] == f"{measure}, `{rule}`"]
    names = [name.strip(" |") for name in heads if name.strip(" |")]
    return dict(zip(names, (float(cell.strip(" |").replace(",", "")) for cell in row[1:]), strict=True))


@pytest.mark.parametrize(("name", "file"), [("Muri 3", "trace3.csv"), ("Muri 3′", "trace3_pr.csv")])
def test_rotation_is_within_a_tenth_of_tiresias_and_no_longer_than_easy(rules: object, name: str, file: str) -> None:
    from rules import CLUSTER, MOVE_TIME, TRACES, measure, nodes_of, read_lab_rules, read_trace, rotating, run_policy

    trace, nodes, default = read_trace(TRACES / "muri" / file), nodes_of(CLUSTER), read_lab_rules(None)
    easy = measure(run_policy("easy", trace, nodes, default, move=MOVE_TIME), trace)
    tiresias = measure(run_policy("tiresias", trace, nodes, default, move=MOVE_TIME), trace)
    found = measure(run_policy("carrel", trace, nodes, rotating(default, 3600), move=MOVE_TIME), trace)
    assert found.completions is not None
    assert tiresias.completions is not None
    assert found.completions.mean <= 1.1 * tiresias.completions.mean
    assert found.makespan <= easy.makespan
    for rule, one in (("easy", easy), ("tiresias", tiresias), ("rotate 1h", found)):
        assert one.completions is not None
        assert one.completions.mean / 3600 == pytest.approx(told_of("mean JCT, h", rule)[name], abs=0.6)
        assert one.makespan / 3600 == pytest.approx(told_of("makespan, h", rule)[name], abs=0.6)
    assert found.preemptions == told_of("stops", "rotate 1h")[name]


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

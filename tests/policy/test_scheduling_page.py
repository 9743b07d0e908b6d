"""The page about scheduling says what the code does."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import time
from pathlib import Path
from typing import Any

from carrel.domain.job import REASONS
from carrel.policy.order import in_order
from carrel.policy.place import place

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text()


def run_example() -> tuple[str, dict[str, Any]]:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code[1], "docs/scheduling.md", "exec"), names)
    return printed.getvalue(), names


def test_the_example_prints_what_the_page_shows() -> None:
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert run_example()[0] == shown[1]


def test_the_worths_in_the_table_are_right_and_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| (?:.* = )?(\d+) \|", PAGE, re.MULTILINE)
    _, names = run_example()
    snapshot, now = names["snapshot"], names["now"]
    ordered = in_order(snapshot.waiting, snapshot.qos, snapshot.age_weight)
    worths = [(job.id, job.priority * snapshot.age_weight + now - job.submitted_at) for job in ordered]
    assert worths == [(int(job), float(worth)) for job, worth in rows]


def test_every_code_on_the_page_is_a_reason() -> None:
    codes = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(codes) == 7
    assert set(codes) <= set(REASONS)


def test_a_cycle_of_ten_thousand_jobs_is_nowhere_near_slow() -> None:
    """`benchmarks/place.py` has the figures; this fails when a cycle is ten times over its target of 50 ms."""
    spec = importlib.util.spec_from_file_location("benchmark_place", ROOT / "benchmarks" / "place.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for state in benchmark.STATES:
        snapshot = benchmark.snapshot(state, 10_000, 250)
        begin = time.perf_counter()
        placement = place(snapshot, benchmark.NOW)
        assert time.perf_counter() - begin < 0.5
        assert (len(placement.starts) > 0) == (state != "full")

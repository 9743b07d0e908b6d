"""The page about scheduling says what the code does."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from carrel.core.domain.job import REASONS
from carrel.core.policy.order import order_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scheduling.md").read_text()


def run_example(number: int = 0) -> tuple[str, dict[str, Any]]:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/scheduling.md", "exec"), names)
    return printed.getvalue(), names


def test_the_examples_print_what_the_page_shows() -> None:
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert [run_example(number)[0] for number in range(2)] == shown


def test_the_worths_in_the_table_are_right_and_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| (?:.* = )?(\d+) \|", PAGE, re.MULTILINE)
    _, names = run_example()
    snapshot, now = names["snapshot"], names["now"]
    ordered = order_of(snapshot, {}).line(snapshot.waiting)
    worths = [(job.id, job.priority * snapshot.age_weight + now - job.submitted_at) for job in ordered]
    assert worths == [(int(job), float(worth)) for job, worth in rows]


def test_every_code_on_the_page_is_a_reason() -> None:
    codes = re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE)
    assert len(codes) == 10
    assert set(codes) <= set(REASONS)

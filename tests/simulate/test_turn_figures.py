"""The figures of docs/scheduling.md about turns in estimates are what `benchmarks/start_ranges.py --turns` finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def told() -> list[str]:
    """The rows of the table."""
    text = (ROOT / "docs/scheduling.md").read_text()
    (table,) = [part for part in text.split("\n\n") if part.startswith("| load | waited | mean error")]
    return table.splitlines()[2:]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_figure_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "start_ranges", raising=False)
    import start_ranges

    assert list(start_ranges.turns()) == told()

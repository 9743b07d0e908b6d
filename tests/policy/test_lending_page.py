"""docs/lending.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from carrel.core.domain.lease import LendingRules
from carrel.core.policy.lend_reasons import LENDING_REASONS
from carrel.lab.server.settings import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "lending.md").read_text()


def test_every_reason_is_explained_and_no_other() -> None:
    section = PAGE.partition("\n## Why a cell waits\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert {name.strip("` "): text.strip() for name, text in rows} == LENDING_REASONS


def test_the_numbers_are_those_of_the_rules() -> None:
    rules, settings = LendingRules(), {setting.name: setting.default for setting in SETTINGS}
    assert (rules.time_slice, rules.margin, rules.unknown_room) == (60.0, 1024**3, 0.5)
    assert settings["time_slice"] == 60
    assert (settings["task_turn"], settings["task_share"]) == (rules.task_turn, rules.task_share * 100) == (2, 10)
    assert "`task_turn` (2 s)" in PAGE
    assert "(`task_share`, 10 percent)" in PAGE
    assert "`time_slice`, 60 s" in PAGE
    assert "with 1 GiB beside it" in PAGE
    assert "half of the GPU" in PAGE

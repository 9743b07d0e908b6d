"""docs/simulate.md says what the code does: its commands run, and its numbers are computed again."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from carrel.cli.main import main
from carrel.cli.simulate import simulate_command
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.lab.walltime import USUAL
from carrel.simulate.measures import Measures, measure
from carrel.simulate.notebooks import cells as notebook_cells
from carrel.simulate.notebooks.by_policy import SWAP_SECONDS
from carrel.simulate.study import CARREL, EASY
from carrel.simulate.tables import notebooks_table, policies_table
from carrel.simulate.trace import Outcome, Run, Trace, TraceJob
from carrel.simulate.traces import FORMS
from foreign_traces import read_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulate.md").read_text()
Simulate = Callable[..., str]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """Runs the command where `lab.swf` is: Muri's third trace in that form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CARREL_HOME", str(tmp_path))
    monkeypatch.delenv("CARREL_URL", raising=False)
    jobs = [
        f"{job.id} {job.submitted:g} 0 {job.duration:g} {job.gpus} -1 -1 {job.gpus} -1 -1 1 1 1 1 1 1 -1 -1"
        for job in read_trace(ROOT / "tests" / "data" / "traces" / "muri" / "trace3.csv").jobs
    ]
    (tmp_path / "lab.swf").write_text("\n".join(["; MaxNodes: 8", "; MaxProcs: 64", *jobs, ""]))

    def run(*words: str) -> str:
        assert main(["simulate", *words]) == 0
        return capsys.readouterr().out

    return run


def section(title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return match[1]


def cells(text: str) -> list[list[str]]:
    """Rows of the tables in `text`, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) > 1]


def test_the_commands_run_and_begin_as_shown(simulate: Simulate) -> None:
    blocks = re.findall(r"```console\n\$ carrel simulate(.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for words, shown in blocks:
        if shlex.split(words)[:1] == ["lab.swf"]:  # the other one needs a lab: tests/cli/test_simulate.py
            assert simulate(*shlex.split(words)).startswith(shown)


def test_the_numbers_of_the_question_are_right(simulate: Simulate) -> None:
    for more, change in (("+4", "4 d 8 h +3 d 14 h +-16.9 %"), ("+8", r".* +-51\.0 %")):
        assert re.search(rf"^Wait, mean +{change}$", simulate("lab.swf", "--what-if", f"gpus={more}"), re.MULTILINE)
    assert "falls by 16.9 %, from 4 d 8 h to 3 d 14 h" in PAGE
    jobs = read_trace(ROOT / "tests" / "data" / "traces" / "muri" / "trace3.csv").jobs
    assert len(jobs) == 992
    assert sum(job.gpus == 8 for job in jobs) / len(jobs) == pytest.approx(0.7, abs=0.01)


def test_without_users_and_classes_carrel_is_easy(simulate: Simulate) -> None:
    easy, carrel = simulate("lab.swf", "--csv").splitlines()[1:]
    assert easy.partition(",")[2].replace("easy", "") == carrel.partition(",")[2].replace("carrel", "")


def full() -> Measures:
    """Measures that have something to tell in every column."""
    runs = [Run(1, "ada", 1, 0, 0, 10, 10, 1), Run(2, "bob", 1, 0, 10, 20, 10)]
    trace = Trace(name="t", jobs=[TraceJob(id=run.id, submitted=0, duration=10, gpus=1) for run in runs])
    outcome = Outcome(policy="p", trace="t", gpus=1, runs=runs, refused=[(3, "large")])
    return replace(measure(outcome, trace, alone={1: 10, 2: 10}), gpu_hours_lost=1.0)


def test_every_column_is_explained_and_no_other() -> None:
    told = {name for row in cells(section("Reading the table")) for name in re.findall(r"`([A-Z][^`]*|p95[^`]*)`", row[0])}
    assert told == set(policies_table([full()])[0][1:])
    notebooks = section("Notebooks")
    assert all(f"`{head}`" in notebooks for head in notebooks_table([])[0][1:])
    assert f"({SWAP_SECONDS:g} s for\n  each GPU)" in PAGE


def test_every_column_of_a_file_of_cells_is_explained() -> None:
    told = {name for row in cells(section("Notebooks")) for name in re.findall(r"`([a-z_]+)`", row[0])}
    assert told == {*notebook_cells.COLUMNS, "user", "granted", "returned", "session_ended"}


def test_every_policy_and_form_is_explained_and_no_other() -> None:
    policies = {name for row in cells(section("Reading the table")) for name in re.findall(r"`([a-z][a-z-]*)`", row[0])}
    assert policies == {EASY, CARREL}
    assert {row[0].strip("`") for row in cells(section("What it reads"))} - {"form", "---"} == set(FORMS)
    assert (USUAL[0], USUAL[1], USUAL[2], USUAL[-1]) == (600, 1800, 3600, 30 * 86400)


def test_every_option_is_in_the_list_of_commands() -> None:
    commands = (ROOT / "docs" / "commands.md").read_text()
    told = commands.partition("### carrel simulate\n")[2].partition("\n### ")[0]
    names = {name.replace("_", "-").removeprefix("as-") for name in inspect.signature(simulate_command).parameters}
    assert all(f"--{name}" in told for name in names - {"trace", "home"})


def test_no_rule_knows_the_time_of_day() -> None:
    names = {field.name for kind in (LabRules, QoS) for field in fields(kind)}
    assert not {name for name in names if "hour" in name or "night" in name or "day" in name}

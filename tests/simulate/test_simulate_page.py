"""docs/simulate.md says what the code does: its commands run, and its numbers are computed again."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.cli.main import main
from carrel.core.domain.lease import LendingRules
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.simulate.generator import generate_jobs
from carrel.simulate.generator.fitted_philly import FITTED
from carrel.simulate.lab.walltime import USUAL
from carrel.simulate.measures import Measures, measure
from carrel.simulate.notebooks.modes import SWAP_SECONDS
from carrel.simulate.outcome import Outcome, Run
from carrel.simulate.policies import POLICIES
from carrel.simulate.report import notebooks_table, policies_table, together_table
from carrel.simulate.together.mode import BUS, DRIVER, MODES
from carrel.simulate.traces import FORMS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulate.md").read_text()
Simulate = Callable[..., str]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CARREL_HOME", str(tmp_path))
    monkeypatch.delenv("CARREL_URL", raising=False)

    def run(*words: str) -> str:
        assert main(["simulate", *words]) == 0
        return capsys.readouterr().out

    return run


def found(simulate: Simulate, *words: str) -> Any:
    return json.loads(simulate(*words, "--json"))


def section(title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def cells(text: str) -> list[list[str]]:
    """Rows of the tables in `text`, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) > 1]


def test_the_commands_run_and_begin_as_shown(simulate: Simulate) -> None:
    blocks = re.findall(r"```console\n\$ carrel simulate(.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for words, shown in blocks:
        if shlex.split(words)[:1] != ["lab"]:  # needs one: tests/cli/test_simulate.py
            assert simulate(*shlex.split(words)).startswith(shown)


QUESTION = [row for row in cells(section("From a question to a decision")) if row[0].isdigit()]
#: What the page says of all seeds: the least and the most that waits become shorter, in percent.
LESS = {"+4": (1, 29), "+8": (39, 61)}


def shorter(simulate: Simulate, seed: str, now: str, *then: str) -> list[float]:
    """How much shorter waits become with more GPUs, by a seed whose row on the page is right."""
    found_now = []
    for more, shown in zip(LESS, then, strict=True):
        before, after = found(simulate, "--seed", seed, "--what-if", f"gpus={more}")["policies"]
        waits = before["wait_seconds"]["mean"], after["wait_seconds"]["mean"]
        assert [f"{wait / 3600:.1f}" for wait in waits] == [now, shown]
        found_now.append(1 - waits[1] / waits[0])
    return found_now


def test_the_numbers_of_the_question_are_right(simulate: Simulate) -> None:
    """By one seed; whoever changes what is simulated changes that of all. The others: see below."""
    assert len(QUESTION) == 5
    shorter(simulate, *QUESTION[0])
    for number, (least, most) in enumerate(LESS.values(), 2):
        shown = [100 * (1 - float(row[number]) / float(row[1])) for row in QUESTION]
        assert (min(shown), max(shown)) == (pytest.approx(least, abs=1), pytest.approx(most, abs=1))
    table = simulate("--what-if", "gpus=+4")
    assert re.search(r"^Wait, mean +1 d 23 h +1 d 22 h +-1.3 %$", table, re.MULTILINE)
    assert sum(size.share for size in FITTED.sizes if size.gpus == 8) == pytest.approx(0.7, abs=0.01)


@pytest.mark.soak
def test_the_numbers_of_the_question_are_right_for_every_seed(simulate: Simulate) -> None:
    rows = [shorter(simulate, *row) for row in QUESTION]
    for found_now, (least, most) in zip(zip(*rows, strict=True), LESS.values(), strict=True):
        assert 100 * min(found_now) == pytest.approx(least, abs=0.6)
        assert 100 * max(found_now) == pytest.approx(most, abs=0.6)


def test_without_users_and_classes_carrel_is_easy(simulate: Simulate) -> None:
    easy, carrel = found(simulate, "tests/data/traces/muri/trace3.csv", "--policy", "easy", "--policy", "carrel")["policies"]
    assert {**easy, "policy": ""} == {**carrel, "policy": ""}


def test_the_numbers_of_notebooks_are_right(simulate: Simulate) -> None:
    table = [re.split(r" {2,}", line) for line in simulate("--notebooks").splitlines()]
    (heads,) = [line for line in table if line[0] == "Mode"]
    rows = {line[0]: dict(zip(heads, line, strict=True)) for line in table if len(line) == len(heads)}
    shown = [row for row in cells(section("Notebooks")) if row[0] in rows]
    assert len(shown) == 5
    for mode, *numbers in shown:
        assert numbers == [rows[mode][head] for head in ("GPUs for no wait", "GPUs for ≤ 1 min", "GPU-h held", "Computing")]
    assert f"({SWAP_SECONDS:g} s for\n  each GPU)" in PAGE


@pytest.mark.soak
def test_the_numbers_of_the_broker_are_right(simulate: Simulate) -> None:
    rows = {row[1]: row for row in cells(section("Notebooks")) if row[0] == "generated"}
    for mode, options in (("`carrel`", ()), ("`carrel, homes move` (`--homes-move`)", ("--homes-move",))):
        found_now = found(simulate, "--notebooks", "--broker", *options)["notebooks"]
        lazy, broker = (row["gpus_for_p95_wait_of_0_seconds"] for row in found_now[-2:])
        minute = found_now[-1]["gpus_for_p95_wait_of_60_seconds"]
        assert rows[mode][2:4] == [str(broker), str(minute)]
        assert rows[mode][4].startswith(f"{broker / lazy:.2f},")


def full() -> Measures:
    """Measures that have something to tell in every column."""
    runs = [Run(1, "ada", 1, 0, 0, 10, 10, 1), Run(2, "bob", 1, 0, 10, 20, 10)]
    one = measure(Outcome(policy="p", trace="t", gpus=1, runs=runs, refused=[(3, "large")]), alone={1: 10, 2: 10})
    return replace(one, gpu_hours_lost=1.0)


def test_every_column_is_explained_and_no_other() -> None:
    told = {name for row in cells(section("Reading the table")) for name in re.findall(r"`([A-Z][^`]*|p95[^`]*)`", row[0])}
    assert told == set(policies_table([full()]).heads[1:])
    notebooks = section("Notebooks")
    assert all(f"`{head}`" in notebooks for head in notebooks_table([]).heads[1:])


def test_every_number_of_notebooks_with_tasks_is_explained() -> None:
    told = section("Notebooks with tasks behind them")
    for name, *_ in together_table([]).rows:
        noun, _, statistic = name.partition(", ")
        assert f"`{noun}`" in told, noun
        assert not statistic or f"`{statistic}`" in told, name
    for mode in MODES:
        assert f"`{mode.name}`" in told
    way = re.search(
        r"([\d.]+) GB/s each way and ([\d.]+) s for a stop; ([\d.]+) GB/s out, ([\d.]+) GB/s back, ([\d.]+) s and ([\d.]+) s",
        told,
    )
    assert way is not None
    assert [float(number) for number in way.groups()] == [
        BUS.out / 1e9,
        BUS.fixed_out,
        DRIVER.out / 1e9,
        DRIVER.back / 1e9,
        DRIVER.fixed_out,
        DRIVER.fixed_back,
    ]
    rules = LendingRules()
    assert f"(`task_turn`, {rules.task_turn:g} s)" in told
    assert f"(`task_share`, {rules.task_share:g})" in told


def test_every_policy_and_form_is_explained_and_no_other() -> None:
    policies = {name for row in cells(section("Reading the table")) for name in re.findall(r"`([a-z][a-z-]*)`", row[0])}
    assert policies == set(POLICIES)
    assert {row[0].strip("`") for row in cells(section("What it reads"))} - {"form", "---"} == set(FORMS)


def test_what_is_said_of_generated_jobs_is_right() -> None:
    assert (FITTED.people.users, FITTED.people.activity, FITTED.people.novelty) == (40, 1.0, 0.25)
    made = generate_jobs(1, jobs=1000, gpus=64, load=0.9)
    assert {job.qos for job in made.jobs} == {None}
    assert (USUAL[0], USUAL[1], USUAL[2], USUAL[-1]) == (600, 1800, 3600, 30 * 86400)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_at_half_of_the_load_most_jobs_start_at_once(simulate: Simulate, seed: str) -> None:
    (carrel,) = found(simulate, "--load", "0.5", "--seed", seed, "--policy", "carrel")["policies"]
    assert carrel["wait_seconds"]["median"] == 0


def test_no_rule_knows_the_time_of_day() -> None:
    names = {*LabRules.__slots__, *QoS.__slots__}
    assert not {name for name in names if "hour" in name or "night" in name or "day" in name}

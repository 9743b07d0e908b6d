"""`carrel report roi` against a lab."""

from __future__ import annotations

import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script
from roi_sample import COSTS, EXAMPLE

from carrel.cli.roi.command import measure, read_cost_file
from carrel.client import Client
from carrel.core.worth import Period
from carrel.wire.v1 import ResourceRequest

PAGE = Path(__file__).parents[2] / "docs" / "roi.md"


@pytest.mark.gate
def test_the_examples_of_the_page_work(carrel: CommandLine, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "roi")
    lines = re.findall(r"^\$ carrel (.*?)(?: > .*)?$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        assert carrel(*shlex.split(line), cwd=tmp_path).code == 0, line
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "The GPUs of this lab are simulated." in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert (tmp_path / "figures.csv").read_text().startswith("id,name,value,unit,formula,source\n")
    summary = carrel(*shlex.split(lines[1]), cwd=tmp_path).out
    assert "(simulated GPUs)" in summary
    assert "Break-even utilisation with Cloud A" in summary


def test_what_the_lab_measured_is_in_it(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    job = client.submit_project(script(tmp_path, "echo hello\n"), name="worth", resources=ResourceRequest(gpus=1))
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    costs = tmp_path / "costs.toml"
    year = datetime.now(UTC).year
    costs.write_text(COSTS.read_text().replace("jobs = [1]", f"jobs = [{job.id}, 999999]").replace("2026]", f"{year}]"))
    today = datetime.now(UTC).date()
    # The command leaves today out: it is not over.
    period = Period(today - timedelta(days=1), today + timedelta(days=2))
    model = read_cost_file(costs).model
    found = measure(client, period, model)
    used = client.report_use(begin=str(period.begin), end=str(period.end), by="user")
    assert found.held["completed"] > 0
    # What is not over goes on while we look.
    assert 0 < sum(found.held.values()) <= Fraction(used.total.held) / 3600 + Fraction(1, 10**9)
    assert set(found.users) == {row.name for row in used.rows if row.attempts}
    assert sum(found.accounts.values()) > 0
    if period.year == year:
        assert found.cited == {job.id: "COMPLETED", 999999: None}
    assert f"--from {period.begin} --to {period.end}" in found.source


def test_others_do_not_see_it(carrel: CommandLine, other: CommandLine) -> None:
    told = other("report", "roi", "--year", "2026", "--costs", str(COSTS))
    assert told.code not in (0, 1)
    assert "Ask an administrator of the lab." in told.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--year", "2026", "--costs", "/nonexistent/costs.toml"), "/nonexistent/costs.toml cannot be read"),
        (("--year", "2026", "--costs", str(COSTS), "-o", "report.txt"), "Valid are .html, .pdf, .csv."),
        (("--year", "2026", "--costs", str(COSTS), "-o", "/nonexistent/report.html"), "cannot be written"),
        (("--year", "2026", "--costs", str(EXAMPLE / "report.html"), "-o", str(EXAMPLE / "report.html")), "is the cost file"),
        (("--year", "2026", "--costs", str(EXAMPLE / "report.html")), "is not valid TOML"),
        (("--year", "9000", "--costs", str(COSTS)), "no day of 9000 is over"),
        (("--year", "soon", "--costs", str(COSTS)), '--year is "soon". Say a whole number.'),
        (("--year", "2026"), "--costs"),
    ],
)
def test_what_cannot_be_made_is_said_with_what_to_do(carrel: CommandLine, words: tuple[str, ...], says: str) -> None:
    told = carrel("report", "roi", *words)
    assert told.code == 2, told.err
    assert says in re.sub(r"\s+", " ", told.err)

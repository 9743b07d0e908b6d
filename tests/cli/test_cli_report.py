"""`carrel usage` and `carrel report`, in a lab that has done some work."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.wire.v1 import ResourceRequest

PAGE = Path(__file__).parents[2] / "docs" / "use.md"


@pytest.mark.gate
def test_the_examples_of_the_page_work(carrel: CommandLine) -> None:
    lines = re.findall(r"^\$ carrel (.*?)(?: > .*)?$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        assert carrel(*shlex.split(line)).code == 0, line


def test_use_and_starts_as_a_table_as_csv_and_as_json(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    """The table has hours, the others have seconds; all say the same."""
    job = client.submit_project(script(tmp_path, "echo hello\n"), name="reported")
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    found = carrel("usage", "--by", "qos", "--json").json
    (row,) = (one for one in found["rows"] if one["name"] == job.qos)
    assert row["jobs"] >= 1
    lines = csv.DictReader(io.StringIO(carrel("usage", "--by", "qos", "--csv").out))
    (line,) = (one for one in lines if one["name"] == job.qos)
    assert int(line["jobs"]) >= row["jobs"]
    table = carrel("usage", "--by", "qos").out
    assert f"\n{job.qos} " in table
    assert table.startswith("GPU-hours of everybody, ")
    starts = carrel("report", "starts", "--json").json
    assert {one["qos"] for one in starts["classes"]} >= {job.qos}
    assert f"\n{job.qos} " in carrel("report", "starts").out
    assert "No session that borrows GPUs was open" in carrel("report", "sessions").out
    assert carrel("report", "sessions", "--csv").out.startswith(
        "name,sessions,cells,gpu_seconds,measured,busy,computed,waited,paused,"
    )
    assert carrel("report", "sessions", "--json", "--by", "qos").json["rows"] == []
    assert carrel("report", "sessions", "--by", "colour").code == 2
    assert carrel("report", "starts", "--csv").out.startswith("qos,waited_count,waited_median,waited_p95,")


def test_what_nobody_did_and_what_cannot_be_asked(carrel: CommandLine) -> None:
    past = ("--from", "2019-12-01", "--to", "2020-01-01")
    assert "No job was there in that time." in carrel("usage", *past).out
    assert "No job got its place in that time." in carrel("report", "starts", *past).out
    assert carrel("usage", *past, "--csv").out.splitlines()[1:] == []
    for wrong in (("--by", "colour"), ("--from", "2020-01-02", "--to", "2020-01-01"), ("--from", "soon"), ("--csv", "--json")):
        assert carrel("usage", *wrong).code == 2, wrong
    assert carrel("usage", "--anonymous").code == 2
    assert "of fewer than five people" in carrel("usage", "--by", "account", "--anonymous").out


def test_jobs_in_formats_of_others(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    """The examples of the page, and what is read back of them."""
    job = client.submit_project(script(tmp_path, "sleep 1\n"), name="a|b", resources=ResourceRequest(gpus=1))
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    page = (Path(__file__).parents[2] / "docs" / "exports.md").read_text()
    lines = re.findall(r"^\$ carrel (.*)$", page, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        # The range of the page's example is another month.
        done = carrel(*shlex.split(re.sub(" --(from|to) [0-9-]+", "", line)), cwd=tmp_path)
        assert done.code == 0, (line, done.err)
    mine = [line for line in (tmp_path / "lab.log").read_text().splitlines() if line.startswith(f"{job.id}|")]
    assert [line.split("|", 25)[-1] for line in mine] == ["a|b"]
    head = carrel("report", "jobs").out.splitlines()[0].split("|")
    values = dict(zip(head, mine[0].split("|", len(head) - 1), strict=True))
    assert (values["State"], values["ExitCode"], values["Cluster"]) == ("COMPLETED", "0:0", "carrel")
    assert "gres/gpu=1" in values["AllocTRES"]
    (told,) = (one for one in carrel("report", "jobs", "--json").json["attempts"] if one["job"] == job.id)
    assert (told["name"], told["gpus"], told["state"], told["attempt"]) == ("a|b", 1, "COMPLETED", 1)
    swf = [line.split() for line in (tmp_path / "lab.swf").read_text().splitlines() if not line.startswith(";")]
    assert [int(line[0]) for line in swf] == list(range(1, len(swf) + 1))
    assert sorted(int(line[1]) for line in swf) == [int(line[1]) for line in swf]
    for form in ("log", "swf"):
        told = carrel("simulate", str(tmp_path / f"lab.{form}"), "--json").json
        assert told["policies"][0]["jobs"] >= 1, form


def test_a_key_gives_the_same_numbers_again(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    job = client.submit_project(script(tmp_path, "true\n"), name="the-name-of-it")
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"

    def mine(*more: str) -> str:
        found = carrel("report", "jobs", "--format", "xdmod", "--anonymous", *more, cwd=tmp_path)
        (line,) = (line for line in found.out.splitlines() if line.startswith(f"{job.id}|"))
        assert job.owner not in line.split("|")
        assert "the-name-of-it" not in line
        return line

    kept = mine("--key", "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert mine("--key", "key") == kept
    assert len({kept, mine(), mine()}) == 3


def test_exports_that_cannot_be_made(carrel: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("ada")
    for wrong in (
        ("--format", "pbs"), ("--format", "swf", "--json"), ("--key", "key"), ("--anonymous", "--key", "no-key"),
        ("--anonymous", "--key", "away/key"), ("-o", "away/x"), ("--from", "2020-01-02", "--to", "2020-01-01", "-o", "x"),
    ):  # fmt: skip
        assert carrel("report", "jobs", *wrong, cwd=tmp_path).code == 2, wrong
    assert [path.name for path in tmp_path.iterdir()] == ["no-key"]
    past = carrel("report", "jobs", "--to", "2020-01-01", "--format", "swf", cwd=tmp_path)
    assert "; MaxJobs: 0" in past.out.splitlines()

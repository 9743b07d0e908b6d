"""`carrel baseline` and `carrel calibrate`: what moved, who is told, and going on where it was left."""

from __future__ import annotations

import csv
import io
import re
import secrets
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import CommandLine, script

from carrel.client import Client
from carrel.core.domain.errors import NotFound
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import BaselineTable

PAGE = Path(__file__).parents[2] / "docs" / "baselines.md"
#: Its result follows from a file that no record has, as from a driver.
READS = 'cat "$DRIVER" > outputs/loss\n'


def named() -> str:
    return f"project-{secrets.token_hex(4)}"


def job(client: Client, directory: Path, text: str = READS, *, name: str, driver: str = "1") -> int:
    (directory / "driver").parent.mkdir(exist_ok=True, parents=True)
    (directory / "driver").write_text(driver)
    target = script(directory / "code", text, "task.sh")
    made = client.submit_project(target, name=name, variables={"DRIVER": str(directory / "driver")})
    client.wait(made.id)
    return made.id


@pytest.mark.gate
def test_the_example_of_the_page_gives_what_the_page_says(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    # Other tests have a task of that name.
    name = named()
    (tmp_path / "train.py").write_text(program)
    parts = re.findall(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", console, re.MULTILINE)
    jobs: list[str] = []
    said = {}
    for command, _ in parts:
        words = [name if word == "train" else jobs[0] if word == "1" else word for word in shlex.split(command)]
        if words[:2] == ["carrel", "run"]:
            jobs.append(str(carrel("submit", *words[2:], "--name", name, "--json", cwd=tmp_path).json["id"]))
            assert carrel("logs", "-f", jobs[-1]).code == 0
        elif words[0] == "carrel":
            said[command] = carrel(*words[1:]).out
        else:
            subprocess.run(words, cwd=tmp_path, check=True)
    (again,) = re.findall(r"job (\d+)\)", said["carrel calibrate train"])
    numbers = dict(zip((jobs[0], again, jobs[1]), "123", strict=True))

    machines = [client.baseline(one.id).machine for one in client.baselines() if one.project == name] + ["AMD EPYC 7B13"]

    def as_told(text: str, numbers: dict[str, str]) -> str:
        for machine in machines:
            text = text.replace(machine, "MACHINE")
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "MOMENT", re.sub(r"\d+ [A-Z][a-z]+ \d{4}", "DAY", text))
        text = re.sub(r"by \S+ \(job", "by ada (job", text.replace(name, "train"))
        return re.sub(r"\b\d+\b", lambda match: numbers.get(match[0], match[0]), text)

    for command, told in parts:
        if command in said and not command.endswith("show train"):
            assert as_told(said[command], numbers) == as_told(told, {}), command
    shown = as_told(said["carrel baseline show train"], numbers).splitlines()
    told = as_told(parts[-1][1], {}).splitlines()
    assert shown[:3] == told[:3]
    assert shown[3].split() == told[3].split()

    def cells(lines: list[str]) -> list[list[str]]:
        return [re.split(r"  +", line.strip()) for line in lines[4:]]

    assert cells(shown) == cells(told)


def test_what_moved_is_told_with_a_line_and_by_the_exit_code(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    name, steady = named(), named()
    first, other = job(client, tmp_path / "a", name=name), job(client, tmp_path / "b", name=steady)
    assert carrel("baseline", "set", str(first)).out.startswith(f"Job {first} is the baseline of {name}.")
    carrel("baseline", "set", str(other))
    assert carrel("calibrate", name, steady).code == 0
    (tmp_path / "a" / "driver").write_text("2")
    ran = carrel("calibrate", name, steady, name)
    (again, _) = re.findall(r"job (\d+)\)", ran.out)
    assert ran.code == 1
    assert ran.out.splitlines() == [
        f"{name}: moved: different (job {again})",
        "  output outputs/loss",
        "  Nothing differs beside results that is known.",
        f"  It may be chance: whether job {first} repeats itself is not known. Find out: carrel verify {first}",
        f"{steady}: same: bit-identical (job {int(again) + 1})",
    ]
    assert client.job(int(again)).rerun_of == first
    (line,) = [line for line in carrel("baseline", "list").out.splitlines() if name in line]
    assert re.search(r"moved on \d+ [A-Z][a-z]+ \d{4}: different; outputs/loss$", line)
    shown = carrel("baseline", "show", name).out
    assert re.findall(r"(bit-identical|different) \(calibration\)", shown) == ["bit-identical", "different"]


def test_later_jobs_of_the_name_are_compared_and_no_others(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    name = named()
    before = job(client, tmp_path / "a", name=name)
    first = job(client, tmp_path / "a", name=name)
    job(client, tmp_path / "a", name=named())
    client.set_baseline(first)
    moved = job(client, tmp_path / "a", name=name, driver="2")
    code = job(client, tmp_path / "a", f"{READS}exit 3\n", name=name)
    found = BaselineTable.model_validate(carrel("baseline", "show", name, "--json").json)
    assert [row.job for row in found.rows] == [moved, code]
    assert (before < first, found.baseline.job, found.rows[0].state, found.rows[1].state) == (True, first, "COMPLETED", "FAILED")
    (drift, failed) = (row.drift for row in found.rows)
    assert (drift.words, drift.moved_outputs, drift.others) == ("different", ["outputs/loss"], [])
    assert [one.what for one in failed.others] == ["code"]
    rows = list(csv.DictReader(io.StringIO(carrel("baseline", "show", name, "--csv").out)))
    assert [(row["job"], row["state"], row["outputs"]) for row in rows] == [
        (str(moved), "COMPLETED", "outputs/loss"),
        (str(code), "FAILED", ""),
    ]
    # Another baseline of the project takes its place, with other words about what counts.
    client.set_baseline(first, ignore=["outputs/*"])
    (one,) = [one for one in client.baselines() if one.project == name]
    assert client.baseline(one.id).rows[0].drift.words == "no results to compare"  # type: ignore[union-attr]
    assert carrel("baseline", "remove", name).out == f"{name} has no baseline any more.\n"
    with pytest.raises(NotFound):
        client.baseline(one.id)


def test_after_ctrl_c_it_goes_on_with_the_same_job(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    name, gate = named(), tmp_path / "gate"
    gate.write_text("")
    text = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo same > outputs/r\n"
    first = job(client, tmp_path / "a", text, name=name)
    client.set_baseline(first)
    gate.unlink()
    running = carrel.start("calibrate", name)
    wait_until(lambda: [one for one in client.jobs("all", limit=1) if (one.name, one.state) == (name, "RUNNING")])
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert (running.returncode, f"Go on with: carrel calibrate {name}" in err) == (130, True)
    (one,) = [one for one in client.baselines() if one.project == name]
    assert one.calibration is None
    begun = client.calibrate(one.id)
    assert (begun.outcome, begun.known_at) == ("", None)
    # Also when it has ended meanwhile, and somebody has seen that.
    gate.write_text("")
    client.wait(begun.job)
    assert "same on" in carrel("baseline", "list").out
    ran = carrel("calibrate", name)
    assert (ran.code, ran.out) == (0, f"{name}: same: bit-identical (job {begun.job})\n")
    # What is known is not taken for what is asked later.
    assert client.calibrate(one.id).job > begun.job


def test_one_that_was_cancelled_says_nothing_and_is_run_again(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    name, gate = named(), tmp_path / "gate"
    gate.write_text("")
    first = job(client, tmp_path / "a", f"while [ ! -e {gate} ]; do sleep 0.05; done; echo same > outputs/r\n", name=name)
    number = client.set_baseline(first).id
    gate.unlink()
    cancelled = client.calibrate(number)
    client.cancel(cancelled.job)
    client.wait(cancelled.job)
    assert client.calibration(number, cancelled.job).outcome == "not known"
    assert client.baseline(number).baseline.calibration is None
    gate.write_text("")
    ran = carrel("calibrate", name)
    assert (ran.code, "same: bit-identical" in ran.out) == (0, True)


def test_an_administrator_calibrates_those_of_others_and_they_are_told(
    carrel: CommandLine, client: Client, other: CommandLine, tmp_path: Path
) -> None:
    name, state = named(), tmp_path / "state"
    state.write_text("1")
    target = script(tmp_path / "code", f"cat {state} > outputs/loss\n")
    first = str(other("submit", target, "--name", name, "--json").json["id"])
    assert other("logs", "-f", first).code == 0
    assert other("baseline", "set", first).code == 0
    me = other("lab", "--json").json["caller"]["subject"]
    state.write_text("2")
    unnamed = carrel("calibrate", name)
    assert (unnamed.code, f"Say {me}/{name}." in unnamed.err) == (3, True)
    ran = carrel("calibrate", f"{me}/{name}", "--json")
    (found,) = ran.json["calibrations"]
    assert (ran.code, found["outcome"], found["owner"]) == (1, "moved", me)
    assert client.job(found["job"]).owner != me, "it is the administrator's job"
    (mine,) = other("baseline", "list", "--json").json["baselines"]
    assert (mine["calibration"]["outcome"], mine["calibration"]["by"]) == ("moved", client.job(found["job"]).owner)
    assert "different (calibration)" in other("baseline", "show", name).out
    # It is no job of a project of the administrator's, and nobody else's business.
    assert carrel("baseline", "remove", f"{me}/{name}").code == 4
    own = job(client, tmp_path / "a", name=name)
    client.set_baseline(own)
    carrel("calibrate", f"{me}/{name}")
    (one,) = [one for one in client.baselines() if one.project == name]
    assert client.baseline(one.id).rows == []
    assert f'There is no baseline "root/{name}"' in other("calibrate", f"root/{name}").err
    assert other("baseline", "list", "--all").code != 0


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["calibrate"], "No baseline is named."),
        (["calibrate", "x", "--all"], "Names of baselines and --all are given."),
        (["baseline", "show", "x", "--csv", "--json"], "--csv and --json are two forms."),
        (["baseline", "show", "no such"], 'There is no baseline \\"no such\\".'),
        (["baseline", "set", "999999"], "There is no job 999999."),
    ],
)
def test_what_cannot_be_asked_is_said(carrel: CommandLine, words: list[str], fact: str) -> None:
    ran = carrel(*words)
    assert ran.code != 0
    assert fact in ran.err or fact.replace("\\", "") in ran.err


def test_what_cannot_be_a_baseline(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    failed = job(client, tmp_path / "a", "exit 1\n", name=named())
    assert f"Job {failed} is FAILED." in carrel("baseline", "set", str(failed)).err
    name = named()
    first = job(client, tmp_path / "b", name=name)
    carrel("baseline", "set", str(first), "--project", f"{name}-of-mine")
    ran = carrel("calibrate", f"{name}-of-mine", "--fresh")
    assert (ran.code, "there is nothing to resolve anew" in ran.out) == (1, True)

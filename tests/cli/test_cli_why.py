"""`carrel why`: finds the cause by running, goes on where it stood, and claims nothing that it has not seen."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from command_line import CommandLine, script

from carrel.client import Client
from carrel.wire.v1 import WhyView

PAGE = Path(__file__).parents[2] / "docs" / "why.md"
TRAIN = """\
import os, pathlib, sys
SCALE = 1.0
# a remark
def f(x):
    return x * SCALE

value = f(float(sys.argv[1])) + len(os.environ.get("FLAVOUR", ""))
pathlib.Path("outputs/loss").write_text(str(value))
"""


def job(client: Client, directory: Path, text: str = TRAIN, *arguments: str, **options: object) -> int:
    words = {"arguments": list(arguments or ["2"]), "name": "why", **options}
    number = client.submit_project(script(directory, text, "train.py"), **words).id
    client.wait(number)
    return number


@pytest.mark.gate
def test_the_example_of_the_page_gives_what_the_page_says(carrel: CommandLine, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    commands = re.findall(r"^\$ (.*)$", console, re.MULTILINE)
    numbers = []
    for command in commands[:3]:
        words = shlex.split(command)
        if words[0] == "carrel":
            numbers.append(str(carrel("submit", *words[2:], "--json", cwd=tmp_path).json["id"]))
            assert carrel("logs", "-f", numbers[-1]).code == 0
        else:
            subprocess.run(words, cwd=tmp_path, check=True)
    said = carrel("why", *numbers, *shlex.split(commands[3])[4:]).out
    told = console.partition(f"{commands[3]}\n")[2]
    # The jobs of the runs have other numbers here.
    said, told = (re.sub(r"\(jobs? \d[\d, and]*\)", "", text) for text in (said, told))
    here = dict(zip("12", numbers, strict=True))
    assert said == re.sub(r"job ([12])\b", lambda found: f"job {here[found[1]]}", told)


def newest(client: Client) -> int:
    return next(iter(client.jobs("all", limit=1))).id


def test_the_line_that_is_the_cause_is_found_among_other_changes(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = job(client, tmp_path / "a")
    changed = TRAIN.replace("SCALE = 1.0", "SCALE = 3.0").replace("# a remark", "# another").replace("x * SCALE", "SCALE * x")
    two = job(client, tmp_path / "b", changed, variables={"UNUSED": "x"}, resources={"cpus": 2})
    asked = carrel("why", str(one), str(two))
    assert (asked.code, "nobody can be asked whether that may be" in asked.err) == (2, True)
    ran = carrel("why", str(one), str(two), "--runs", "20")
    assert ran.code == 0, ran.err
    told = ran.out.splitlines()
    assert f"The cause is line 2 of train.py (SCALE = 1.0 in job {one}, SCALE = 3.0 in job {two})." in told
    assert f"With everything else of job {two}, it comes to its own: nothing else matters." in told
    # Asked again, it knows: nothing is submitted.
    before = newest(client)
    again = carrel("why", str(one), str(two), "--json")
    found = WhyView.model_validate(again.json)
    assert (again.code, found.answer, found.found) == (0, "explained", ["code:train.py#1"])
    assert newest(client) == before
    # Each run says what it is.
    last, *_ = [run for run in found.variants if run.changes == ["line 2 of train.py"]]
    record = client.record(last.job)  # type: ignore[arg-type]
    assert record["task"]["variant_of"] == {"first": str(one), "second": str(two), "changes": ["line 2 of train.py"]}
    assert f"job {one}, with line 2 of train.py as in job {two}" in record["task"]["notes"][0]
    assert client.why(one, two) == found


def test_causes_that_work_together_are_all_found(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = job(client, tmp_path / "a", TRAIN, "2")
    two = job(client, tmp_path / "b", TRAIN.replace("# a remark", "# other"), "5", variables={"FLAVOUR": "sweet"})
    ran = carrel("why", str(one), str(two), "--runs", "20", "--json")
    found = WhyView.model_validate(ran.json)
    assert (found.answer, sorted(found.found)) == ("explained", ["command", "variable:FLAVOUR"])
    assert "No single one of them can be left out." in found.told


def test_a_program_that_is_another_each_time_is_not_explained(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    text = "import os, pathlib\npathlib.Path('outputs/r').write_text(os.environ['CARREL_JOB_ID'])\n"
    one, two = job(client, tmp_path / "a", text), job(client, tmp_path / "b", text + "# more\n")
    ran = carrel("why", str(one), str(two), "--runs", "20")
    assert ran.code == 1
    assert f"Job {one} does not come to the same results each time" in ran.out
    assert "The cause is" not in ran.out


def test_an_end_is_a_result_too(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = job(client, tmp_path / "a")
    two = job(client, tmp_path / "b", TRAIN.replace("SCALE = 1.0", "SCALE = 1.0\nassert float(sys.argv[1]) > 3"))
    assert client.job(two).state == "FAILED"
    ran = carrel("why", str(one), str(two), "--runs", "20")
    assert ran.code == 0, ran.err
    assert "The cause is line 3 of train.py" in ran.out
    refused = carrel("why", str(two), str(one), "--runs", "20")
    assert (refused.code, f"Job {two} is FAILED." in refused.err) == (2, True)


def test_a_file_that_is_an_input_is_found(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    text = "import pathlib\npathlib.Path('outputs/n').write_text(str(sum(map(int, pathlib.Path('d/b').read_text()))))\n"
    for name, number in (("one", "12"), ("two", "13")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
        (tmp_path / name / "b").write_text(number)
        project = (
            f"name: x\nentry_points: {{main: {{command: python n.py}}}}\ncarrel: {{inputs: {{d: 'file:{tmp_path / name}'}}}}\n"
        )
        (tmp_path / f"code-{name}").mkdir()
        (tmp_path / f"code-{name}" / "MLproject").write_text(project)
        (tmp_path / f"code-{name}" / "n.py").write_text(text)
    one, two = (client.submit_project(str(tmp_path / f"code-{name}")).id for name in ("one", "two"))
    client.wait(one), client.wait(two)
    ran = carrel("why", str(one), str(two), "--runs", "20")
    assert ran.code == 0, ran.err + ran.out
    assert "The cause is input d/b" in ran.out


def test_what_a_budget_does_not_allow_is_not_run(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one, two = job(client, tmp_path / "a"), job(client, tmp_path / "b", TRAIN.replace("SCALE = 1.0", "SCALE = 3.0"))
    ran = carrel("why", str(one), str(two), "--runs", "2")
    assert (ran.code, "Not known yet: 2 runs are done, and the budget allows no more." in ran.out) == (1, True)
    assert carrel("why", str(one), str(two), "--runs", "4").code == 0
    before = newest(client)
    assert (carrel("why", str(one), str(two), "--runs", "0").code, newest(client)) == (0, before)


def test_what_cannot_be_asked_is_said(carrel: CommandLine, client: Client, other: CommandLine, tmp_path: Path) -> None:
    one, two = job(client, tmp_path / "a"), job(client, tmp_path / "b")
    same = carrel("why", str(one), str(two), "--runs", "9")
    assert (same.code, f"Jobs {one} and {two} came to the same results." in same.err) == (2, True)
    assert "is named twice" in carrel("why", str(one), str(one), "--runs", "9").err
    assert f"There is no job {one}" in other("why", str(one), str(two), "--runs", "9").err
    silent = job(client, tmp_path / "c", "print('nothing')\n")
    also = job(client, tmp_path / "d", "print('nothing else')\n")
    assert "too little is known of their results" in carrel("why", str(silent), str(also), "--runs", "9").err


@pytest.mark.parametrize("words", [("--budget", "-1"), ("--runs", "-1"), ("--tolerance", "2")])
def test_limits_are_checked(carrel: CommandLine, words: tuple[str, str]) -> None:
    assert carrel("why", "1", "2", *words).code == 2

"""`carrel compare`, and the example of its page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.core.comparison import Kind
from carrel.wire.v1 import ComparisonView

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def done(client: Client, directory: Path, text: str, name: str = "task.sh") -> int:
    job = client.submit_project(script(directory, text, name), name="compared")
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    return job.id


def table(text: str) -> list[list[str]]:
    """The cells of each row, without what differs between any two runs."""
    lines = [line for line in text.partition("\n\n")[2].partition("\n\n")[0].splitlines() if "attempt run time" not in line]
    return [re.split(r"  +", line.strip()) for line in lines]


def test_the_example_of_the_page_gives_what_the_page_says(carrel: CommandLine, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    console, verified = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    first, second, *_ = (shlex.split(line)[2:] for line in re.findall(r"^\$ carrel (.*)$", console, re.MULTILINE))
    numbers = []
    for words in (first, second):
        ran = carrel("submit", "train.py", *words, "--json", cwd=tmp_path)
        numbers.append(str(ran.json["id"]))
        assert carrel("logs", "-f", numbers[-1]).code == 0
    said = carrel("compare", *numbers).out
    told = console.partition("$ carrel compare 1 2\n")[2]
    assert said.splitlines()[:2] == told.splitlines()[:2]
    here = {"JOB 1": f"JOB {numbers[0]}", "JOB 2": f"JOB {numbers[1]}"}
    assert table(said) == [[here.get(cell, cell) for cell in row] for row in table(told)]
    assert said.endswith(f"\n\nWhich of it is the cause, runs can tell: carrel why {numbers[0]} {numbers[1]}\n")
    command, *lines = verified.splitlines()
    ran = carrel("verify", numbers[0], *shlex.split(command)[4:])
    assert ran.code == 0
    assert re.sub(r"(?i:job) \d+", "job N", ran.out).splitlines() == [re.sub(r"(?i:job) \d+", "job N", line) for line in lines]


def test_code_by_line_and_all_of_it_for_programs(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = done(client, tmp_path / "a", "echo one > outputs/r\necho done\n")
    two = done(client, tmp_path / "b", "echo two > outputs/r\necho done\n")
    said = carrel("compare", str(one), str(two), "--diff").out
    assert "-echo one > outputs/r\n+echo two > outputs/r\n echo done" in said
    assert f"--- {one}/task.sh\n+++ {two}/task.sh\n@@ -1,2 +1,2 @@" in said
    assert "Not known, and so neither equal nor different:" in said
    assert "-echo" not in carrel("compare", str(one), str(two)).out
    found = ComparisonView.model_validate(carrel("compare", str(one), str(two), "--json").json)
    assert [each.what for each in found.differences if each.cause.value == "likely"] == ["code task.sh"]
    assert found == client.compare(one, two)
    machine = next(each for each in client.record(one)["attempts"])
    assert machine["seeds"]["OMP_NUM_THREADS"] == "1"
    assert {"libc", "cpus_allowed"} <= set(machine["hardware"])


def test_many_results_do_not_hide_what_may_be_the_cause(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one, two = (done(client, tmp_path / word, f"for n in $(seq 40); do echo {word} > outputs/$n; done\n") for word in ("a", "b"))
    shown = carrel("compare", str(one), str(two)).out
    whole = carrel("compare", str(one), str(two), "--all").out
    assert (shown.count("result  output"), whole.count("result  output")) == (30, 40)
    assert re.search(r"^1\d more results differ: --all shows them\.$", shown, re.MULTILINE)
    assert "--all" not in whole


def test_a_job_and_its_repetition(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = done(client, tmp_path / "a", "echo one > outputs/r\n")
    again = client.rerun(one).id
    client.wait(again, timeout=PATIENCE)
    found = client.compare(one, again)
    assert found.summary[0] == "No result differs that is known of them."
    assert {each.kind for each in found.differences} <= {Kind.ATTEMPT}
    assert "Nothing that is likely" in carrel("compare", str(one), f"{again}:1").out


def test_what_cannot_be_compared(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    one = done(client, tmp_path / "a", "true\n")
    assert carrel("compare").code == 2
    alone = carrel("compare", str(one))
    assert (alone.code, "carrel compare 12 13" in alone.err) == (2, True)
    assert carrel("compare", str(one), "x").code == 2
    assert '"1:0" names no attempt' in carrel("compare", str(one), "1:0").err
    assert carrel("compare", str(one), "999999").code == 3
    assert carrel("compare", str(one), f"{one}:7").code == 3

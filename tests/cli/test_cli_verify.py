"""`carrel verify`: jobs that repeat themselves, and jobs that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.core.domain.errors import Invalid
from carrel.wire.v1 import ResultsView


def job(client: Client, directory: Path, text: str) -> int:
    return client.submit_project(script(directory, text, "task.sh"), name="verified").id


@pytest.mark.gate
def test_a_job_that_is_another_each_time_is_different(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    lines = ["echo $CARREL_JOB_ID > outputs/r", "echo $CARREL_JOB_ID > outputs/t.log", "echo same > outputs/s"]
    first = job(client, tmp_path / "a", "\n".join(lines))
    ran = carrel("verify", str(first), "--times", "1")
    assert ran.code == 1
    (number,) = (int(line.split()[1]) for line in ran.out.splitlines() if line.endswith("is COMPLETED"))
    assert f"Different: not all results are those of job {first} (3 outputs)." in ran.out
    assert f"  job {number}: output outputs/r: " in ran.out
    assert f"carrel compare {first} {number}" in ran.out
    assert carrel("verify", str(first), "--rerun", str(number), "--ignore", "outputs/[rt]*").code == 0
    said = carrel("verify", str(first), "--rerun", str(number), "--ignore", "*.log", "--json")
    found = ResultsView.model_validate(said.json)
    assert (said.code, found.agreement.value, [one.path for one in found.differences]) == (1, "different", ["outputs/r"])
    assert found == client.compare_results(first, number, ignore=["*.log"])


def test_what_came_of_it_is_kept_with_the_job(carrel: CommandLine, client: Client, other: CommandLine, tmp_path: Path) -> None:
    first = job(client, tmp_path / "a", "echo same > outputs/r\n")
    again = [client.rerun(client.wait(first).id).id for _ in range(2)]
    assert carrel("verify", str(first), *(word for one in again for word in ("--rerun", str(one)))).code == 0
    assert client.job(first).verified == "bit-identical in 2 repetitions"
    assert "bit-identical in 2 repetitions" in carrel("show", str(first)).out
    kept = client.record(first)["verification"]
    assert (kept["agreement"], kept["repetitions"], kept["outputs"]) == ("identical", again, 1)
    # The last answer counts.
    assert carrel("verify", str(first), "--rerun", str(again[0]), "--ignore", "*").code == 1
    assert client.job(first).verified == "not known, after 1 repetition"
    # Others may neither see it nor say it.
    assert f"There is no job {first}" in other("verify", str(first), "--rerun", str(again[0])).err
    stranger = job(client, tmp_path / "b", "echo same > outputs/r\n")
    with pytest.raises(Invalid, match=f"Job {stranger} does not repeat job {first}"):
        client.verify(first, stranger)


def test_a_job_without_results_is_not_known_to_repeat_itself(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    first = job(client, tmp_path / "a", "echo nothing\n")
    ran = carrel("verify", str(first), "--times", "1")
    assert ran.code == 1
    assert "These jobs left no outputs and logged no metrics: nothing can be compared." in ran.out


def test_a_repetition_that_fails_is_told(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    first = job(client, tmp_path / "a", f"echo same > outputs/r; mkdir {tmp_path}/once\n")
    ran = carrel("verify", str(first), "--times", "1")
    assert ran.code == 1
    assert "is FAILED: Exit code 1." in ran.out


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--times", "9"], "9 repetitions are asked for. Ask for 1 to 7."),
        (["--times", "0"], "0 repetitions are asked for. Ask for 1 to 7."),
        (["--times", "1", "--rerun", "1"], "--times repeats the job, and --rerun names jobs that repeat it already."),
    ],
)
def test_what_cannot_be_asked_is_said(carrel: CommandLine, words: list[str], fact: str) -> None:
    ran = carrel("verify", "1", *words)
    assert ran.code == 2
    assert fact.split(". ")[0] in ran.err


def test_only_what_is_complete_is_verified(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    first = job(client, tmp_path / "a", "exit 3\n")
    assert client.wait(first, timeout=PATIENCE).state == "FAILED"
    ran = carrel("verify", str(first))
    assert (ran.code, f"Job {first} is FAILED." in ran.err) == (2, True)

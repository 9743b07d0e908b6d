"""Arrays on the command line: 12_3 is an element, and the number of an array is all of it where jobs are ended."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import CommandLine

from carrel.client import Client
from carrel.testing.waiting import PATIENCE, wait_until


def test_run_an_array_and_look_at_its_elements(carrel: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "MLproject").write_text(
        "name: many\nentry_points:\n  main:\n    command: 'echo I am $SLURM_ARRAY_TASK_ID; test $SLURM_ARRAY_TASK_ID != 2'\n"
        "carrel:\n  array: 1-3%2\n  resources: {memory: 64M}\n"
    )
    ran = carrel("run", str(tmp_path))
    assert ran.code == 1, ran
    array = int(ran.err.split()[1].rstrip(":"))
    assert f"Array {array}: many, 3 jobs (1-3%2)" in ran.err
    assert f"Job {array}_1 COMPLETED" in ran.err
    assert f"Job {array}_2 FAILED" in ran.err
    assert carrel("logs", f"{array}_3").out == "I am 3\n"
    assert f"array        {array} (1-3%2): 2 COMPLETED, 1 FAILED" in carrel("show", str(array)).out
    assert f"element 2 of {array} (1-3%2)" in carrel("show", f"{array}_2").out
    assert f"{array}_3" in carrel("ps", "--all").out
    shown = carrel("show", f"{array}_3", "--json").json
    assert (shown["array_job_id"], shown["array_task_id"], shown["array"], shown["id"]) == (array, 3, "1-3%2", array + 2)
    assert carrel("show", f"{array}_9").code == 3
    assert carrel("show", f"{array}_x").code == 2
    well = carrel("run", "--array", "1,3", str(tmp_path), "--json")
    assert well.code == 0
    lines = [json.loads(line) for line in well.out.splitlines()]
    assert [line["type"] for line in lines] == ["submitted", "ended", "ended"]


def test_cancel_one_element_or_all(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    (tmp_path / "wait.sh").write_text("sleep 600")
    told = carrel("submit", "-a", "0-3%1", "--memory", "64M", str(tmp_path / "wait.sh"), "--json").json
    array = told["array_job_id"]
    assert (told["id"], told["array_task_id"]) == (array, 0)
    wait_until(lambda: client.job(array).state == "RUNNING")
    # The one that runs is listed however many wait.
    assert f"{array}_0 " in carrel("ps", "-n", "2").out
    assert carrel("cancel", f"{array}_3").out == f"Job {array}_3 is cancelled.\n"
    assert [job.state == "CANCELLED" for job in client.array(array).jobs] == [False, False, False, True]
    assert carrel("cancel", str(array)).out.startswith(f"Array {array} (0-3%1): ")
    assert {job.state for job in client.wait_array(array, timeout=PATIENCE)} == {"CANCELLED"}
    assert carrel("submit", "--array", "3-1", str(tmp_path / "wait.sh")).code == 2

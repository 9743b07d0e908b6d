"""`carrel matrix`: a job under several seeds, and each of them in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine

from carrel.client import Client
from carrel.wire.v1 import MatrixView

#: Its loss follows from the seed, and by a little from the number of its processors.
PROGRAM = """\
import json, os, pathlib, random, sys
draws = random.Random(int(sys.argv[1]))
cpus = len(os.sched_getaffinity(0)) if "OMP_NUM_THREADS" not in os.environ else int(os.environ["OMP_NUM_THREADS"])
loss = 1 + draws.random() + (1e-6 if cpus == 1 else 0)
if len(sys.argv) > 2:  # the order in which it shows samples, as a loader's is kept
    kept = pathlib.Path("outputs/order")
    kept.mkdir(parents=True)
    (kept / "0.jsonl").write_text(json.dumps([0, 0, [int(sys.argv[1])]]))
    repeats = os.environ.get("CARREL_ORDER_REPEATS")
    if repeats:
        loss += json.loads((pathlib.Path(repeats) / "0.jsonl").read_text())[2][0] / 10
pathlib.Path("outputs").mkdir(exist_ok=True)
pathlib.Path("outputs/metrics.json").write_text(json.dumps({"history": [{"loss": 9}, {"loss": loss}]}))
"""
PROJECT = """\
name: moves
entry_points:
  main:
    parameters: {seed: {type: int, default: 0}}
    command: python train.py {seed} ORDER
carrel: {resources: {cpus: 2, memory: 200M, time: 5m}}
"""
LOSS = "outputs/metrics.json#/history/1/loss"


def project(directory: Path, *, order: bool) -> Path:
    directory.mkdir()
    (directory / "train.py").write_text(PROGRAM)
    (directory / "MLproject").write_text(PROJECT.replace("ORDER", "order" if order else ""))
    return directory


@pytest.mark.gate
def test_a_table_says_what_seeds_do_and_what_the_rest_does(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    first = client.wait(client.submit_project(project(tmp_path / "a", order=False)).id).id
    words = ("matrix", str(first), "--seeds", "2", "--metric", LOSS, "--case", "again", "--case", "cpus=1", "--case", "order")
    refused = carrel(*words)
    assert refused.code != 0
    assert "9 runs of about" in refused.err
    ran = carrel(*words, "--yes", "--json")
    found = MatrixView.model_validate(ran.json)
    assert (ran.code, found.done, found.seeds) == (0, True, [0, 1])
    seed, again, cpus, order = found.rows
    assert (again.identical, again.compared, again.farthest) == (2, 2, 0)
    assert (cpus.identical, cpus.compared) == (0, 2)
    assert cpus.farthest is not None
    assert 0 < cpus.farthest < 1e-5 < (seed.farthest or 0)
    assert order.message.startswith("It kept no order of samples")
    # The same question again takes the runs that are there.
    jobs = [one.job for one in found.runs]
    asked = client.matrix(first, seeds=2, metric=LOSS, cases=["again", "cpus=1", "order"], submit=True)
    assert [one.job for one in asked.runs] == jobs
    shown = carrel(*words)
    assert shown.code == 0
    assert "the same again" in shown.out
    assert "1 processor" in shown.out


def test_another_order_is_that_of_the_next_seed(client: Client, carrel: CommandLine, tmp_path: Path) -> None:
    first = client.wait(client.submit_project(project(tmp_path / "a", order=True)).id).id
    ran = carrel("matrix", str(first), "--seeds", "2", "--metric", LOSS, "--case", "order", "--yes", "--json")
    found = MatrixView.model_validate(ran.json)
    assert (ran.code, found.done) == (0, True)
    seed, order = found.rows
    moved = [round(other - one, 9) for one, other in zip(seed.values, order.values, strict=True) if one and other]
    assert moved == [0.1, 0.2], "each was shown the order of the next seed"
    assert [one.state for one in found.runs] == ["COMPLETED"] * 5


def test_what_is_asked_wrongly_is_said(client: Client, carrel: CommandLine, other: CommandLine, tmp_path: Path) -> None:
    first = client.wait(client.submit_project(project(tmp_path / "a", order=False)).id).id
    wrong = carrel("matrix", str(first), "--case", "cpu=1")
    assert wrong.code != 0
    assert '"cpu=1" is no case.' in wrong.err
    assert "There are: again, device, order, and cpus=N." in wrong.err
    assert f"There is no job {first}" in other("matrix", str(first)).err


def test_a_metric_that_there_is_not_is_told_before_anything_runs(client: Client, carrel: CommandLine, tmp_path: Path) -> None:
    first = client.wait(client.submit_project(project(tmp_path / "a", order=False)).id).id
    for metric, fact in (
        ("los", f' logged no metric "los". It has: {LOSS}.'),
        ("outputs/metrics.json#/los", f" has no number at /los. It has: {LOSS}."),
        ("metrics.json#/loss", " has no output metrics.json."),
    ):
        said = carrel("matrix", str(first), "--metric", metric, "--yes")
        assert (said.code, fact in said.err, "Name one with --metric" in said.err) == (2, True, True), said.err
    # Without a metric there is a table all the same.
    ran = carrel("matrix", str(first), "--seeds", "1", "--case", "again", "--yes")
    assert (ran.code, "1 of 1" in ran.out, "logged no metrics. It has:" in ran.out) == (0, True, True), ran.err
    assert [one.job for one in client.matrix(first, seeds=1, cases=["again"]).runs] != [None, None]


def test_a_run_that_was_cancelled_is_run_again(client: Client, tmp_path: Path) -> None:
    place = project(tmp_path / "a", order=False)
    (place / "train.py").write_text(f"import pathlib, time\nwhile pathlib.Path('{tmp_path}/wait').exists(): time.sleep(0.05)\n")
    first = client.wait(client.submit_project(place).id).id
    (tmp_path / "wait").touch()
    (begun,) = client.matrix(first, seeds=1, cases=[], submit=True).runs
    client.cancel(begun.job or 0)
    client.wait(begun.job or 0)
    (tmp_path / "wait").unlink()
    (again,) = client.matrix(first, seeds=1, cases=[], submit=True).runs
    assert again.job not in (None, begun.job)
    assert client.wait(again.job or 0).state == "COMPLETED"


def test_distributions_are_compared_where_programs_do_not_repeat_themselves(
    client: Client, carrel: CommandLine, tmp_path: Path
) -> None:
    one, other = project(tmp_path / "a", order=False), project(tmp_path / "b", order=False)
    for place, begin in ((one, "4"), (other, "6")):
        (place / "train.py").write_text(PROGRAM.replace("loss = 1 +", f"loss = {begin} +"))
    first, second = (client.wait(client.submit_project(place).id).id for place in (one, other))
    words = ("why", str(first), str(second), "--seeds", "4", "--metric", LOSS)
    refused = carrel(*words, "--runs", "7")
    assert refused.code != 0
    assert "8 runs of about" in refused.err
    ran = carrel(*words, "--runs", "8")
    assert ran.code == 0
    assert "They differ by more than chance does." in ran.out
    told = carrel(*words, "--json").json
    # Of the 70 ways to deal eight values, these two alone are as far apart.
    assert (round(told["p"] * 70), len(told["values"][0])) == (2, 4)
    same = carrel("why", str(first), str(first), "--seeds", "4", "--metric", LOSS)
    assert "They are not known to differ" in same.out

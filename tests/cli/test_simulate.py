"""`carrel simulate` as an administrator meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import CARREL, PATIENCE, CommandLine, script

from carrel.cli.main import main
from carrel.client import Client
from carrel.simulate.policies import POLICIES
from carrel.wire import v1

TRACES = Path(__file__).parents[1] / "data" / "traces"
MURI = str(TRACES / "muri" / "trace3.csv")
TIRESIAS = str(TRACES / "tiresias" / "60_job.csv")
FEW = ("--jobs", "60")
NO_FILE = 'There is no carrel.toml here: the rules are those of the preset "default".'


@dataclass(frozen=True)
class Simulate:
    """Runs `carrel simulate` in this process, in a home directory of its own."""

    home: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main(["simulate", "--home", str(self.home), *words])
        out, err = self.capsys.readouterr()
        return code, out, err

    def text(self, *words: str) -> str:
        code, out, err = self(*words)
        assert (code, err) == (0, ""), err
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))

    def error(self, *words: str) -> list[str]:
        """The lines of the error; nothing else is printed."""
        code, out, err = self(*words)
        assert (code, out) == (2, ""), err
        return [line.removeprefix("error: ").strip() for line in err.splitlines()]

    def rules(self, text: str) -> None:
        (self.home / "carrel.toml").write_text(text)


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    home = tmp_path / "home"
    home.mkdir()
    return Simulate(home, capsys)


def rows(text: str) -> dict[str, list[str]]:
    """Rows of the table by their first cell; two blanks are between columns."""
    lines = [re.split(r" {2,}", line) for line in text.splitlines() if not line.startswith("  ")]
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 2}


# ---- policies


@pytest.mark.gate
def test_generated_jobs_under_every_policy(simulate: Simulate) -> None:
    out = simulate.text(*FEW)
    assert out.splitlines()[0] == "60 jobs like trace3.csv, seed 1, load 0.9, on 64 GPUs"
    assert list(rows(out)) == ["Policy", *POLICIES]
    assert {row[0] for name, row in rows(out).items() if name != "Policy"} == {"60"}
    assert f"  {NO_FILE}" in out.splitlines()


def test_the_same_seed_prints_the_same_bytes_and_another_does_not(simulate: Simulate, tmp_path: Path) -> None:
    first, again, other = (simulate.text(*FEW, "--seed", seed, "--policy", "carrel") for seed in ("7", "7", "8"))
    assert first == again
    assert other.splitlines()[1:] != first.splitlines()[1:]
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        simulate.text(*FEW, "--seed", "7", "--report", str(page))
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_chosen_policies_of_a_file_on_the_machines_that_it_was_recorded_on(simulate: Simulate) -> None:
    out = simulate.text(MURI, "--policy", "fifo", "--policy", "carrel", "--policy", "fifo")
    assert out.startswith("trace3.csv, on 64 GPUs\n")
    assert list(rows(out)) == ["Policy", "fifo", "carrel"]
    assert rows(out)["fifo"][4] == "11 d 11 h"  # the reference's 991,216 s


def test_json_is_one_document_with_units_in_the_names(simulate: Simulate) -> None:
    found = simulate.json(MURI, "--policy", "fifo")
    (fifo,) = found["policies"]
    assert fifo["completion_seconds"]["mean"] == pytest.approx(991_215.65, abs=0.01)
    assert (found["gpus"], found["trace"]["jobs"], fifo["jobs"], found["report"]) == (64, 992, 992, None)
    assert found["facts"]["Version"].startswith("carrel ")


def test_other_machines(simulate: Simulate) -> None:
    assert simulate.json(TIRESIAS, "--gpus", "2x4", "--policy", "easy")["gpus"] == 8
    out = simulate.text(MURI, "--gpus", "1x1", "--policy", "fifo", "--policy", "carrel")
    assert "fifo refused job 0 and 857 more: needs 4 GPUs; the cluster has 1" in out
    assert "carrel refused job 0 and 857 more: The job asks for 4 nodes, but the lab has 1 that is large enough." in out
    assert out.startswith("trace3.csv, on 1 GPU\n")


def test_where_nothing_can_run_there_is_still_a_table(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "wide.swf"
    file.write_text("1 0 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n")
    out = simulate.text(str(file), "--gpus", "1x2", "--policy", "fifo", "--policy", "carrel")
    assert rows(out)["fifo"] == rows(out)["carrel"] == ["0", "1", *["–"] * 7]
    (job,) = simulate.json(str(file), "--gpus", "1x2", "--policy", "carrel")["policies"]
    assert (job["refused"], job["wait_seconds"], job["utilisation"]) == (1, None, None)
    assert job["refusals"] == [{"reason": "The job asks for 2 nodes, but the lab has 1 that is large enough.", "jobs": 1}]


def test_machines_that_no_memory_holds_are_refused(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "huge.swf"
    file.write_text("; MaxProcs: 99999999\n1 0 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n")
    assert simulate.error(str(file))[0] == "huge.swf was recorded on 99,999,999 GPUs."
    assert simulate.json(str(file), "--gpus", "1x4", "--policy", "fifo")["gpus"] == 4


def test_names_from_files_reach_no_terminal_as_they_are(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[31mb.swf"
    file.write_text("1 0 0 50 1 -1 -1 1 60 -1 1 1 1 1 1 -1 -1 -1\n")
    assert "\x1b" not in simulate.text(str(file), "--policy", "easy")


def test_the_report_is_a_page_that_needs_nothing(simulate: Simulate, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("an older one")
    assert simulate.text(*FEW, "--report", str(page)).endswith(f"\nThe report: {page}\n")
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert "<svg" in html
    assert "<script" not in html
    assert simulate.json(*FEW, "--report", str(page))["report"] == str(page)


def test_a_report_that_cannot_be_written_is_refused_before_the_simulation(simulate: Simulate, tmp_path: Path) -> None:
    words = ("--jobs", "10000000", "--report")  # would take hours
    assert simulate.error(*words, str(tmp_path / "none" / "r.html"))[0].endswith("cannot be written: No such file or directory.")
    file = tmp_path / "work.swf"
    file.write_text("1 0 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n")
    assert simulate.error(str(file), "--report", str(file))[0] == f"{file} is the trace."
    assert file.read_text().startswith("1 0 0 50")


# ---- the lab's rules


def test_the_rules_are_those_of_the_home_directory_or_of_a_file(simulate: Simulate, tmp_path: Path) -> None:
    words = (TIRESIAS, "--policy", "carrel", "--gpus", "8x8")
    free = simulate.json(*words)["policies"][0]["wait_seconds"]["mean"]
    simulate.rules("[qos.normal]\nmax_jobs_per_user = 1\n")  # without a preset it is the only class
    bound = simulate.json(*words)
    assert free == 0 < bound["policies"][0]["wait_seconds"]["mean"]
    assert NO_FILE not in bound["trace"]["notes"]
    file = tmp_path / "rules.toml"
    file.write_text('preset = "default"\n')
    found = simulate.json(*words, "--rules", str(file))
    assert found["policies"][0]["wait_seconds"]["mean"] == free
    assert found["facts"]["Rules"] == str(file)


def test_jobs_that_another_class_takes_are_told(simulate: Simulate) -> None:
    simulate.rules('preset = "default"\n[qos.normal]\nmax_gpus_per_user = 0\n')
    notes = simulate.json(TIRESIAS, "--policy", "carrel")["trace"]["notes"]
    # They ask for the next usual walltime, which the short class lets in.
    assert notes == ['carrel: jobs that QoS "normal" does not let in and "short" does: 60.']


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qos = 1", "qos must be tables."),
        ("[qos.normal]\nmax_time = 'soon'", "qos.normal.max_time: "),
        ("[qos.normal]\nmax_tiem = '1h'", 'there is no setting "max_tiem".'),
        ("[qso.normal]", 'there is no setting "qso".'),
        ("default_qos = 'nobody'", 'default_qos is "nobody".'),
        ("preset = 'nobody'", 'There is no preset "nobody".'),
        ("not toml", "is not valid TOML"),
    ],
)
def test_wrong_rules_are_refused_as_the_lab_refuses_them(simulate: Simulate, text: str, said: str) -> None:
    simulate.rules(text)
    assert said in simulate.error(*FEW, "--policy", "carrel")[0]


# ---- what if


def test_more_gpus(simulate: Simulate) -> None:
    out = simulate.text(*FEW, "--what-if", "gpus=+4")
    assert out.splitlines()[0] == "What if gpus=+4: 60 jobs like trace3.csv, seed 1, load 0.9, on 64 GPUs"
    table = rows(out)
    assert ["Now", "Then", "Change"] in [line.split() for line in out.splitlines()]
    assert table["GPUs"] == ["64", "68", "+6.2 %"]
    assert table["Jobs"] == ["60", "60", "0 %"]
    assert table["GPU-hours lost"] == ["0", "0"]  # sums of floating-point numbers are no change
    before, after = simulate.json(*FEW, "--what-if", "gpus=+4")["policies"]
    assert (before["policy"], after["policy"]) == ("carrel now", "carrel with gpus=+4")
    assert after["wait_seconds"]["mean"] < before["wait_seconds"]["mean"]


def test_several_changes_at_once(simulate: Simulate) -> None:
    found = simulate.json(*FEW, "--what-if", "gpus=32", "--what-if", "default_qos=short", "--what-if", "priority.half_life=1d")
    assert found["title"].startswith("What if gpus=32, default_qos=short, priority.half_life=1d: ")
    assert [one["gpus"] for one in found["policies"]] == [64, 32]
    assert any(note.startswith("carrel with gpus=32") and '"short" does not let in' in note for note in found["trace"]["notes"])


def test_another_preset(simulate: Simulate) -> None:
    before, after = simulate.json(*FEW, "--what-if", "preset=mlerp")["policies"]
    assert before["refused"] == 0 < after["refused"]  # no class of it takes jobs of more than a day


@pytest.mark.parametrize(
    ("change", "fact", "remedy"),
    [
        ("gpus", '"gpus" says no change.', "Write NAME=VALUE"),
        ("=4", '"=4" says no change.', "Write NAME=VALUE"),
        ("gpus=many", 'gpus is "many".', "Write +4 or -4"),
        ("gpus=-64", "There are 64 GPUs; -64 makes 0.", "Leave at least one."),
        ("host=here", '"host" is no rule.', "qos.batch.priority"),
        ("qos=5", '"qos" is no rule.', "qos.batch.priority"),
        ("qos.bach.priority=5", 'There is no class of service "bach" to change.', 'Did you mean "batch"?'),
        ("qos.batch=5", "With that change: qos must be tables.", "Write [qos.NAME]"),
        ("qos.batch.priority=x", "With that change: qos.batch.priority is 'x'.", "It must be a whole number."),
        ("qos.batch.prio=5", 'With that change: qos.batch: there is no setting "prio".', "priority"),
        ("priority.share_weight=-1h", "With that change: priority.share_weight: ", ""),
        ("default_qos=[1]", "With that change: default_qos is [1].", "It must be a text."),
        ("preset=nobody", 'There is no preset "nobody".', "Choose one of: default, mlerp."),
        ("accounts.physics.shares=x", "With that change: accounts.physics.shares is 'x'.", "It must be a whole number."),
    ],
)
def test_a_change_that_is_none_is_refused_without_a_word_about_files(
    simulate: Simulate, change: str, fact: str, remedy: str
) -> None:
    first, second = simulate.error(*FEW, "--what-if", change)
    assert first.startswith(fact)
    assert remedy in second
    assert "toml:" not in first


# ---- notebooks


def test_notebooks_in_every_mode(simulate: Simulate) -> None:
    out = simulate.text("--notebooks", "--seed", "2")
    assert re.match(r"Notebooks of notebook week, seed 2, scale 1, on \d+ GPUs\n", out)
    modes = ["reservation", "cull after 30 min", "cull after 120 min", "lease per cell, eager", "lease per cell, lazy"]
    assert list(rows(out)) == ["Mode", *modes]
    needed = [int(rows(out)[mode][0]) for mode in modes]
    assert needed[0] > needed[-1]
    found = simulate.json("--notebooks", "--seed", "2")
    assert [row["gpus_for_p95_wait_of_0_seconds"] for row in found["notebooks"]] == needed
    assert found["policies"] == []


def test_a_file_of_cells_on_so_many_gpus(simulate: Simulate) -> None:
    found = simulate.json(TIRESIAS, "--notebooks", "--gpus", "2x8")
    assert {row["gpus"] for row in found["notebooks"]} == {16}
    assert "one cell of a notebook" in found["trace"]["notes"][0]
    assert simulate.error(TIRESIAS, "--notebooks", "--gpus", "1x4")[0].endswith("needs 8 GPUs at once and there are 4.")


def test_tasks_behind_notebooks(simulate: Simulate) -> None:
    words = (TIRESIAS, "--notebooks", "--tasks", MURI, "--gpus", "2x8", "--state", "10G", "--task-turn", "3")
    out = simulate.text(*words)
    assert out.startswith("Notebooks of 60_job.csv, and tasks of trace3.csv behind them, on 16 GPUs\n")
    modes = ["reservation", "cells wait for tasks", "tasks lend, bus", "tasks lend, driver"]
    assert "  ".join(modes) in re.sub(" {2,}", "  ", out)
    assert len(rows(out)["GPUs busy"]) == len(modes)
    found = simulate.json(*words)
    assert [row["mode"] for row in found["together"]] == modes
    assert found["facts"]["Turn of a task"] == "3 s"
    assert all(row["cells_over"] == 60 for row in found["together"][2:]), "where tasks lend"
    assert found["policies"] == found["notebooks"] == []


# ---- what is wrong


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nofile"], "nofile cannot be read: No such file or directory."),
        (["."], ". cannot be read: Is a directory."),
        ([str(Path(__file__))], "does not begin like any trace that can be read."),
        ([MURI, "--form", "nope"], "There is no form of traces named 'nope'."),
        ([MURI, "--form", "swf"], "line 1: "),
        (["--form", "swf"], "--form says how to read a file, and none is named."),
        (["lab", "--form", "swf"], "--form says how to read a file, and none is named."),
        (["--policy", "nope"], 'There is no policy "nope".'),
        (["--gpus", "8"], '--gpus is "8".'),
        (["--gpus", "0x8"], '--gpus is "0x8".'),
        (["--gpus", "99999x999"], "--gpus 99999x999 is 99,899,001 GPUs."),
        (["--jobs", "0"], "Invalid value for '--jobs'"),
        (["--jobs", "1"], "make no load."),
        (["--load", "nan"], "Invalid value for '--load'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        ([MURI, "--jobs", "5"], "--jobs is about what is generated, and a trace is named."),
        ([MURI, "--load", "0.9"], "--load is about what is generated, and a trace is named."),
        (["lab", "--seed", "1"], "--seed is about what is generated, and a trace is named."),
        (["--rules", "nofile"], "There is no file nofile."),
        (["--policy", "fifo", "--what-if", "gpus=+4"], "--policy is given with --what-if"),
        (["--notebooks", "--policy", "fifo"], "--policy is about jobs, and --notebooks is not."),
        (["--notebooks", "--what-if", "gpus=+4"], "--what-if is about jobs, and --notebooks is not."),
        (["--notebooks", "--jobs", "5"], "--jobs is about jobs, and --notebooks is not."),
        (["--notebooks", "--rules", "x"], "--rules is about jobs, and --notebooks is not."),
        (["--tasks", "generated"], "--tasks puts tasks behind notebooks, and --notebooks is not given."),
        (["--notebooks", "--task-turn", "3"], "--task-turn is about tasks behind notebooks."),
        (["--broker"], "--broker is about notebooks alone."),
        (["lab", "--last", "30d"], "--last is about cells that a lab recorded."),
        (["--notebooks", "--last", "30d"], "--last is about cells that a lab recorded."),
        (["--notebooks", "lab", "--last", "30"], '"30" is not a duration'),
        (["--notebooks", "--homes-move"], "--homes-move is about where the broker brings states back."),
        (["--notebooks", "--tasks", "nofile"], "nofile cannot be read: No such file or directory."),
        (["--notebooks", "--tasks", "generated", "--state", "90G"], "A state is 96.6368 GB and a GPU has 85.8993 GB."),
        ([*FEW, "--policy", "easy", "--report", "/nonexistent/x.html"], "/nonexistent/x.html cannot be written"),
        ([*FEW, "--policy", "easy", "--report", "/"], "/ cannot be written: Is a directory."),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_said_with_a_remedy(simulate: Simulate, words: list[str], fact: str) -> None:
    first, second = simulate.error(*words)
    assert fact in first
    assert second
    problem = json.loads(simulate(*words, "--json")[2])
    assert (problem["status"], problem["detail"]) == (422, first)


def test_ctrl_c_ends_it_and_takes_the_bar_away(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [*CARREL, "simulate", "--jobs", "200000", "--policy", "srtf", "--home", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=environment) as command:
        os.close(theirs)
        shown = b""
        # Not with the first sign of it, when modules are still imported: there Python itself may pass over an interrupt.
        while shown.count(b"srtf") < 3:
            shown += os.read(ours, 4096)
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=PATIENCE)
        shown = os.read(ours, 65536)
    os.close(ours)
    assert (command.returncode, out) == (130, b""), shown
    assert shown.endswith(b"\r\x1b[2K")
    assert b"Traceback" not in shown


def test_it_needs_no_server(tmp_path: Path) -> None:
    blocked = {"fastapi", "sqlalchemy", "uvicorn", "mlflow", "pynvml", "httpx"}
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from carrel.cli.main import main
for words in ([], ["--what-if", "gpus=+4"], ["--notebooks"]):
    jobs = [] if "--notebooks" in words else ["--jobs", "20"]
    assert main(["simulate", "--home", {str(tmp_path)!r}, *words, *jobs, "--report", {str(tmp_path / "r.html")!r}]) == 0, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


# ---- a lab's own history


@pytest.fixture
def history(client: Client, tmp_path: Path) -> list[int]:
    """Jobs that ran in the lab; one was tried twice."""
    task = script(tmp_path / "task", "true\n")
    asked = v1.ResourceRequest(gpus=1, time="10m")
    ended = [client.submit_project(task, name="simulated", resources=asked).id for _ in range(3)]
    broken = script(tmp_path / "broken", "false\n")
    ended.append(client.submit_project(broken, name="tried twice", resources=asked, retries=1).id)
    for job_id in ended:
        client.wait(job_id, timeout=PATIENCE)
    return ended


def test_an_administrator_simulates_everybodys_jobs(
    carrel: CommandLine, other: CommandLine, client: Client, history: list[int], tmp_path: Path
) -> None:
    other("run", script(tmp_path / "theirs", "true\n"))
    everybody = [job for job in client.jobs("all", limit=None) if job.started_at is not None and job.ended]
    done = carrel("simulate", "lab", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert found["title"] == "history of this lab, on 2 GPUs"
    assert found["trace"]["jobs"] == len(everybody) > len(history)
    assert [one["policy"] for one in found["policies"]] == list(POLICIES)
    assert len(found["policies"][-1]["users"]) == len({job.owner for job in everybody})
    assert any("tried several times" in note for note in found["trace"]["notes"])


def test_a_user_simulates_their_own_jobs(other: CommandLine, history: list[int], tmp_path: Path) -> None:
    none = other("simulate", "lab")
    assert none.code == 2
    assert none.err.startswith("error: In the history of your own jobs is no job that has ended (0 jobs in all).")
    other("run", script(tmp_path / "mine", "true\n"))
    found = other("simulate", "lab", "--policy", "carrel", "--json").json
    assert (found["title"], found["trace"]["jobs"]) == ("history of your own jobs, on 2 GPUs", 1)
    assert found["trace"]["notes"] == ["Nobody else's jobs are in line here, so waits are shorter than they were.", NO_FILE]


def test_more_gpus_for_what_ran_in_the_lab(carrel: CommandLine, history: list[int]) -> None:
    found = carrel("simulate", "lab", "--what-if", "gpus=+2", "--json").json
    assert [one["gpus"] for one in found["policies"]] == [2, 4]
    other_machines = carrel("simulate", "lab", "--gpus", "2x4", "--policy", "easy", "--json").json
    assert other_machines["gpus"] == 8


def test_no_lab_is_said_with_what_to_do(tmp_path: Path) -> None:
    done = CommandLine({"CARREL_HOME": str(tmp_path)})("simulate", "lab")
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith(f"error: No lab is running in {tmp_path}.")

"""`carrel simulate` as an administrator meets it."""

from __future__ import annotations

import csv
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
from carrel.wire import v1

HERE = str(Path(__file__))
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


def jobs(many: int) -> str:
    """Lines of SWF for 8 GPUs: three users submit a job each minute, with 1, 2 and 4 GPUs in turn, for some minutes."""
    lines = [
        f"{number} {60 * number} 0 {200 + 37 * (number % 11)} {2 ** ((number + 2) % 3)} -1 -1 -1 1800 -1 1 "
        f"{number % 3 + 1} 1 1 1 1 -1 -1"
        for number in range(1, many + 1)
    ]
    return "\n".join(["; MaxNodes: 2", "; MaxProcs: 8", *lines, ""])


@pytest.fixture
def swf(tmp_path: Path) -> str:
    file = tmp_path / "work.swf"
    file.write_text(jobs(60))
    return str(file)


def rows(text: str) -> dict[str, list[str]]:
    """Rows of the table by their first cell; two blanks are between columns."""
    lines = [re.split(r" {2,}", line) for line in text.splitlines() if not line.startswith("  ")]
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 2}


# ---- policies


@pytest.mark.gate
def test_the_labs_rules_beside_easy(simulate: Simulate, swf: str) -> None:
    out = simulate.text(swf)
    assert out.splitlines()[0] == "work.swf, on 8 GPUs"
    assert list(rows(out)) == ["Policy", "easy", "carrel"]
    assert {row[0] for name, row in rows(out).items() if name != "Policy"} == {"60"}
    assert f"  {NO_FILE}" in out.splitlines()
    assert simulate.text(swf) == out, "the same again"


def test_json_is_one_document_with_units_in_the_names(simulate: Simulate, swf: str) -> None:
    found = simulate.json(swf)
    easy, carrel = found["policies"]
    assert (easy["policy"], carrel["policy"]) == ("easy", "carrel")
    assert easy["completion_seconds"]["mean"] > easy["wait_seconds"]["mean"] > 0
    assert (found["gpus"], found["trace"]["jobs"], easy["jobs"]) == (8, 60, 60)
    assert found["facts"]["Version"].startswith("carrel ")
    assert {user["user"] for user in carrel["users"]} == {"user-1", "user-2", "user-3"}


def test_csv_has_a_line_for_each_policy(simulate: Simulate, swf: str) -> None:
    lines = list(csv.DictReader(simulate.text(swf, "--csv").splitlines()))
    assert [line["policy"] for line in lines] == ["easy", "carrel"]
    for line, one in zip(lines, simulate.json(swf)["policies"], strict=True):
        assert float(line["wait_seconds_p95"]) == one["wait_seconds"]["p95"]
        assert float(line["gpu_hours"]) == one["gpu_hours"]
    assert "--csv and --json are two forms." in simulate(swf, "--csv", "--json")[2]


def test_slurms_accounting_is_read(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(
        "JobID|User|Account|Submit|Start|End|TimelimitRaw|ReqTRES|AllocTRES|JobName\n"
        "1|ada|physics|2026-11-02T10:00:00|2026-11-02T10:05:00|2026-11-02T11:05:00|120||cpu=8,gres/gpu=2|train\n"
    )
    found = simulate.json(str(file))
    assert [(one["jobs"], one["users"][0]["user"], one["gpu_hours"]) for one in found["policies"]] == [(1, "ada", 2.0)] * 2


def test_other_machines(simulate: Simulate, swf: str) -> None:
    assert simulate.json(swf, "--gpus", "2x4")["gpus"] == 8
    out = simulate.text(swf, "--gpus", "1x1")
    assert "carrel refused job 2 and 39 more: The job asks for 2 nodes, but the lab has 1 that is large enough." in out
    assert out.startswith("work.swf, on 1 GPU\n")


def test_where_nothing_can_run_there_is_still_a_table(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "wide.swf"
    file.write_text("1 0 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n")
    out = simulate.text(str(file), "--gpus", "1x2")
    assert rows(out)["easy"] == rows(out)["carrel"] == ["0", "1", *["–"] * 7]
    job = simulate.json(str(file), "--gpus", "1x2")["policies"][1]
    assert (job["refused"], job["wait_seconds"], job["utilisation"]) == (1, None, None)
    assert job["refusals"] == [{"reason": "The job asks for 2 nodes, but the lab has 1 that is large enough.", "jobs": 1}]


def test_machines_that_no_memory_holds_are_refused(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "huge.swf"
    file.write_text("; MaxProcs: 99999999\n1 0 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n")
    assert simulate.error(str(file))[0] == "huge.swf was recorded on 99,999,999 GPUs."
    assert simulate.json(str(file), "--gpus", "1x4")["gpus"] == 4


def test_names_from_files_reach_no_terminal_as_they_are(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[31mb.swf"
    file.write_text("1 0 0 50 1 -1 -1 1 60 -1 1 1 1 1 1 -1 -1 -1\n")
    assert "\x1b" not in simulate.text(str(file))


# ---- the lab's rules


def test_the_rules_are_those_of_the_home_directory_or_of_a_file(simulate: Simulate, swf: str, tmp_path: Path) -> None:
    words = (swf, "--gpus", "8x8")
    free = simulate.json(*words)["policies"][1]["wait_seconds"]["mean"]
    simulate.rules("[qos.normal]\nmax_jobs_per_user = 1\n")  # without a preset it is the only class
    bound = simulate.json(*words)
    assert free == 0 < bound["policies"][1]["wait_seconds"]["mean"]
    assert NO_FILE not in bound["trace"]["notes"]
    file = tmp_path / "rules.toml"
    file.write_text('preset = "default"\n')
    found = simulate.json(*words, "--rules", str(file))
    assert found["policies"][1]["wait_seconds"]["mean"] == free
    assert found["facts"]["Rules"] == str(file)


def test_jobs_that_another_class_takes_are_told(simulate: Simulate, swf: str) -> None:
    simulate.rules('preset = "default"\n[qos.normal]\nmax_gpus_per_user = 0\n')
    notes = simulate.json(swf)["trace"]["notes"]
    # They ask for half an hour, which the short class lets in.
    assert notes[1:] == ['carrel: jobs that QoS "normal" does not let in and "short" does: 60.']


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
def test_wrong_rules_are_refused_as_the_lab_refuses_them(simulate: Simulate, swf: str, text: str, said: str) -> None:
    simulate.rules(text)
    assert said in simulate.error(swf)[0]


# ---- what if


def test_more_gpus(simulate: Simulate, swf: str) -> None:
    out = simulate.text(swf, "--what-if", "gpus=+4")
    assert out.splitlines()[0] == "What if gpus=+4: work.swf, on 8 GPUs"
    table = rows(out)
    assert ["Now", "Then", "Change"] in [line.split() for line in out.splitlines()]
    assert table["GPUs"] == ["8", "12", "+50.0 %"]
    assert table["Jobs"] == ["60", "60", "0 %"]
    assert table["GPU-hours lost"] == ["0", "0"]  # sums of floating-point numbers are no change
    before, after = simulate.json(swf, "--what-if", "gpus=+4")["policies"]
    assert (before["policy"], after["policy"]) == ("carrel now", "carrel with gpus=+4")
    assert after["wait_seconds"]["mean"] < before["wait_seconds"]["mean"]


def test_machines_from_parts_beside_those_that_stand(simulate: Simulate, swf: str) -> None:
    told = simulate.text(swf, "--composed", "--small", "50")
    assert "A machine of a pool is made in 60 s" in told
    assert [row.split("  ")[0] for row in told.splitlines()[-4:]] == ["nodes", "nodes, slices", "pool", "pool, slices"]
    assert simulate.json(swf, "--composed")["layouts"][0]["gpus"] == 8
    assert simulate.error(swf, "--small", "5")[0] == "--small is about slices."
    assert "compares rules" in simulate.error(swf, "--composed", "--what-if", "gpus=+1")[0]


def test_several_changes_at_once(simulate: Simulate, swf: str) -> None:
    changes = ("gpus=4", "default_qos=short", "qos.short.max_gpus_per_user=1", "priority.half_life=1d")
    found = simulate.json(swf, *(word for change in changes for word in ("--what-if", change)))
    assert found["title"].startswith(f"What if {', '.join(changes)}: ")
    assert [one["gpus"] for one in found["policies"]] == [8, 4]
    assert any(note.startswith("carrel with gpus=4") and '"short" does not let in' in note for note in found["trace"]["notes"])


def test_another_preset(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "long.swf"
    file.write_text(jobs(5).replace(" 1800 ", f" {30 * 86400} "))
    before, after = simulate.json(str(file), "--what-if", "preset=mlerp")["policies"]
    assert before["refused"] == 0 < after["refused"]  # no class of it takes jobs of a month


@pytest.mark.parametrize(
    ("change", "fact", "remedy"),
    [
        ("gpus", '"gpus" says no change.', "Write NAME=VALUE"),
        ("=4", '"=4" says no change.', "Write NAME=VALUE"),
        ("gpus=many", 'gpus is "many".', "Write +4 or -4"),
        ("gpus=-8", "There are 8 GPUs; -8 makes 0.", "Leave at least one."),
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
    simulate: Simulate, swf: str, change: str, fact: str, remedy: str
) -> None:
    first, second = simulate.error(swf, "--what-if", change)
    assert first.startswith(fact)
    assert remedy in second
    assert "toml:" not in first


# ---- notebooks

CELLS = """\
job_id,num_gpu,submit_time,duration,session,session_ended
1,1,0,100,a,
2,1,200,100,a,400
3,1,50,100,b,
4,2,400,100,c,
"""


def test_a_file_of_cells_by_the_brokers_own_policy(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "cells.csv"
    file.write_text(CELLS)
    out = simulate.text("--notebooks", str(file))
    assert out.startswith("Notebooks of cells.csv, on 2 GPUs\n")
    assert list(rows(out)) == ["Mode", "carrel"]
    assert "  Waits and pauses are taken out of what was recorded." in out
    found = simulate.json("--notebooks", str(file), "--gpus", "1x3")
    (row,) = found["notebooks"]
    assert (row["mode"], row["gpus"], row["gpu_hours_of_cells"]) == ("carrel", 3, pytest.approx(500 / 3600))
    assert (found["policies"], found["facts"]["Sessions"]) == ([], "3")
    (line,) = csv.DictReader(simulate.text("--notebooks", str(file), "--csv").splitlines())
    assert (line["mode"], line["gpus_for_p95_wait_of_0_seconds"]) == ("carrel", "2")
    assert simulate.error("--notebooks", str(file), "--gpus", "1x1")[0] == "Session c needs 2 GPUs at once and there are 1."


#: Three notebooks on two GPUs. When the first comes back, the third computes where it was, and the other GPU is free.
THREE_NOTEBOOKS = """\
job_id,num_gpu,submit_time,duration,session,session_ended
1,1,0,10,a,210
2,1,200,10,a,210
3,1,0,100,b,100
4,1,20,1000,c,1020
"""


def test_states_come_back_on_any_gpu_or_only_at_home(simulate: Simulate, tmp_path: Path) -> None:
    file = tmp_path / "cells.csv"
    file.write_text(THREE_NOTEBOOKS)
    here = ("--notebooks", str(file), "--gpus", "1x2")
    assert "  A state in host memory comes back on any GPU.\n" in simulate.text(*here)
    assert "  A state in host memory comes back on the GPUs that it left, and no others.\n" in simulate.text(
        *here, "--homes-stay"
    )
    (anywhere,), (at_home,) = (simulate.json(*here, *more)["notebooks"] for more in ((), ("--homes-stay",)))
    assert (anywhere["pauses"], at_home["pauses"]) == (0, 1)


# ---- what is wrong


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nofile"], "nofile cannot be read: No such file or directory."),
        (["."], ". cannot be read: Is a directory."),
        ([HERE], "does not begin like any trace that can be read."),
        ([HERE, "--form", "nope"], "There is no form of traces named 'nope'."),
        ([HERE, "--form", "swf"], "line 1: "),
        (["--form", "swf"], "--form says how to read a file, and none is named."),
        (["lab", "--form", "swf"], "--form says how to read a file, and none is named."),
        ([HERE, "--gpus", "8"], '--gpus is "8".'),
        ([HERE, "--gpus", "0x8"], '--gpus is "0x8".'),
        ([HERE, "--gpus", "99999x999"], "--gpus 99999x999 is 99,899,001 GPUs."),
        ([HERE, "--rules", "nofile"], "There is no file nofile."),
        (["--notebooks", HERE], "line 1: the header "),
        (["--notebooks", "--what-if", "gpus=+4"], "--what-if is about jobs, and --notebooks is not."),
        (["--notebooks", HERE, "--form", "swf"], "--form is about jobs, and --notebooks is not."),
        (["--notebooks", "--rules", "x"], "--rules is about jobs, and --notebooks is not."),
        (["lab", "--homes-stay"], "--homes-stay is about cells of notebooks."),
        (["lab", "--last", "30d"], "--last is about cells of notebooks."),
        (["--notebooks", HERE, "--last", "30d"], "--last is about cells that a lab recorded."),
        (["--notebooks", "lab", "--last", "30"], '"30" is not a duration'),
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
    file = tmp_path / "many.swf"
    file.write_text(jobs(100_000))
    words = [*CARREL, "simulate", str(file), "--home", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=environment) as command:
        os.close(theirs)
        shown = b""
        # Not with the first sign of it, when modules are still imported: there Python itself may pass over an interrupt.
        while shown.count(b"easy") < 3:
            shown += os.read(ours, 4096)
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=PATIENCE)
        shown = os.read(ours, 65536)
    os.close(ours)
    assert (command.returncode, out) == (130, b""), shown
    assert shown.endswith(b"\r\x1b[2K")
    assert b"Traceback" not in shown


def test_it_needs_no_server(tmp_path: Path, swf: str) -> None:
    cells = tmp_path / "cells.csv"
    cells.write_text(CELLS)
    blocked = {"fastapi", "sqlalchemy", "uvicorn", "mlflow", "pynvml", "httpx"}
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from carrel.cli.main import main
for words in ([{swf!r}], [{swf!r}, "--what-if", "gpus=+4"], ["--notebooks", {str(cells)!r}]):
    assert main(["simulate", "--home", {str(tmp_path)!r}, *words]) == 0, words
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
    assert [one["policy"] for one in found["policies"]] == ["easy", "carrel"]
    assert len(found["policies"][-1]["users"]) == len({job.owner for job in everybody})
    assert any("tried several times" in note for note in found["trace"]["notes"])


def test_a_user_simulates_their_own_jobs(other: CommandLine, history: list[int], tmp_path: Path) -> None:
    none = other("simulate", "lab")
    assert none.code == 2
    assert none.err.startswith("error: In the history of your own jobs is no job that has ended (0 jobs in all).")
    other("run", script(tmp_path / "mine", "true\n"))
    found = other("simulate", "lab", "--json").json
    assert (found["title"], found["trace"]["jobs"]) == ("history of your own jobs, on 2 GPUs", 1)
    assert found["trace"]["notes"] == ["Nobody else's jobs are in line here, so waits are shorter than they were.", NO_FILE]


def test_more_gpus_for_what_ran_in_the_lab(carrel: CommandLine, history: list[int]) -> None:
    found = carrel("simulate", "lab", "--what-if", "gpus=+2", "--json").json
    assert [one["gpus"] for one in found["policies"]] == [2, 4]
    other_machines = carrel("simulate", "lab", "--gpus", "2x4", "--json").json
    assert other_machines["gpus"] == 8


def test_no_lab_is_said_with_what_to_do(tmp_path: Path) -> None:
    done = CommandLine({"CARREL_HOME": str(tmp_path)})("simulate", "lab")
    assert (done.code, done.out) == (6, "")
    assert done.err.startswith(f"error: No lab is running in {tmp_path}.")

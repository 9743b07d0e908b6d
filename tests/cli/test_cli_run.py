"""`carrel run` and `carrel submit`: a task's log and exit code, and what Ctrl-C means."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine, script

from carrel.client import Client
from carrel.wire.v1 import EventView, JobDetail, JobView, ResourceRequest


@pytest.mark.gate
def test_the_log_goes_to_stdout_and_the_news_to_stderr(carrel: CommandLine, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "echo first; echo second >&2; echo $1\n")
    done = carrel("run", task, "--name", "said", "--", "--lr 0.1")
    assert done.code == 0
    assert done.out == "first\nsecond\n--lr 0.1\n"
    assert "COMPLETED" in done.err
    assert "first" not in done.err


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        ("exit 7\n", (), 7),
        ("kill -SEGV $$\n", (), 128 + signal.SIGSEGV),
        ("exec sleep 600\n", ("--time", "2s"), 124),
    ],
    ids=["its own", "signal", "timeout"],
)
def test_it_ends_with_the_tasks_exit_code(
    carrel: CommandLine, tmp_path: Path, text: str, options: tuple[str, ...], code: int
) -> None:
    done = carrel("run", script(tmp_path / "code", text), *options)
    assert done.code == code, done.err


def test_the_log_is_the_same_byte_for_byte(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    pieces = b"text \xff\xfe no text\n\xe2\x82", b"\xac whole again \x00\n\xe2\x82"
    first, second = ("".join(rf"\{byte:03o}" for byte in piece) for piece in pieces)
    task = script(tmp_path / "code", f"printf '{first}'; sleep 0.3; printf '{second}'\n")
    out = []
    for words in (("run", task, "--name", "bytes"), ("logs", "-f", "ID"), ("logs", "ID")):
        number = next((str(job.id) for job in client.jobs(name="bytes")), "")
        process = carrel.start(*(number if word == "ID" else word for word in words), text=False)
        out.append(process.communicate(timeout=PATIENCE)[0])
        assert process.returncode == 0
    assert out == [b"".join(pieces)] * 3


def test_attempts_of_bytes_follow_each_other(carrel: CommandLine, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "printf '\\377'; sleep 0.2; printf '\\376\\n'; exit 3\n")
    process = carrel.start("run", task, "--retries", "1", text=False)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert out == b"\xff\xfe\n[carrel] Exit code 3.\n" * 2
    assert b"--- attempt 2 ---" in err


def test_a_job_goes_on_when_nobody_reads_its_log(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f"echo first; until [ -e {gate} ]; do sleep 0.05; done; echo second; until [ -e {gate}.2 ]; do sleep 0.05; done\n"
    process = carrel.start("run", script(tmp_path / "code", text), "--name", "unread")
    assert process.stdout.readline() == "first\n"
    process.stdout.close()
    gate.touch()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE) == 0
    (job,) = client.jobs(name="unread")
    assert f"job {job.id} goes on" in said
    assert job.state == "RUNNING"
    Path(f"{gate}.2").touch()
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"


def test_parameters_variables_and_arguments_arrive(carrel: CommandLine, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "MLproject").write_text(
        "name: greeting\nentry_points:\n  main:\n    parameters:\n      who: {type: string, default: nobody}\n"
        "    command: 'echo hello {who} $MOOD $GIVEN'\n  other:\n    command: 'echo the other one'\n"
    )
    here = CommandLine({**carrel.variables, "GIVEN": "from here"})
    done = here("run", str(project), "-P", "who=you there", "--env", "MOOD=glad", "--env", "GIVEN")
    assert (done.code, done.out) == (0, "hello you there glad from here\n"), done.err
    assert carrel("run", str(project), "-e", "other").out == "the other one\n"


def test_a_waiting_job_says_why(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    blocker = client.submit_project(script(tmp_path / "a", "exec sleep 600\n"), resources=_gpus(2))
    process = carrel.start("run", script(tmp_path / "b", "echo mine\n"), "--gpus", "1")
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if "in line" in line:
            break
    client.cancel(blocker.id)
    out, err = process.communicate(timeout=PATIENCE)
    assert any("#1 in line: needs 1 GPU" in line for line in seen), [*seen, err]
    assert "simulated GPU" in seen[0]
    assert (process.returncode, out) == (0, "mine\n")


def test_json_is_one_document_a_line(carrel: CommandLine, tmp_path: Path) -> None:
    done = carrel("run", script(tmp_path / "code", "echo text; exit 3\n"), "--json")
    assert done.code == 3
    assert done.err == ""
    first, *events, last = [json.loads(line) for line in done.out.splitlines()]
    assert first["type"] == "submitted"
    assert JobView.model_validate(first["job"]).state == "PENDING"
    seen = [EventView.model_validate(event) for event in events]
    assert "".join(event.data["text"] for event in seen if event.type == "log").startswith("text\n")
    assert last["type"] == "ended"
    assert JobDetail.model_validate(last["job"]).exit_code == 3


def test_ctrl_c_cancels_the_job(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    process = carrel.start("run", script(tmp_path / "code", "echo started; exec sleep 600\n"), "--name", "stopped")
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "CANCELLED" in err
    (job,) = client.jobs(name="stopped")
    assert job.state == "CANCELLED"


def test_a_second_ctrl_c_leaves_the_job(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    stubborn = script(tmp_path / "code", f"trap '' TERM; echo started; while [ ! -e {go} ]; do sleep 0.1; done\n")
    process = carrel.start("run", stubborn, "--name", "stubborn")
    assert process.stderr is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "Ctrl-C again" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    (job,) = client.jobs(name="stubborn")
    assert f"carrel logs -f {job.id}" in err
    go.touch()
    assert client.wait(job.id, timeout=PATIENCE).state == "CANCELLED"


def test_ctrl_c_in_logs_leaves_the_job_alone(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    job = client.submit_project(script(tmp_path / "code", "echo started; exec sleep 600\n"))
    process = carrel.start("logs", "-f", str(job.id))
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert client.job(job.id).state == "RUNNING"
    client.cancel(job.id)
    assert client.wait(job.id, timeout=PATIENCE).state == "CANCELLED"


def test_submit_and_detach_return_at_once(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "exec sleep 600\n")
    for words in (("submit", task), ("run", "--detach", task)):
        done = carrel(*words, "--json", "--cpus", "1", "--memory", "64M", "--qos", "batch", "--retries", "2")
        job = JobView.model_validate(done.json)
        assert done.code == 0
        assert (job.qos, job.resources.memory) == ("batch", 64 * 1024**2)
        client.cancel(job.id)
        client.wait(job.id, timeout=PATIENCE)
    assert f"Submitted job {job.id + 1}" in carrel("submit", script(tmp_path / "code", "true\n")).out


def test_a_backend_config_may_be_text_or_a_file(carrel: CommandLine, tmp_path: Path) -> None:
    task = script(tmp_path / "code", "true\n")
    file = tmp_path / "config.json"
    file.write_text('{"mem": "96M"}')
    for given in ('{"mem": "96M"}', str(file)):
        done = carrel("submit", task, "--backend-config", given, "--json")
        assert done.json["resources"]["memory"] == 96 * 1024**2, done.err
    for wrong, fact in (
        ('{"mem": ', "not JSON"),
        ("[1]", "cannot be read"),
        ('{"wat": 1}', "wat"),
        ("/nonexistent", "cannot be read"),
    ):
        done = carrel("submit", task, "--backend-config", wrong)
        assert (done.code, done.out) == (2, "")
        assert fact in done.err


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (("/nonexistent",), 3, "no file or directory"),
        (("https://example.invalid/x.git",), 6, "git fetch failed"),
        (("TASK", "-P", "novalue"), 2, "has no value"),
        (("TASK", "-P", "a=1", "-P", "a=2"), 2, "twice"),
        (("TASK", "--env", "CARREL_TEST_UNSET"), 2, "no variable"),
        (("TASK", "--gpus", "3"), 2, "3 GPUs"),
        (("TASK", "--memory", "lots"), 2, "not a size"),
        (("TASK", "--qos", "bacht"), 2, "bacht"),
        (("TASK", "--version", "main"), 2, "version"),
        (("TASK", "--lr", "0.1"), 2, "No such option"),
        ((), 2, "Missing argument"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(
    carrel: CommandLine, tmp_path: Path, words: tuple[str, ...], code: int, fact: str
) -> None:
    task = script(tmp_path / "code", "true\n")
    done = carrel("submit", *(task if word == "TASK" else word for word in words))
    assert done.code == code, done.err
    assert done.out == ""
    first, *more = done.err.splitlines()
    assert fact in first
    assert more, "there is no remedy"
    assert "Traceback" not in done.err


def test_the_separator_is_explained_where_it_is_missing(carrel: CommandLine, tmp_path: Path) -> None:
    done = carrel("run", script(tmp_path / "code", "true\n"), "--learning-rate", "0.1")
    assert "come after --" in done.err


def _gpus(number: int) -> ResourceRequest:

    return ResourceRequest(gpus=number)


def test_several_processes_are_one_job(carrel: CommandLine, client: Client, tmp_path: Path) -> None:
    task = script(tmp_path / "code", 'echo "of $WORLD_SIZE"; [ $RANK != 1 ] || exit 5\n')
    done = carrel("run", task, "--tasks-per-node", "2")
    assert done.code == 5
    assert "1: of 2\n" in done.out
    assert "rank 1 on" in done.err
    (job,) = client.jobs(limit=1)
    shown = carrel("show", str(job.id))
    assert [line.split() for line in shown.out.splitlines() if line.startswith("processes")] == [["processes", "2"]]
    refused = carrel("run", task, "--nodes", "2")
    assert refused.code != 0
    assert "tasks_per_node" in refused.err


def test_a_script_in_a_home_directory_travels_alone_and_says_what_it_missed(
    carrel: CommandLine, client: Client, tmp_path: Path
) -> None:
    home = tmp_path / "me"
    task = script(home, "import helper\nprint(sorted(helper.around()))\nprint(open('data.csv').read())\n", "train.py")
    (home / "helper.py").write_text("import os\ndef around(): return os.listdir()\n")
    (home / "data.csv").write_text("12345")
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_text("key")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(home / "agent.sock"))
    at_home = CommandLine({**carrel.variables, "HOME": str(home)}, cwd=home)
    missed = at_home("run", "train.py")
    assert missed.code == 1
    assert missed.out.splitlines()[0] == "['__pycache__', 'helper.py', 'outputs', 'train.py']"
    task_size, helper_size = ((home / name).stat().st_size for name in ("train.py", "helper.py"))
    assert f"  code     train.py ({task_size} B), helper.py ({helper_size} B)" in missed.err
    assert "warning: train.py mentions data.csv, which does not travel; --with data.csv adds it." in missed.err
    assert f"data.csv is in {home} and did not travel; --with data.csv adds it." in missed.err.splitlines()[-1]
    found = at_home("run", "train.py", "--with", "data.csv")
    assert (found.code, found.out.splitlines()[-1]) == (0, "12345")
    assert "warning" not in found.err
    submitted = at_home("submit", task, "--", "data.csv")
    assert f"  code     train.py ({task_size} B), data.csv (5 B), helper.py ({helper_size} B)" in submitted.err
    (job,) = client.jobs(limit=1)
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    said = at_home("run", "train.py", "--json").out.splitlines()
    assert [file["path"] for file in json.loads(said[0])["code"]["files"]] == ["helper.py", "train.py"]
    listening.close()

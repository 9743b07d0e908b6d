"""A lab whose jobs are kept apart by the kernel (`isolation = "kernel"`): what they see, and that all else is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.client import Client
from carrel.testing.lab_process import start_lab
from carrel.testing.namespaces import why_no_namespaces
from carrel.testing.notebook_client import SessionBrowser
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest, SessionRequest

LOOK = """
import json, os, pathlib, sys
home = pathlib.Path(sys.argv[1])
found = {}
for name in ("token", "secret", "lab.db", "carrel.toml"):
    try:
        found[name] = (home / name).read_text(errors="replace")
    except OSError as error:
        found[name] = type(error).__name__
attempt = pathlib.Path.cwd().parent
found["spool"] = sorted(os.listdir(home / "spool"))
processes = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 1]
found["others"] = [pid for pid in processes if "carrel.runner" in open(f"/proc/{pid}/cmdline").read()]
found["tmp"] = os.listdir("/tmp")
try:
    (attempt / "journal").open("a").close()
    found["journal"] = "writable"
except OSError as error:
    found["journal"] = type(error).__name__
found["home"] = os.environ["HOME"]
pathlib.Path(os.environ["HOME"], "kept").write_text("kept")
pathlib.Path(os.environ["CARREL_OUTPUT_DIR"], "made.txt").write_text("made")
pathlib.Path(os.environ["TMPDIR"], "scratch").write_text("x")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("isolated") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\ntracking = false\n')
    return home


@pytest.fixture(scope="module")
def clients(home: Path) -> Iterator[tuple[Client, Client]]:
    """Of the lab's own user, and of somebody else."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    lab = start_lab(home, "--cpus", "4", simulate_gpus=1)
    with Client(home=home) as own:
        token = own.add_user("mallory").token
        with Client(url=lab.url, token=token) as other:
            yield own, other
    lab.stop()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("code")
    (directory / "look.py").write_text(LOOK)
    return directory


def run(client: Client, code: Path, script: str | None = None, *arguments: str, **more: Any) -> tuple[JobDetail, str]:
    job = client.submit_project(code, script=script, arguments=arguments, **more)
    ended = client.wait(job.id, timeout=PATIENCE)
    return ended, b"".join(client.log(job.id)).decode()


def test_a_task_sees_its_own_and_nothing_of_the_labs(clients: tuple[Client, Client], code: Path, home: Path) -> None:
    own, other = clients
    run(own, code, "look.py", str(home))
    job, log = run(other, code, "look.py", str(home))
    assert job.state == "COMPLETED", log
    found = json.loads(log.splitlines()[-1])
    assert [found[name] for name in ("token", "secret", "lab.db", "carrel.toml")] == ["FileNotFoundError"] * 4
    assert len(found["spool"]) == 1
    assert found["others"] == []
    assert found["journal"] == "OSError"
    assert found["home"] == str(home / "homes" / "mallory")
    assert (home / "homes" / "mallory" / "kept").read_text() == "kept"
    assert [output.path for output in other.outputs(job.id)] == ["outputs/made.txt"]
    assert list((home / "spool" / str(job.id) / "1").glob("private-tmp")) == []


@pytest.mark.parametrize(
    ("text", "state", "code_of"),
    [
        ("import sys; sys.exit(3)", "FAILED", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "FAILED", None),
        ("x = bytearray(600 * 1024**2)", "OUT_OF_MEMORY", None),
        ("import time; time.sleep(600)", "TIMEOUT", None),
        ("import subprocess; subprocess.Popen(['sleep', '600'])", "COMPLETED", 0),
    ],
    ids=["exit", "signal", "memory", "time", "left behind"],
)
def test_jobs_end_as_they_do_without(
    clients: tuple[Client, Client], tmp_path: Path, text: str, state: str, code_of: int | None
) -> None:
    _own, other = clients
    (tmp_path / "end.py").write_text(text)
    resources = ResourceRequest(memory="256M", time="3s" if state == "TIMEOUT" else "10m")
    job, log = run(other, tmp_path, "end.py", resources=resources)
    assert job.state == state, log
    assert job.exit_code == code_of


def test_a_task_of_several_processes_is_one_behind_the_walls(clients: tuple[Client, Client], home: Path, tmp_path: Path) -> None:
    _own, other = clients
    (tmp_path / "part.py").write_text(
        "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['HOME'])"
    )
    (tmp_path / "MLproject").write_text('name: parts\nentry_points:\n  main:\n    command: "python3 part.py"\n')
    job, log = run(other, tmp_path, tasks_per_node=2)
    assert job.state == "COMPLETED", (job.reason, log)
    assert sorted(line.split("rank ")[1] for line in log.splitlines() if "rank" in line) == [
        f"{rank} of 2 {home / 'homes' / 'mallory'}" for rank in (0, 1)
    ]


def test_a_cell_borrows_a_gpu_behind_the_walls(clients: tuple[Client, Client], home: Path) -> None:
    """The broker knows the kernel by what the system says of its socket, not by the number that it has inside."""
    _own, other = clients
    session = other.start_session(SessionRequest(gpus=1))
    wait_until(lambda: other.session(session.job.id).ready, "the session")
    with SessionBrowser(other.open_session(session.job.id)) as browser:
        kernel = browser.start_kernel()
        look = f"# carrel: gpus=1\nimport os\nprint(os.getpid() < 1000, os.path.exists({str(home / 'token')!r}), os.getcwd())"
        cell = kernel.execute(look)
        assert cell.text.split() == ["True", "False", session.directory], cell
        lending = wait_until(
            lambda: next((found for found in [other.gpus()] if any(one.cells for one in found.tenants)), None), "the lease's end"
        )
        assert [one.mine for one in lending.tenants if one.cells] == [True]
        kernel.close()
    other.cancel(session.job.id)
    assert other.wait(session.job.id, timeout=PATIENCE).state == "CANCELLED"


def test_a_lab_says_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "carrel.toml").write_text('isolation = "walls"\n')
    with pytest.raises(RuntimeError, match=r"(?s)isolation is .walls..*kernel"):
        start_lab(tmp_path)

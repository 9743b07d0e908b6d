"""`import carrel` inside tasks whose environment has no Carrel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import carrel
from carrel import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire import v1
from support.lab_process import LabProcess, start_lab
from support.namespaces import why_no_namespaces

#: The interpreter below the virtual environment of these tests: it has none of its packages.
BARE = str(Path(sys.base_prefix) / "bin" / "python3")
SMALL = v1.ResourceRequest(cpus=1, memory="256M")


def run(client: Client, directory: Path, command: str, files: dict[str, str], **more: object) -> tuple[v1.JobDetail, str]:
    """Run a project of these files to its end; the job and its log."""
    project = directory / "project"
    project.mkdir()
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (project / "MLproject").write_text(f"entry_points:\n  main:\n    command: '{command}'\n")
    job = client.submit_project(project, resources=SMALL, **more)  # type: ignore[arg-type]
    client.wait(job.id, timeout=PATIENCE)
    return client.job(job.id), "".join(client.stream_log(job.id))


PARENT = """
import carrel
from carrel.wire.v1 import ResourceRequest
with carrel.Client() as lab:
    job = lab.submit_project("child.py", resources=ResourceRequest(cpus=1, memory="64M"))
    ended = lab.wait(job.id)
    print("child", job.id, ended.state, "".join(lab.stream_log(job.id)).strip())
"""


@pytest.mark.gate
def test_a_task_submits_another_and_reads_its_log(client: Client, tmp_path: Path) -> None:
    job, log = run(client, tmp_path, f"{BARE} parent.py", {"parent.py": PARENT, "child.py": 'print("I am the child")\n'})
    assert job.state == "COMPLETED", log
    assert "COMPLETED I am the child" in log


def test_all_that_carrel_has_is_there(client: Client, tmp_path: Path) -> None:
    program = """
import carrel
print(*sorted(name for name in carrel.__all__ if getattr(carrel, name)))
try:
    import carrel.dask
except ImportError as error:
    print(error)
"""
    job, log = run(client, tmp_path, f"{BARE} names.py", {"names.py": program})
    assert job.state == "COMPLETED", log
    assert log.splitlines()[0].split() == sorted(carrel.__all__)
    assert "distributed" in log.splitlines()[1], "what Dask's cluster needs is the environment's to have"


def test_what_a_job_submits_names_it_and_is_charged_as_it_is(client: Client, lab: LabProcess, tmp_path: Path) -> None:
    files = {"parent.py": PARENT, "child.py": 'print("I am the child")\n'}
    parent, log = run(client, tmp_path, f"{BARE} parent.py", files)
    assert parent.state == "COMPLETED", log
    child = client.job(int(log.split("child ")[1].split()[0]))
    assert (child.parent, child.account, parent.parent) == (parent.id, parent.account, None)
    assert client.record(child.id)["job"]["parent"] == parent.id
    shown = subprocess.run(
        [Path(sys.executable).parent / "carrel", "show", str(child.id), "--home", lab.home],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    assert re.search(rf"parent +job {parent.id}\n", shown.stdout), shown.stdout


def test_a_job_cannot_charge_another_account(client: Client, tmp_path: Path) -> None:
    text = PARENT.replace("resources=", 'account="another", resources=')
    job, log = run(client, tmp_path, f"{BARE} parent.py", {"parent.py": text, "child.py": ""})
    assert job.state == "FAILED"
    assert 'alone, and not for "another"' in log


def test_what_the_environment_has_wins(client: Client, tmp_path: Path) -> None:
    own = "import carrel, sys; print('carrel of', carrel.WHOSE, 'last' if 'modules' in sys.path[-1] else sys.path)\n"
    job, log = run(
        client,
        tmp_path,
        f"PYTHONPATH=own:$PYTHONPATH {BARE} parent.py",
        {"parent.py": own, "own/carrel.py": "WHOSE = 'the environment'\n"},
    )
    assert job.state == "COMPLETED", log
    assert "carrel of the environment last" in log


def test_packages_of_the_lab_are_there_for_its_client_alone(client: Client, tmp_path: Path) -> None:
    text = """
try:
    import httpx
except ImportError:
    print("not before")
import carrel
carrel.Client
import httpx
print("after")
"""
    job, log = run(client, tmp_path, f"{BARE} parent.py", {"parent.py": text})
    assert job.state == "COMPLETED", log
    assert log.split("\n")[:2] == ["not before", "after"]


def test_a_package_that_cannot_be_used_is_named_with_the_remedy(client: Client, tmp_path: Path) -> None:
    files = {"parent.py": "import carrel\ncarrel.Client()\n", "own/pydantic.py": "VERSION = '1.10'\n"}
    job, log = run(client, tmp_path, f"PYTHONPATH=own:$PYTHONPATH {BARE} parent.py", files)
    assert job.state == "FAILED"
    assert 'ImportError: carrel.Client needs "pydantic", which cannot be used in this environment' in log
    assert "Add it to the environment: httpx>=0.28, pydantic>=2.11" in log


def test_the_environments_own_sitecustomize_runs(client: Client, tmp_path: Path) -> None:
    text = "import sitecustomize, carrel\nprint(sitecustomize.__file__)\n"
    files = {"parent.py": text, "own/sitecustomize.py": "print('mine')\n"}
    # Python asks the first one that it finds: here that of the lab.
    job, log = run(client, tmp_path, f"PYTHONPATH=$PYTHONPATH:own {BARE} parent.py", files)
    assert job.state == "COMPLETED", log
    assert log.startswith("mine\n")
    assert "own/sitecustomize.py" in log


@pytest.mark.skipif(bool(why_no_namespaces()), reason=f"namespaces: {why_no_namespaces()}")
def test_behind_walls_the_client_is_there_and_cannot_be_changed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    text = """
import carrel
with carrel.Client() as lab:
    lab.lab()
    print("asked", lab.url)
try:
    open(carrel.__file__, "a")
except OSError as error:
    print(error.strerror)
"""
    walled = start_lab(home, simulate_gpus=1)
    try:
        with Client(url=walled.url, token=walled.token) as client:
            job, log = run(client, tmp_path, "/usr/bin/env python3 parent.py", {"parent.py": text})
        assert job.state == "COMPLETED", log
        assert log.splitlines()[:2] == [f"asked {walled.url}", "Read-only file system"]
    finally:
        walled.end_jobs()
        walled.stop()


def test_a_job_may_not_do_more_than_submit(client: Client, tmp_path: Path) -> None:
    text = """
import carrel
with carrel.Client() as lab:
    try:
        lab.create_token("mine")
    except Exception as error:
        print(type(error).__name__)
"""
    job, log = run(client, tmp_path, f"{BARE} parent.py", {"parent.py": text})
    assert job.state == "COMPLETED", log
    assert "Denied" in log

"""Whole labs: on every database, beside each other, started wrongly."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Unauthenticated
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import ResourceRequest
from support.lab_process import start_lab


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "MLproject").write_text("name: project\nentry_points:\n  main:\n    command: 'echo $CUDA_VISIBLE_DEVICES'\n")
    return directory


@pytest.mark.gate
def test_a_lab_keeps_everything_over_a_kill_on_every_database(tmp_path: Path, project: Path, database_url: str) -> None:
    home, variables = tmp_path / "home", {"CARREL_DATABASE": database_url}
    lab = start_lab(home, variables=variables)
    with Client(url=lab.url, token=lab.token) as client:
        job = client.wait(client.submit_project(project).id, timeout=PATIENCE)
        lab_id = client.lab().lab_id
    lab.kill()
    again = start_lab(home, variables=variables)
    with Client(url=again.url, token=again.token) as client:
        assert client.lab().lab_id == lab_id
        assert client.job(job.id) == job
        assert client.wait(client.submit_project(project).id, timeout=PATIENCE).id == job.id + 1
    assert again.stop() == 0


def test_a_lab_comes_back_at_its_address_so_that_running_tasks_find_it(tmp_path: Path) -> None:
    project = tmp_path / "asks"
    project.mkdir()
    (project / "ask.py").write_text(
        "import os, urllib.request\n"
        "request = urllib.request.Request(os.environ['CARREL_URL'] + '/api/v1/lab')\n"
        "request.add_header('Authorization', 'Bearer ' + os.environ['CARREL_TOKEN'])\n"
        "print(urllib.request.urlopen(request).status, flush=True)\n"
    )
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    (project / "ask.sh").write_text(f"python ask.py\necho ready\n{wait}\npython ask.py\n")
    first = start_lab(tmp_path / "home")
    with Client(url=first.url, token=first.token) as client:
        job = client.submit_project(project, entry_point="ask.sh")
        assert any("ready" in text for text in client.stream_log(job.id))
    first.kill()
    second = start_lab(tmp_path / "home")
    try:
        assert second.url == first.url
        (tmp_path / "go").touch()
        with Client(url=second.url, token=second.token) as client:
            assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
            assert b"".join(client.log(job.id)).split() == [b"200", b"ready", b"200"]
    finally:
        second.stop()


def test_two_labs_on_one_machine_do_not_meet(tmp_path: Path, project: Path) -> None:
    labs = [start_lab(tmp_path / name, simulate_gpus=1) for name in ("a", "b")]
    try:
        clients = [Client(url=lab.url, token=lab.token) for lab in labs]
        ids = [client.submit_project(project, resources=ResourceRequest(gpus=1)).id for client in clients]
        assert ids == [1, 1]
        jobs = [client.wait(job_id, timeout=PATIENCE) for client, job_id in zip(clients, ids, strict=True)]
        assert {job.state for job in jobs} == {"COMPLETED"}
        assert jobs[0].devices != jobs[1].devices
        with Client(url=labs[0].url, token=labs[1].token) as stranger, pytest.raises(Unauthenticated, match="token"):
            stranger.lab()
        for client in clients:
            client.close()
    finally:
        codes = [lab.stop() for lab in labs]
    assert codes == [0, 0]


def test_a_second_server_for_the_same_home_is_refused_with_where_the_first_is(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "home")
    try:
        command = [sys.executable, "-m", "carrel.cli.main", "up", "--home", tmp_path / "home", "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert second.returncode != 0
        assert lab.url in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        assert lab.stop() == 0


def test_what_is_private_is_closed_to_others(tmp_path: Path, project: Path) -> None:
    lab = start_lab(tmp_path / "home")
    with Client(url=lab.url, token=lab.token) as client:
        client.wait(client.submit_project(project).id, timeout=PATIENCE)
    assert lab.stop() == 0
    assert stat.S_IMODE(lab.home.stat().st_mode) == 0o700
    for name in ("token", "secret"):
        assert stat.S_IMODE((lab.home / name).stat().st_mode) == 0o600
    assert not (lab.home / "address.json").exists(), "a stopped lab has no address"


def test_the_token_of_a_lost_database_is_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = start_lab(home)
    token = first.token
    first.stop()
    for file in home.glob("lab.db*"):
        file.unlink()
    second = start_lab(home)
    try:
        assert second.token != token
        with Client(url=second.url, token=second.token) as client:
            assert client.lab().caller.role == "admin"
    finally:
        second.stop()


def test_a_mistake_in_the_settings_is_one_clear_message(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "carrel.toml").write_text("prot = 1\n")
    command = [sys.executable, "-m", "carrel.cli.main", "up", "--home", home]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ})
    assert failed.returncode != 0
    assert 'Did you mean "port"' in failed.stderr
    assert "Traceback" not in failed.stderr
    assert json.dumps(failed.stdout) == '""'

"""A home that is not where it was says so, and a copy of one leaves the original alone, whatever it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel import Client
from carrel.client.locate import locate
from carrel.core.domain.errors import Conflict, Invalid, Unavailable
from carrel.core.spool import Spool, read_claim
from carrel.lab.server.home import LabHome
from carrel.lab.server.home_location import Answer, HomeLocation, check, read, remember, strangeness
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess, start_lab

PROJECT = """
name: waits
entry_points:
  main:
    command: "setsid sleep 600 & echo $! > $STRAY; echo ready; read line < $FIFO; mkdir -p outputs; cp $STRAY outputs/kept"
"""


#: What the command does not wait with.
OTHER = {"STRAY": "stray", "FIFO": "/dev/null"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "waits"
    directory.mkdir()
    (directory / "MLproject").write_text(PROJECT)
    return directory


class Task:
    """One that runs until it is let go, and everything that it started."""

    def __init__(self, lab: LabProcess, project: Path, tmp_path: Path) -> None:
        self.fifo, stray = tmp_path / "go", tmp_path / "stray"
        os.mkfifo(self.fifo)
        with Client(url=lab.url, token=lab.token) as client:
            self.id = client.submit_project(project, variables={"STRAY": str(stray), "FIFO": str(self.fifo)}).id
            assert any("ready" in text for text in client.stream_log(self.id))
        claim = read_claim(Spool(lab.home / "spool").attempt(self.id, 1).claim)
        assert claim is not None
        self.pids = [claim.pid, int(stray.read_text())]

    def lives(self) -> None:
        for pid in self.pids:
            os.kill(pid, 0)

    def let_go(self) -> None:
        writer = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK)
        os.write(writer, b"go\n")
        os.close(writer)


@pytest.fixture
def running(tmp_path: Path, project: Path) -> Iterator[tuple[LabProcess, Task]]:
    """A lab with one task that runs and one that waits for it."""
    lab = start_lab(tmp_path / "home")
    task = Task(lab, project, tmp_path)
    with Client(url=lab.url, token=lab.token) as client:
        client.submit_project(project, variables=OTHER, dependency=f"afterok:{task.id}")
    yield lab, task
    if lab.process.poll() is None:
        lab.stop()


def copy_of(home: Path, name: str) -> Path:
    copy = home.with_name(name)
    subprocess.run(["cp", "-a", home, copy], check=True)
    return copy


def up(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`carrel up`, where it is refused."""
    command = [sys.executable, "-m", "carrel.cli.main", "up", "--home", home, "--port", "0", "--no-tracking", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_copy_of_a_running_home_touches_nothing_of_it(running: tuple[LabProcess, Task], project: Path, times: int) -> None:
    lab, task = running
    copy = copy_of(lab.home, "copy")
    with pytest.raises(Unavailable, match=f"the lab in {lab.home}"):
        locate(home=copy, environment={})
    for _ in range(times):
        refused = up(copy)
        assert refused.returncode == 5
        assert str(lab.home) in refused.stderr
        assert "--moved" in refused.stderr
        assert "--copy" in refused.stderr
        task.lives()
    with pytest.raises(Conflict, match=f"still at {lab.home}"):
        check(LabHome(copy), "", Answer.MOVED)
    task.lives()
    for number in range(times):
        another = start_lab(copy, *(["--copy"] if number == 0 else []))
        with Client(url=another.url, token=another.token) as client, Client(url=lab.url, token=lab.token) as original:
            assert client.lab().lab_id != original.lab().lab_id
            for job_id in (task.id, task.id + 1):
                job = client.job(job_id)
                assert (job.state, job.reason) == ("CANCELLED", "Copied")
                assert str(lab.home) in job.message
            assert original.job(task.id).state == "RUNNING"
            assert original.job(task.id + 1).state == "PENDING"
            new = client.submit_project(project, variables=OTHER)
            assert client.wait(new.id, timeout=PATIENCE).state == "COMPLETED"
        another.kill() if number % 2 else another.stop()
        task.lives()
    task.let_go()
    with Client(url=lab.url, token=lab.token) as original:
        assert original.wait(task.id, timeout=PATIENCE).state == "COMPLETED"


def test_a_moved_home_goes_on_and_is_not_asked_twice(running: tuple[LabProcess, Task], tmp_path: Path) -> None:
    lab, task = running
    lab.stop()
    moved = lab.home.rename(tmp_path / "moved")
    refused = up(moved, "--moved")
    assert refused.returncode == 5
    assert f"{lab.home}" in refused.stderr
    assert f": {task.id}." in refused.stderr
    assert f"ln -s {moved} {lab.home}" in refused.stderr
    task.lives()
    lab.home.symlink_to(moved)
    again = start_lab(moved)
    task.let_go()
    with Client(url=again.url, token=again.token) as client:
        assert client.wait(task.id, timeout=PATIENCE).state == "COMPLETED"
        assert [file.path for file in client.outputs(task.id)] == ["outputs/kept"]
        client.wait(task.id + 1, timeout=PATIENCE)
        lab_id = client.lab().lab_id
    again.stop()
    lab.home.unlink()
    with pytest.raises(ProcessLookupError):
        os.kill(task.pids[1], 0)
    # Restored from a backup: another directory at the same place.
    moved.rename(tmp_path / "lost")
    subprocess.run(["cp", "-a", tmp_path / "lost", moved], check=True)
    with pytest.raises(Conflict, match="restored from a backup"):
        check(LabHome(moved), "", None)
    restored = start_lab(moved, "--moved")
    with Client(url=restored.url, token=restored.token) as client:
        assert client.lab().lab_id == lab_id
        assert client.job(task.id).state == "COMPLETED"
    restored.process.send_signal(signal.SIGTERM)
    restored.stop()
    assert check(LabHome(moved), "", None) is None


HERE = HomeLocation(path="/lab", inode=7, disk=2049, boot="b1", machine="m1", host="gpu1")


@pytest.mark.parametrize(
    ("now", "strange"),
    [
        (HERE, ""),
        (replace(HERE, boot="b2"), ""),
        (replace(HERE, boot="b2", disk=2050), ""),
        (replace(HERE, boot="b2", machine="m2", host="gpu2"), "machine gpu1 and is opened on gpu2"),
        (replace(HERE, boot="b2", machine=""), ""),
        (replace(HERE, host="renamed"), ""),
        (replace(HERE, disk=0), ""),
        (replace(HERE, disk=2050), "not the directory"),
        (replace(HERE, inode=8), "not the directory"),
        (replace(HERE, path="/copy", inode=8), "was /lab on gpu1"),
        (replace(HERE, path="/moved"), "was /lab on gpu1"),
    ],
)
def test_what_is_strange_about_a_home(now: HomeLocation, strange: str) -> None:
    found = strangeness(HERE, now)
    assert strange in found
    assert bool(strange) == bool(found)


@pytest.fixture
def home(tmp_path: Path) -> LabHome:
    home = LabHome(tmp_path / "lab")
    home.create()
    home.secret()
    remember(home, "postgresql://db/lab")
    return home


def test_a_copy_shares_nothing_with_its_original(home: LabHome) -> None:
    copy = LabHome(copy_of(home.path, "copy"))
    with pytest.raises(Conflict, match="very database"):
        check(copy, "postgresql://db/lab", Answer.COPY)
    assert check(copy, "postgresql://db/copy", Answer.COPY) == read(home)
    copy.spool.rmdir()
    copy.spool.symlink_to(home.spool)
    with pytest.raises(Conflict, match="link"):
        check(copy, "postgresql://db/copy", Answer.COPY)


def test_a_home_that_is_where_it_was_is_no_copy(home: LabHome) -> None:
    assert check(home, "", Answer.MOVED) is None
    with pytest.raises(Invalid, match="no copy"):
        check(home, "", Answer.COPY)


def test_a_home_of_an_older_release_says_by_its_launch_files_where_it_was(home: LabHome) -> None:
    home.whereabouts.unlink()
    attempt = Spool(home.spool).attempt(3, 1)
    attempt.path.mkdir(parents=True)
    attempt.launch.write_text(f'{{"paths": {{"snapshots": "{home.snapshots}"}}}}')
    copy = LabHome(copy_of(home.path, "copy"))
    assert check(home, "", None) is None
    with pytest.raises(Conflict, match=str(home.path)):
        check(copy, "", None)


def test_a_whereabouts_file_that_cannot_be_read_is_not_taken_for_none(home: LabHome) -> None:
    home.whereabouts.write_text("{")
    with pytest.raises(Conflict, match="cannot be read"):
        check(home, "", None)

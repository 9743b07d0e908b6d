"""A home that is not where it was is refused, and one that was moved goes on at its old path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel import Client
from carrel.client.locate import locate
from carrel.core.domain.errors import Conflict, Unavailable
from carrel.core.spool import Spool, read_claim, take_claim
from carrel.lab.server.home import LabHome
from carrel.lab.server.home_location import HomeLocation, check, remember, strangeness
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


def test_a_copy_of_a_running_home_touches_nothing_of_it(running: tuple[LabProcess, Task]) -> None:
    lab, task = running
    copy = copy_of(lab.home, "copy")
    with pytest.raises(Unavailable, match=f"the lab in {lab.home}"):
        locate(home=copy, environment={})
    for options in ([], ["--moved"]):
        refused = up(copy, *options)
        assert (refused.returncode, f"ln -s {copy} {lab.home}" in refused.stderr) == (5, True), refused.stderr
        task.lives()
    task.let_go()
    with Client(url=lab.url, token=lab.token) as original:
        assert original.wait(task.id, timeout=PATIENCE).state == "COMPLETED"


def test_a_moved_home_goes_on_at_its_old_path_and_is_not_asked_twice(running: tuple[LabProcess, Task], tmp_path: Path) -> None:
    lab, task = running
    lab.stop()
    moved = lab.home.rename(tmp_path / "moved")
    refused = up(moved)
    assert refused.returncode == 5
    assert f"`ln -s {moved} {lab.home}`, then `carrel up --moved --home {lab.home}`" in refused.stderr
    task.lives()
    lab.home.symlink_to(moved)
    again = start_lab(lab.home, "--moved")
    task.let_go()
    with Client(url=again.url, token=again.token) as client:
        assert client.wait(task.id, timeout=PATIENCE).state == "COMPLETED"
        assert [file.path for file in client.outputs(task.id)] == ["outputs/kept"]
        client.wait(task.id + 1, timeout=PATIENCE)
        lab_id = client.lab().lab_id
    again.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(task.pids[1], 0)
    # Restored from a backup on a larger disk: another directory, to which the old path leads.
    restored = copy_of(moved, "larger")
    lab.home.unlink()
    lab.home.symlink_to(restored)
    refused = up(lab.home)
    assert (refused.returncode, "`carrel up --moved`" in refused.stderr) == (5, True), refused.stderr
    third = start_lab(lab.home, "--moved")
    with Client(url=third.url, token=third.token) as client:
        assert client.lab().lab_id == lab_id
        assert client.job(task.id).state == "COMPLETED"
    third.stop()
    check(LabHome(lab.home), moved=False)


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
    remember(home)
    return home


def elsewhere(home: LabHome) -> None:
    """Make it one that ran on another machine last."""
    known = json.loads(home.whereabouts.read_text())
    home.whereabouts.write_text(json.dumps({**known, "boot": "b", "machine": "m", "host": "gpu9"}))


def test_a_home_of_another_machine_waits_for_the_jobs_there_and_forgets_its_broker(home: LabHome) -> None:
    elsewhere(home)
    (home.broker / "journal").write_text("of processes of the other machine")
    attempt = Spool(home.spool).attempt(3, 1)
    attempt.path.mkdir(parents=True)
    held = take_claim(attempt.claim, os.getpid())
    assert held is not None
    pid, inode, _boot = attempt.claim.read_text().split()
    attempt.claim.write_text(f"{pid} {inode} 00000000-0000-0000-0000-000000000000\n")
    with pytest.raises(Conflict, match="ran on the machine gpu9"):
        check(home, moved=False)
    with pytest.raises(Conflict, match="still run on gpu9: 3"):
        check(home, moved=True)
    os.close(held)
    check(home, moved=True)
    assert list(home.broker.iterdir()) == []
    remember(home)
    check(home, moved=False)


def test_a_database_that_was_torn_on_its_way_is_told(home: LabHome) -> None:
    elsewhere(home)
    home.database.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(Conflict, match="copied while a lab wrote into it"):
        check(home, moved=True)


def test_a_whereabouts_file_that_cannot_be_read_is_not_taken_for_none(home: LabHome) -> None:
    for text in ("{", "[]", '{"path": "/lab", "other": 1}'):
        home.whereabouts.write_text(text)
        with pytest.raises(Conflict, match="cannot be read"):
            check(home, moved=False)

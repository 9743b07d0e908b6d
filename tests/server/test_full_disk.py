"""A disk of the lab's runs full: everybody is told, nothing that ended is told otherwise, and nothing is lost."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from carrel import Client
from carrel.core.domain.errors import StorageFull
from carrel.core.spool import Spool
from carrel.lab.server.log import LabLog
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import ResourceRequest
from support.lab_process import LabProcess, start_lab

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")

#: Seconds that something may take on a machine that is busy with other things.
PATIENCE = 120.0


class SmallDisk:
    """A file system of its own, whose size can be changed while it is used."""

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "carrel-test", path], check=True)

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def small_disk(cleanup: contextlib.ExitStack, path: Path, size: str) -> SmallDisk:
    disk = SmallDisk(path, size)
    cleanup.callback(disk.close)
    return disk


def running_lab(cleanup: contextlib.ExitStack, home: Path, *options: str) -> tuple[LabProcess, Client]:
    process = start_lab(home, "--cpus", "4", *options, simulate_gpus=0)
    cleanup.callback(process.stop)
    client = cleanup.enter_context(Client(url=process.url, token=process.token))
    cleanup.callback(process.end_jobs)
    return process, client


def submit(client: Client, directory: Path, script: str, **fields: object) -> int:
    directory.mkdir(exist_ok=True)
    (directory / "work.sh").write_text(script)
    resources = ResourceRequest(memory="64M")
    return client.submit_project(directory / "work.sh", resources=resources, **fields).id  # type: ignore[arg-type]


def test_outputs_that_do_not_fit_are_a_failure_and_are_collected_later(tmp_path: Path, cleanup: contextlib.ExitStack) -> None:
    home = tmp_path / "lab"
    store = small_disk(cleanup, home / "blobs", "2m")
    _, client = running_lab(cleanup, home)
    go = tmp_path / "go"
    made = f"while [ ! -e {go} ]; do sleep 0.05; done; "
    made += "mkdir -p outputs; echo small > outputs/a; head -c 3000000 /dev/zero > outputs/b; echo last > outputs/c"
    # Retries are for tasks that fail: this one did its work, and would only do it again.
    job_id = submit(client, tmp_path / "work", made, retries=2)
    after = submit(client, tmp_path / "work", "echo never", dependency=f"afterok:{job_id}")
    go.touch()
    job = client.wait(job_id, timeout=PATIENCE)
    assert (job.state, job.reason, job.exit_code, job.attempt) == ("FAILED", "StorageFull", 0, 1), job.message
    for said in (str(store.path), "of 2M are free", '"outputs/b" (2.9M)', f"carrel outputs --collect {job_id}", "Exit code 0"):
        assert said in job.message
    assert job.attempts[0].uncollected
    other = client.wait(after, timeout=PATIENCE)
    assert (other.state, other.reason, other.attempt) == ("CANCELLED", "DependencyNeverSatisfied", 0)
    # Each file is there whole or not at all.
    assert [output.path for output in client.outputs(job_id)] == ["outputs/a"]
    assert list((store.path / "incoming").iterdir()) == []
    with pytest.raises(StorageFull, match="outputs/b"):
        client.collect_outputs(job_id)
    work = Spool(home / "spool").attempt(job_id, 1).work
    assert work.is_dir()

    store.resize("16m")
    assert [output.path for output in client.collect_outputs(job_id).outputs] == ["outputs/a", "outputs/b", "outputs/c"]
    job = client.job(job_id)
    assert (job.state, job.reason, job.attempts[0].uncollected) == ("FAILED", "StorageFull", False)
    assert "They were collected later." in job.message
    assert "--collect" not in job.message
    assert not work.exists()
    fetched = client.download_outputs(job_id, tmp_path / "fetched")
    assert [path.stat().st_size for path in fetched] == [6, 3_000_000, 5]
    assert "nothing left" in client.collect_outputs(job_id).notes[0]


class Ballast:
    """A file that takes room away."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "ballast"

    def leave(self, free: int) -> None:
        """Take so much that `free` bytes are left for others."""
        with self.path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while (room := _free(self.path.parent) - free) > 0:
                file.write(b"\0" * min(room, 1 << 20))

    def go(self) -> None:
        self.path.unlink(missing_ok=True)


def _free(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def carrel(lab: LabProcess, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "carrel.cli.main", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def page(lab: LabProcess) -> str:
    """The lab's first page, as a browser that is signed in sees it."""
    with httpx.Client(base_url=lab.url, follow_redirects=True) as browser:
        browser.post("/login", data={"token": lab.token}, headers={"Origin": lab.url}).raise_for_status()
        return browser.get("/").text


@contextlib.contextmanager
def _following(lab: LabProcess, directory: Path, script: str, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`carrel run`, which says what it has to say into a file."""
    directory.mkdir(exist_ok=True)
    (directory / "followed.sh").write_text(script)
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    command = [sys.executable, "-m", "carrel.cli.main", "run", "--memory", "64M", str(directory / "followed.sh")]
    with said.open("wb") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process:
        yield process


def test_a_full_disk_is_said_everywhere_and_nothing_starts(tmp_path: Path, cleanup: contextlib.ExitStack) -> None:
    disk = small_disk(cleanup, tmp_path / "disk", "64m")
    lab, client = running_lab(cleanup, disk.path / "lab")
    ballast = Ballast(disk.path)
    go = tmp_path / "go"
    followed = tmp_path / "followed"
    follower = cleanup.enter_context(_following(lab, tmp_path / "work", f"while [ ! -e {go} ]; do sleep 0.05; done", followed))
    wait_until(lambda: [job.state for job in client.jobs()] == ["RUNNING"], timeout=PATIENCE)
    (running,) = [job.id for job in client.jobs()]
    assert client.health().status == "ok"

    ballast.leave(2 << 20)  # below a twentieth of the disk, and above nothing
    wait_until(lambda: client.health().status == "low", timeout=PATIENCE)
    health = client.health().storage[0]
    assert (health.path, health.total, health.floor, health.room) == (str(disk.path), 64 << 20, (64 << 20) // 20, "low")
    assert health.free < health.floor
    waiting = submit(client, tmp_path / "work", "echo started")
    for event in client.events(waiting):
        if event.type == "queue" and event.data["reason"] == "StorageFull":
            break
    job = client.job(waiting)
    assert (job.state, job.reason) == ("PENDING", "StorageFull")
    for said in (str(disk.path), "of 64M are free", "Nothing starts below 3.2M", "Free space on"):
        assert said in job.message
    assert "is nearly full" in page(lab)
    listed = carrel(lab, "ps")
    assert f"The lab's disk {disk.path} (home) is nearly full" in listed.stderr
    assert "Nothing starts below 3.2M" in listed.stdout

    wait_until(lambda: "nearly full: " in followed.read_text(), timeout=PATIENCE)

    ballast.leave(0)
    wait_until(lambda: client.health().status == "full", timeout=PATIENCE)
    with pytest.raises(StorageFull, match=r"is full: .* of 64M are free"):
        submit(client, tmp_path / "work", "echo refused")
    # What ends is written down all the same: that is what the reserve is for.
    go.touch()
    ended = client.wait(running, timeout=PATIENCE)
    assert (ended.state, ended.reason) == ("COMPLETED", "Completed")
    assert follower.wait(PATIENCE) == 0
    assert client.job(waiting).state == "PENDING"

    ballast.go()
    ended = client.wait(waiting, timeout=PATIENCE)
    assert (ended.state, ended.attempt) == ("COMPLETED", 1)
    assert client.health().status == "ok"
    assert "nearly full" not in carrel(lab, "ps").stderr
    assert b"".join(client.log(waiting)) == b"started\n"


def test_the_terminal_is_not_filled_with_lines_that_the_log_lost(tmp_path: Path, cleanup: contextlib.ExitStack) -> None:
    disk = small_disk(cleanup, tmp_path / "disk", "1m")
    ballast, terminal = Ballast(disk.path), io.StringIO()
    log = LabLog(disk.path / "server.log", terminal=terminal)
    cleanup.callback(log.close)

    def say(text: str) -> None:
        log.handle(logging.LogRecord("carrel", logging.INFO, __file__, 1, text, None, None))

    say("before")
    ballast.leave(0)
    for number in range(3000):  # more than what is left of the last block
        say(f"a line that may be lost, and that is number {number}")
    assert terminal.getvalue().count("\n") == 1
    assert "cannot be written: No space left on device" in terminal.getvalue()
    ballast.go()
    say("after")
    assert terminal.getvalue().count("\n") == 2
    assert "lines of it were lost" in terminal.getvalue()
    written = (disk.path / "server.log").read_text()
    assert "before" in written
    assert "after" in written

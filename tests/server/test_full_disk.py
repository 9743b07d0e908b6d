"""A disk of the lab's runs full: everybody is told, nothing that ended is told otherwise, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.domain.errors import StorageFull
from carrel.spool import Spool
from carrel.testing.lab_process import LabProcess, start_lab
from carrel.wire.v1 import ResourceRequest

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
    made = "mkdir -p outputs; echo small > outputs/a; head -c 3000000 /dev/zero > outputs/b; echo last > outputs/c"
    # Retries are for tasks that fail: this one did its work, and would only do it again.
    job_id = submit(client, tmp_path / "work", made, retries=2)
    after = submit(client, tmp_path / "work", "echo never", dependency=f"afterok:{job_id}")
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

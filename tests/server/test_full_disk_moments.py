"""A disk that runs full at random moments: what the lab says of each job is what the job itself saw."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import StorageFull
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import start_lab

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")

PATIENCE = 180.0
#: Leaves its story outside of everything that the lab knows: each start, and whether it made its output.
SCRIPT = """
echo started >> "$WITNESS/$CARREL_JOB_ID"
sleep "$PAUSE"
mkdir -p outputs && head -c "$BYTES" /dev/zero > outputs/made || { echo failed >> "$WITNESS/$CARREL_JOB_ID"; exit 9; }
echo "ended $CODE" >> "$WITNESS/$CARREL_JOB_ID"
exit "$CODE"
"""


@dataclass
class Asked:
    """What a job was asked to do."""

    bytes: int
    code: int


@dataclass
class Crowd:
    """Jobs in a lab whose disk runs full, and what became of them outside of it."""

    client: Client
    disk: Path
    work: Path
    chance: random.Random
    asked: dict[int, Asked] = field(default_factory=dict)

    @property
    def witness(self) -> Path:
        return self.work / "witness"

    def submit(self) -> None:
        asked = Asked(bytes=self.chance.choice([0, 10, 5_000, 200_000, 2_000_000]), code=self.chance.choice([0, 0, 0, 3]))
        variables = {
            "WITNESS": str(self.witness),
            "PAUSE": str(self.chance.choice([0, 0, 0.1, 0.5])),
            "BYTES": str(asked.bytes),
            "CODE": str(asked.code),
        }
        # Each has code of its own, which has to be sent.
        (self.work / "code" / "work.sh").write_text(f"# {self.chance.random()}\n{SCRIPT}")
        with contextlib.suppress(StorageFull):  # refused, and said so
            resources = ResourceRequest(memory="64M")
            job = self.client.submit_project(self.work / "code" / "work.sh", resources=resources, variables=variables)
            self.asked[job.id] = asked

    def fill(self) -> None:
        """Take all room but a little, all at once."""
        left = self.chance.choice([0, 0, 4096, 100_000])
        room = os.statvfs(self.disk)
        free = room.f_bavail * room.f_frsize
        with (self.disk / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), file.seek(0, 2), max(1, free - left))

    def free(self) -> None:
        (self.disk / "ballast").unlink()

    def one_moment(self) -> None:
        for _ in range(4):
            self.submit()
        # A moment in the life of some of them, never the same.
        threading.Event().wait(self.chance.uniform(0, 1.0))
        self.fill()
        self.submit()
        threading.Event().wait(self.chance.uniform(0, 0.5))
        self.fill()  # what was given back meanwhile is taken as well
        threading.Event().wait(self.chance.uniform(0, 1.0))
        self.free()
        for job_id in [*self.asked][-5:]:
            self.client.wait(job_id, timeout=PATIENCE)

    def check(self, job: JobDetail) -> None:
        """Compare what the lab says of a job with what the job has written down itself."""
        asked, told = self.asked[job.id], (job.state, job.reason)
        path = self.witness / str(job.id)
        seen = path.read_text().split("\n")[:-1] if path.exists() else []
        assert seen.count("started") <= 1, (job.message, seen)
        outputs = {output.path: output.digest for output in self.client.outputs(job.id)}
        made = {"outputs/made": f"sha256:{hashlib.sha256(bytes(asked.bytes)).hexdigest()}"}
        if told == ("COMPLETED", "Completed"):
            assert (seen, asked.code, outputs) == (["started", "ended 0"], 0, made)
        elif told == ("FAILED", "NonZeroExitCode"):
            expected = 9 if "failed" in seen else 3
            assert job.exit_code == expected, (job.message, seen)
            assert expected == 9 or seen[-1] == "ended 3"
        elif told == ("FAILED", "StorageFull") and job.exit_code is not None:
            assert seen == ["started", f"ended {job.exit_code}"]
            assert job.attempts[-1].uncollected
            stored = {output.path: output.digest for output in self.client.collect_outputs(job.id).outputs}
            assert stored == made
        else:
            assert told == ("FAILED", "StorageFull"), (told, job.message, seen)
            assert seen == [], "its command ran, and the lab says that it did not"


@pytest.fixture
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    disk, work = tmp_path / "disk", tmp_path / "work"
    disk.mkdir()
    (work / "witness").mkdir(parents=True)
    (work / "code").mkdir()
    with contextlib.ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "carrel-test", disk], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        # For whoever has to find out what went wrong.
        stack.callback(shutil.copytree, disk / "lab" / "logs", work / "logs")
        lab = start_lab(disk / "lab", "--cpus", "3", simulate_gpus=0)
        stack.callback(lab.stop)
        client = stack.enter_context(Client(lab.url, lab.token))
        stack.callback(lab.end_jobs)
        yield Crowd(client, disk, work, random.Random(20261122))
        assert lab.process.poll() is None, "the lab has ended"


@pytest.mark.parametrize("moments", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_nothing_untrue_is_said_when_the_disk_runs_full_at_random_moments(crowd: Crowd, moments: int) -> None:
    for _ in range(moments):
        crowd.one_moment()
    wait_until(lambda: crowd.client.health().status == "ok", timeout=PATIENCE)
    assert crowd.asked
    for job_id in crowd.asked:
        crowd.check(crowd.client.job(job_id))

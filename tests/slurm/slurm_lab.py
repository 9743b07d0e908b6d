"""A lab with a machine of its own and partitions of a real cluster, for tests."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.fork_server import run_carrel
from support.lab_process import LabProcess, start_lab
from support.slurm_site import SlurmSite

RULES = """
default_qos = "normal"

[qos.normal]
[qos.high]
priority = 100
[qos.one]
max_jobs_per_user = 1

[accounts.default]
[accounts.research]

[partitions.here]

[partitions.cluster]
engine = "slurm"
slurm_partition = "main"

[partitions.exact]
engine = "slurm"
slurm_partition = "main"
slurm_qos = "{qos}"
slurm_account = "{account}"
slurm_options = ["--constraint=fast", "--nice=7"]

[partitions.soon]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true
slurm_hold_time = "5m"

[partitions.gone]
engine = "slurm"
"""


class Lab:
    """A lab that can be killed and started again."""

    def __init__(self, home: Path, site: SlurmSite, rules: str = RULES, **variables: str) -> None:
        home.mkdir()
        (home / "carrel.toml").write_text(rules)
        self.home = home
        self.variables = {"SLURM_CONF": str(site.layout.conf), **variables}
        self.start()

    def start(self, *, tracking: bool = False) -> None:
        self.process: LabProcess = start_lab(
            self.home, "--cpus", "8", tracking=tracking, simulate_gpus=2, variables=self.variables
        )
        self.client = Client(home=self.home)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()

    def submit(self, script: str, partition: str | None = "cluster", **more: object) -> int:
        directory = self.home.parent / f"work{time.monotonic_ns()}"
        directory.mkdir()
        (directory / "work.sh").write_text(script)
        more = {"resources": ResourceRequest(memory="64M"), **more}
        return self.client.submit_project(directory / "work.sh", partition=partition, **more).id  # type: ignore[arg-type]

    def carrel(self, *words: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "CARREL_URL": self.process.url, "CARREL_TOKEN": self.process.token}
        done = run_carrel(words, variables=variables, timeout=PATIENCE)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def until(self, job_id: int, happened: Callable[[JobDetail], object]) -> JobDetail:
        return wait_until(lambda: job if happened(job := self.client.job(job_id)) else None, lambda: self.client.job(job_id))  # type: ignore[return-value]

    def ended(self, job_id: int) -> JobDetail:
        return self.client.wait(job_id, timeout=PATIENCE)

    def log(self, job_id: int) -> str:
        return b"".join(self.client.log(job_id)).decode()

    def number(self, job_id: int) -> str:
        """The job's number in Slurm."""
        return next(self.home.glob(f"spool/**/{job_id}/**/slurm")).read_text().strip()

    def stop(self) -> None:
        self.process.end_jobs()
        self.client.close()
        self.process.stop()


def go_on(lab: Lab) -> tuple[str, Path]:
    """A line of shell that waits for a file, and the file."""
    file = lab.home.parent / f"go{time.monotonic_ns()}"
    return f"while [ ! -e {file} ]; do sleep 0.1; done", file

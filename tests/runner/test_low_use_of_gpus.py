"""Jobs that hold GPUs and hardly use them are told why, and those that use theirs are left alone: real programs, fake driver."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import wasteful_programs as programs

from carrel.core.domain.launch import Advised, Ended, JournalRecord, LaunchLimits, Sampled
from carrel.core.domain.node import Device
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.gpu_use import ENOUGH
from carrel.core.spool import read_entries
from carrel.engines.task_client import pack_client
from carrel.testing.builders import LabHome, make_launch
from carrel.testing.waiting import wait_until
from support.fake_driver import STATE_VARIABLE, FakeDriver, build, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

GIB = 1024**3
#: Samples of five seconds, as if they were of these.
LIMITS = LaunchLimits(sample=0.04)
RUNNER = """\
import os, sys, time
from pathlib import Path
from carrel.node.runner.main import RunnerContext, run_attempt
run_attempt(Path(sys.argv[1]), RunnerContext(clock=time.time, monotonic=time.monotonic, environ=os.environ))
"""


class Job:
    """A task with a GPU of the fake driver, and its runner."""

    def __init__(self, place: Path, driver: FakeDriver, program: str, client: Path, *, gpus: int = 1) -> None:
        home = LabHome(place)
        devices = tuple(
            Device(uuid=gpu.uuid, index=index, type="h200", name=gpu.name, memory=gpu.memory)
            for index, gpu in enumerate(driver.gpus[:gpus])
        )
        launch = make_launch(
            home,
            f"exec {shlex.quote(sys.executable)} train.py",
            files={"train.py": program},
            limits=LIMITS,
            resources=Resources(cpus=16, memory=GIB, gpus=gpus, time=600),
            devices=devices,
            variables={STATE_VARIABLE: str(driver.state)},
        )
        launch = replace(launch, paths=replace(launch.paths, client=str(client)))
        self.directory = home.attempt(launch)
        self.directory.path.mkdir(parents=True)
        self.directory.launch.write_text(json.dumps(to_plain(launch)))
        self.runner = subprocess.Popen([sys.executable, "-c", RUNNER, self.directory.path], env=driver.environment())

    def records(self) -> list[JournalRecord]:
        return [entry.record for entry in read_entries(self.directory.journal)[0]] if self.directory.journal.exists() else []

    def advice(self) -> list[Advised]:
        return [record for record in self.records() if isinstance(record, Advised)]

    def samples(self) -> int:
        return max((record.usage.gpu_samples for record in self.records() if isinstance(record, Sampled)), default=0)

    def told(self) -> Advised:
        wait_until(lambda: self.advice() or self.over())
        assert self.advice(), self.directory.log.read_text()
        return self.advice()[0]

    def over(self) -> bool:
        return any(isinstance(record, Ended) for record in self.records())

    def end(self) -> None:
        if self.runner.poll() is None:
            self.directory.cancel.write_text("ada\n")
            self.runner.send_signal(signal.SIGTERM)
            self.runner.wait()


Begin = Callable[[str], Job]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeDriver, Path]:
    return build(tmp_path_factory.mktemp("driver")), pack_client(tmp_path_factory.mktemp("client"))


@pytest.fixture
def begin(tmp_path: Path, machine: tuple[FakeDriver, Path]) -> Iterator[Begin]:
    jobs: list[Job] = []

    def begin(program: str) -> Job:
        driver, client = machine
        jobs.append(Job(tmp_path / str(len(jobs)), driver.another(tmp_path / f"state{len(jobs)}"), program, client))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        pytest.param(
            programs.ONE_WORKER, "FewWorkers", "% of the time in `DataLoader.__next__` (train.py:", marks=pytest.mark.gate
        ),
        (programs.TINY_BATCHES, "SmallSteps", "steps are probably small for this GPU. 1 % of its memory is in use: Try"),
        (programs.CPU_TORCH, "NoCudaInTorch", "PyTorch is a build without CUDA here. Install torch from PyPI"),
        (programs.DEADLOCK, "Stands", "its main thread stands in train.py:19. It may be"),
        (programs.SWAPPING, "Swapping", "pages a second are read from the disk again"),
        (programs.NEVER_OPENED, "NeverOpened", "No process has opened it."),
        (programs.NETWORK, "WaitsForNetwork", "% of the time in `urlopen` (train.py:"),
    ],
    ids=["one-worker", "tiny-batches", "torch-for-processors", "deadlock", "swapping", "never-opened", "network"],
)
def test_a_waste_is_named(begin: Begin, program: str, code: str, said: str) -> None:
    job = begin(program)
    advice = job.told()
    assert (advice.code, advice.message) == (code, advice.message)
    assert said in advice.message
    assert advice.message in job.directory.log.read_text()


@pytest.mark.parametrize(
    "program",
    [programs.BUSY, programs.READS_FIRST, programs.ENOUGH_WORKERS, programs.EVALUATES],
    ids=["busy", "reads-first", "enough-workers", "evaluates"],
)
def test_a_gpu_that_is_used_gets_no_word(begin: Begin, program: str) -> None:
    job = begin(program)
    wait_until(lambda: job.samples() >= ENOUGH + 20)
    assert not job.advice()
    assert "Carrel" not in job.directory.log.read_text()
    assert not (job.directory.temporary_place / "carrel-stacks").exists()


def test_a_short_job_gets_no_word(begin: Begin) -> None:
    job = begin(programs.SHORT)
    wait_until(job.over)
    assert not job.advice()

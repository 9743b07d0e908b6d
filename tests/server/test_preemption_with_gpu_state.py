"""Jobs of `batch` with state on GPUs are suspended for jobs of `short`: a lab without a file of settings, on the fake driver.

Every value on the GPU is checked.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.core.spool import Spool, read_claim
from carrel.lab.server.preload import find_library
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.fake_driver import FakeDriver, build, find_compiler
from support.small_lab import MortalLab

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C"),
    pytest.mark.skipif(not find_library()[0], reason="carrel-lab-residency is not installed"),
]

MIB = 1024**2
#: Fills a part of the device, and says each time that it finds there what it has written, until it may end.
TASK = """\
import ctypes, pathlib, random, sys, time

here, size = sys.argv[1], int(sys.argv[2])
cuda = ctypes.CDLL("libcuda.so.1")
context, at = ctypes.c_void_p(), ctypes.c_uint64()
values = random.Random(here).randbytes(size)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
assert cuda.cuMemcpyHtoD_v2(at, values, ctypes.c_size_t(size)) == 0
with open(here + ".started", "a") as started:
    started.write("started\\n")
found = ctypes.create_string_buffer(size)
while not pathlib.Path(here + ".go").exists():
    assert cuda.cuMemcpyDtoH_v2(found, at, ctypes.c_size_t(size)) == 0
    assert found.raw[:size] == values
    with open(here + ".steps", "a") as steps:
        steps.write("step\\n")
    time.sleep(0.02)
"""


class Lab(MortalLab):
    """A lab on a machine with fake GPUs of 100 MiB."""

    def __init__(self, place: Path, driver: FakeDriver) -> None:
        environment = driver.environment()
        self.driver = driver
        self.variables = {name: environment[name] for name in ("LD_LIBRARY_PATH", "CARREL_FAKE_DRIVER")}
        variables = {**self.variables, "CARREL_LINGER_TIME": "1s"}
        super().__init__(place / "lab", "--cpus", "8", variables=variables, python=[sys.executable])

    def kill_broker(self) -> None:
        os.kill(json.loads((self.home / "broker" / "broker.lock").read_text())["pid"], signal.SIGKILL)

    def task(self, name: str, qos: str = "batch", *, size: int = 60 * MIB, library: bool = True) -> int:
        directory = self.home.parent / name
        directory.mkdir()
        (directory / "task.py").write_text(TASK)
        script = directory / "work.sh"
        given = " ".join(f"{name}={value}" for name, value in self.variables.items())
        python = f"{'' if library else 'env -u LD_PRELOAD '}{shlex.quote(sys.executable)}"
        script.write_text(f'export {given}; exec {python} -I {directory}/task.py "$HERE" {size}')
        return self.client.submit_project(
            script,
            qos=qos,
            resources=ResourceRequest(gpus=1, memory="1G"),
            variables={"HERE": str(directory / "is")},
        ).id

    def let_end(self, name: str) -> None:
        (self.home.parent / name / "is.go").touch()

    def steps(self, name: str) -> int:
        file = self.home.parent / name / "is.steps"
        return file.stat().st_size if file.exists() else 0

    def starts(self, name: str) -> int:
        return (self.home.parent / name / "is.started").read_text().count("started")

    def computes(self, name: str) -> None:
        """The task computes from now on."""
        steps = self.steps(name)
        wait_until(lambda: self.steps(name) > steps, lambda: (self.client.jobs(), self.client.gpus()))

    def out(self, job_id: int) -> JobDetail:
        return self.until(job_id, lambda job: job.state == "SUSPENDED")

    def ends(self, job_id: int, name: str) -> JobDetail:
        self.let_end(name)
        done = self.ended(job_id)
        # Of one that begins the attempt may be another: where its GPU cannot be cleared at once, it is placed again.
        assert (done.state, self.starts(name)) == ("COMPLETED", 1), done.message
        return done

    def goes_on_and_ends(self, job_id: int, name: str) -> JobDetail:
        """A task that was suspended ends in the attempt that it had begun."""
        done = self.ends(job_id, name)
        assert (done.attempt, done.pauses) == (1, 1)
        return done

    def told(self, job_id: int) -> Iterator[str]:
        """What its owner is told, until it ends."""
        return (str(event.data["message"]) for event in self.client.events(job_id) if event.type == "progress")


def two(lab: Lab) -> tuple[int, int]:
    """The first one has been suspended for the second one."""
    first = lab.task("first")
    lab.computes("first")
    second = lab.task("second", "short")
    lab.out(first)
    lab.computes("second")
    return first, second


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("driver") / "driver")


@pytest.fixture
def labs(tmp_path: Path, driver: FakeDriver) -> Iterator[Callable[..., Lab]]:
    started: list[Lab] = []

    def start(gpus: int = 1) -> Lab:
        started.append(Lab(tmp_path, driver.another(tmp_path / "machine", gpus=gpus, memory=100 * MIB)))
        return started[-1]

    yield start
    for lab in started:
        lab.stop()


@pytest.mark.gate
def test_a_task_is_suspended_for_one_that_does_not_fit_beside_it_and_goes_on(labs: Callable[..., Lab]) -> None:
    lab = labs()
    first, second = two(lab)
    what = f'Job {second} of QoS "short"'
    assert lab.client.job(first).message == f"{what} took this job's GPUs. This job resumes by itself when they are free."
    steps = lab.steps("first")
    lab.ends(second, "second")
    lab.computes("first")
    assert lab.steps("first") > steps
    lab.goes_on_and_ends(first, "first")
    ours = f"{what} takes this job's GPUs. This job is stopped, and resumes by itself when they are free."
    assert ours in list(lab.told(first))


def test_a_task_goes_on_on_its_own_gpu_although_another_is_free(labs: Callable[..., Lab]) -> None:
    lab = labs(gpus=2)
    jobs = {lab.task(name): name for name in ("first", "second")}
    for name in jobs.values():
        lab.computes(name)
    third = lab.task("third", "short")
    lab.computes("third")
    (stopped,) = [one for one in jobs if lab.client.job(one).devices == lab.client.job(third).devices]
    (other,) = jobs.keys() - {stopped}
    lab.ends(other, jobs[other])
    assert lab.client.job(stopped).state == "SUSPENDED"
    lab.ends(third, "third")
    assert lab.goes_on_and_ends(stopped, jobs[stopped]).devices == lab.client.job(third).devices


@pytest.mark.chaos
@pytest.mark.parametrize("when", ["runs", "gives way", "waits", "goes on"])
@pytest.mark.parametrize("who", ["server", "broker"])
def test_a_kill_loses_nothing_of_a_task_that_is_suspended(labs: Callable[..., Lab], who: str, when: str) -> None:
    lab = labs()
    kill = lab.kill_and_restart if who == "server" else lab.kill_broker
    first = lab.task("first")
    lab.computes("first")
    if when == "runs":  # a new server has not heard yet what can be moved
        kill()
    second = lab.task("second", "short")
    if when == "gives way":
        lab.until(first, lambda job: job.reason in ("Preempting", "Suspended"))
        kill()
    lab.computes("second")
    lab.out(first)
    if when == "waits":
        kill()
        lab.computes("second")
        assert lab.client.job(first).state == "SUSPENDED"
    lab.let_end("second")
    if when == "goes on":
        lab.until(second, lambda job: job.ended)
        kill()
    lab.ends(second, "second")
    lab.goes_on_and_ends(first, "first")


@pytest.mark.chaos
def test_a_runner_that_is_killed_while_its_task_is_suspended_leaves_the_gpu_to_others(labs: Callable[..., Lab]) -> None:
    lab = labs()
    first, second = two(lab)
    runner = read_claim(Spool(lab.home / "spool").attempt(first, 1).claim)
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    assert lab.ended(first).reason == "RunnerLost"
    lab.computes("second")
    third = lab.task("third")
    lab.ends(second, "second")
    lab.computes("third")
    lab.ends(third, "third")

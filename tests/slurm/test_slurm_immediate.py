"""The immediate path on a real cluster: the contract of all engines again, and what an allocation can suffer."""

import os
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_engines import AT_ONCE, go_on, lab_of, running, slurm_engine

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.ports import Attempt
from carrel.core.domain.resources import Resources
from carrel.core.spool import read_claim
from carrel.engines.attempts import Watched, write_launch
from carrel.engines.slurm import immediate
from carrel.engines.slurm.engine import options_for
from carrel.testing.builders import EngineListener, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

GIB = 1024**3


class TestImmediateSlurmEngine(EngineContract):
    @pytest.fixture
    def make_engine(self, site, home):
        return lambda: slurm_engine(home, site.environ, **AT_ONCE)


@pytest.fixture
def engine(engines, faults):
    return engines(faults.environ, **AT_ONCE)


def name_of(home):
    return f"carrel.{lab_of(home)}.1.1.now"


def allocations(site, home):
    """Those of the lab that Slurm still keeps resources for."""
    lines = site.run("squeue", "-h", "-t", "PD,R,S", "-o", "%k").out.split()
    return [name for name in lines if name.startswith(f"carrel.{lab_of(home)}.")]


def sruns(launch):
    """Processes of srun, and of its helper, for the attempt."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.endswith("srun") for word in words[:2]) and any(
            word.startswith("--comment=") and word.endswith(f".{launch.job_id}.{launch.attempt}.now") for word in words
        ):
            found.append(int(path.parent.name))
    return found


def test_a_job_runs_in_an_allocation_that_is_given_back(site, home, engine, listener, faults):
    launch = make_launch(
        home, 'echo "gpus $CUDA_VISIBLE_DEVICES"', resources=Resources(gpus=2, gpu_type="fake", memory=GIB // 2, time=60)
    )
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    assert home.attempt(launch).log.read_text() in ("gpus 0,1\n", "gpus 2,3\n", "gpus 1,2\n", "gpus 0,2\n")
    wait_until(lambda: not allocations(site, home))
    assert faults.calls("sbatch") == []
    assert len(faults.calls("srun")) == 1
    number = (home.attempt(launch).path / "slurm").read_text().split()[1]
    wait_until(lambda: site.state(int(number)) == "COMPLETED")


def test_where_nothing_is_free_it_is_submitted(site, home, engine, listener, faults):
    first = make_launch(home, go_on(home), resources=Resources(cpus=1, nodes=1, memory=15 * GIB, time=60))
    others = [
        make_launch(home, "sleep 600", job_id=number, resources=Resources(cpus=1, memory=15 * GIB, time=60))
        for number in (2, 3, 4)
    ]
    for launch in (first, *others):
        engine.start(launch, token=TOKEN)
        listener.wait(launch, lambda story: story.first(Started))
    assert faults.calls("sbatch") == []
    last = make_launch(home, f"echo ran >> {home.root}/ran", job_id=5, resources=Resources(memory=15 * GIB, time=60))
    engine.start(last, token=TOKEN)
    wait_until(lambda: len(faults.calls("sbatch")) == 1)
    (home.root / "go").write_text("go\n")
    assert listener.ended(last).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"


def test_what_only_a_batch_job_can_do_is_submitted(home, faults, engines):
    engine = engines(faults.environ, **AT_ONCE, options=lambda launch: replace(options_for(launch), requeue=True))
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    assert faults.calls("srun") == []


def test_what_slurm_refuses_has_failed_in_slurms_words(home, engine, listener):
    launch = make_launch(home, "true", resources=Resources(gpus=99, memory=GIB, time=60))
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert "Requested node configuration is not available" in ended.reason.message


@pytest.mark.parametrize("fault", ["down", "fails", "silent", "garbage", "busy", "swallowed"])
def test_an_allocation_that_goes_wrong_does_not_make_it_run_twice(site, home, engine, listener, faults, fault):
    faults.set(fault, "srun")
    launch = make_launch(home, f"echo ran >> {home.root}/ran")
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"
    wait_until(lambda: not allocations(site, home))


def test_a_runner_that_has_begun_needs_no_srun(home, engine, listener, monkeypatch):
    monkeypatch.setattr(immediate, "_DETACH", 0.0)
    launch = running(home, engine, listener, f"{go_on(home)}; exit 4")
    wait_until(lambda: not sruns(launch))
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).exit_code == 4


@pytest.mark.parametrize("known", ["held\n", "held {number}\n"])
def test_a_new_engine_gives_an_allocation_without_a_runner_back(site, home, faults, known, engines):
    """Server and srun died before there was a step, and before or after the number was known."""
    number = re.search(r"allocation (\d+)", site.run("salloc", "--no-shell", "--time=15", f"--comment={name_of(home)}").err)[1]
    launch = make_launch(home, f"echo ran >> {home.root}/ran")
    write_launch(Watched(launch=launch, token=TOKEN, directory=home.attempt(launch)))
    (home.attempt(launch).path / "slurm").write_text(known.format(number=number))
    engine = engines(faults.environ, **AT_ONCE)
    listener = EngineListener(engine)
    engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"
    assert site.state(int(number)) == "CANCELLED"


@pytest.mark.parametrize(("comment", "state"), [("carrel.own.1.1.now", "CANCELLED"), ("carrel.another.1.1.now", "COMPLETED")])
def test_the_shell_gives_only_an_allocation_of_its_own_identity_back(site, tmp_path, comment, state):
    """A controller that was killed may have given the number to another job."""
    script = tmp_path / "left.sh"
    script.touch()
    number = site.submit(shlex.join(immediate.watched(script, "carrel.own.1.1.now", ["true"])), f"--comment={comment}")
    site.wait_for(number, state)
    assert (tmp_path / "left.sh.released").exists() is (state == "CANCELLED")


def test_of_two_allocations_the_second_finds_the_attempt_claimed_and_ends(site, home, engine, listener, faults):
    launch = make_launch(home, f"echo ran >> {home.root}/ran; echo ready; {go_on(home)}")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    again = faults.calls("srun")[0].split()
    site.run("srun", *again)
    assert len(allocations(site, home)) == 1
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"


def test_an_allocation_whose_guardian_was_killed_is_given_back(site, home, engine, listener):
    launch = running(home, engine, listener, "sleep 600")
    runner = read_claim(home.attempt(launch).claim).pid
    guardian = int(Path(f"/proc/{runner}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(guardian, signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)
    story = listener.wait(launch, lambda story: story.gone or story.ended, timeout=PATIENCE)
    assert story.ended is None
    engine.forget(1, 1)
    wait_until(lambda: not allocations(site, home))


def test_a_command_that_kills_itself_has_failed_though_slurm_calls_it_cancelled(home, engine, listener):
    launch = make_launch(home, "kill -KILL $$")
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "RaisedSignal")


def test_somebody_cancels_the_allocation_in_slurm(site, home, engine, listener):
    launch = running(home, engine, listener, "sleep 600")
    site.run("scancel", (home.attempt(launch).path / "slurm").read_text().split()[1])
    ended = listener.ended(launch)
    assert ended.state is JobState.CANCELLED
    assert "in Slurm by " in ended.reason.message


def test_a_killed_srun_is_no_cancel_by_a_person(home, engine, listener):
    """Its helper ends the step, of which Slurm says that its user has cancelled it."""
    launch = running(home, engine, listener, "sleep 600")
    os.kill(srun_of_attempt(home, launch), signal.SIGKILL)
    story = listener.wait(launch, lambda story: story.gone or story.ended, timeout=PATIENCE)
    assert story.gone or (story.ended.state, story.ended.reason.code) != (JobState.CANCELLED, "Cancelled")


def test_a_command_that_ends_as_if_it_were_killed_leaves_its_srun_alone(home, engine, listener):
    launch = make_launch(home, "exit 137")
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).exit_code == 137
    wait_until(lambda: not Path(f"/proc/{srun_of_attempt(home, launch)}").exists())
    assert not (home.attempt(launch).path / "slurm.sh.released").exists()


def srun_of_attempt(home, launch) -> int:
    words = (home.attempt(launch).path / "slurm").read_text().split()
    return next(int(word.removeprefix("srun=")) for word in words if word.startswith("srun="))

"""Allocations that are held for a user's next short tasks, on a real cluster: the contract of all engines, and their ends."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_engines import AT_ONCE, lab_of, running, slurm_engine

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.ports import Attempt
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.spool import read_claim
from carrel.testing.builders import EngineListener, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]
#: Allocations stay for the next task.
HOLD = {**AT_ONCE, "hold": lambda _launch: 60.0}
SHORT = Resources(cpus=1, memory=256 * 1024**2, time=60)


class TestEngineWithPilots(EngineContract):
    @pytest.fixture
    def make_engine(self, site, home):
        return lambda: slurm_engine(home, site.environ, **HOLD)


@pytest.fixture
def engine(engines, site):
    return engines(site.environ, **HOLD)


def jobs_of(site, home):
    """Identities and numbers of the lab's jobs for which Slurm keeps resources."""
    lines = site.run("squeue", "-h", "-t", "PD,R,S", "-o", "%k %A").out.splitlines()
    return dict(line.split() for line in lines if line.startswith(f"carrel.{lab_of(home)}."))


def number(home, launch):
    words = (home.attempt(launch).path / "slurm").read_text().split()
    return next(word for word in words if word.isdigit())


def test_short_tasks_follow_each_other_in_one_allocation(home, site, engine, listener):
    command = 'echo "$SLURM_JOB_ID $CUDA_VISIBLE_DEVICES"; touch mine; ls'
    launches = [make_launch(home, command, job_id=job, resources=replace(SHORT, gpus=1)) for job in (1, 2, 3)]
    for launch in launches:
        engine.start(launch, token=TOKEN)
        assert listener.ended(launch).state is JobState.COMPLETED
    assert len({number(home, launch) for launch in launches}) == 1
    logs = [home.attempt(launch).log.read_text().split() for launch in launches]
    assert all(log[-1] == "outputs" and log[-2] == "mine" for log in logs)
    # Another shape is another allocation; what is not short, or is a session, has none that is held.
    wide = make_launch(home, "true", job_id=4, resources=replace(SHORT, cpus=2))
    engine.start(wide, token=TOKEN)
    assert listener.ended(wide).state is JobState.COMPLETED
    assert number(home, wide) != number(home, launches[0])
    session = make_launch(home, "true", job_id=5, resources=SHORT)
    long = make_launch(home, "true", job_id=6, resources=replace(SHORT, time=7200))
    for launch in (replace(session, kind=JobKind.SESSION), long):
        engine.start(launch, token=TOKEN)
        assert listener.ended(launch).state is JobState.COMPLETED
        assert "pilot" not in (home.attempt(launch).path / "slurm").read_text()
    assert sorted(name.split(".")[2] for name in jobs_of(site, home) if ".hold." in name) == ["hold", "hold"]


def test_a_held_allocation_is_called_as_the_task_in_it(home, site, engine, listener):
    def name_in_slurm():
        return site.run("squeue", "-h", f"--jobs={number(home, first)}", "-o", "%j|%k").out.strip()

    go_on = home.root / "go-on"
    command = f'echo "$SLURM_JOB_NAME"; while [ ! -e {go_on} ]; do sleep 0.1; done'
    first = replace(make_launch(home, command, resources=SHORT), name="train")
    second = replace(make_launch(home, command, job_id=2, resources=SHORT), name="evaluate it, twice")
    engine.start(first, token=TOKEN)
    wait_until(lambda: home.attempt(first).log.exists() and home.attempt(first).log.read_text())
    identity = f"carrel.{lab_of(home)}.hold."
    assert name_in_slurm().startswith(f"train|{identity}")
    go_on.touch()
    assert listener.ended(first).state is JobState.COMPLETED
    go_on.unlink()
    engine.start(second, token=TOKEN)
    wait_until(lambda: name_in_slurm().startswith(f"evaluate it_ twice|{identity}"))
    go_on.touch()
    assert listener.ended(second).state is JobState.COMPLETED
    assert number(home, second) == number(home, first)
    assert [home.attempt(launch).log.read_text() for launch in (first, second)] == ["train\n", "evaluate it_ twice\n"]


def test_an_allocation_without_work_is_given_back(home, site, engines):
    engine = engines(site.environ, **AT_ONCE, hold=lambda _launch: 0.5)
    listener = EngineListener(engine)
    launch = make_launch(home, "true", resources=SHORT)
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    wait_until(lambda: not jobs_of(site, home))
    # The next one has another.
    again = make_launch(home, "true", job_id=2, resources=SHORT)
    engine.start(again, token=TOKEN)
    assert listener.ended(again).state is JobState.COMPLETED
    engine.close()
    wait_until(lambda: not jobs_of(site, home))
    wait_until(lambda: not list(home.spool.root.glob("carrel.*")))


def test_many_tasks_share_what_the_cluster_gives(home, site, engine, listener):
    launches = [
        make_launch(home, f"echo {job} >> {home.root}/ran", job_id=job, resources=replace(SHORT, cpus=8)) for job in range(1, 25)
    ]
    for launch in launches:
        engine.start(launch, token=TOKEN)
    assert {listener.ended(launch).state for launch in launches} == {JobState.COMPLETED}
    assert sorted(map(int, (home.root / "ran").read_text().split())) == list(range(1, 25))
    held = {number(home, launch) for launch in launches if "pilot" in (home.attempt(launch).path / "slurm").read_text()}
    assert 1 <= len(held) <= 4


def test_who_waits_for_a_pilot_can_be_cancelled(home, site, engine, listener):
    os.mkfifo(home.root / "go")
    full = site.submit("sleep 600", "--partition=main", "--nodes=3", "--exclusive", "--mem=0")
    site.wait_for(full, "RUNNING")
    first = make_launch(home, f"read line < {home.root}/go", resources=replace(SHORT, cpus=8))
    second = make_launch(home, f"touch {home.root}/ran", job_id=2, resources=replace(SHORT, cpus=8))
    engine.start(first, token=TOKEN)
    listener.wait(first, lambda story: story.first(Started))
    engine.start(second, token=TOKEN)
    engine.cancel(2, 1, by="bob")
    assert listener.ended(second).state is JobState.CANCELLED
    (home.root / "go").write_text("go\n")
    assert listener.ended(first).state is JobState.COMPLETED
    assert not (home.root / "ran").exists()


def test_the_next_engine_finds_the_task_and_the_allocation_goes(home, site, engine, listener, engines):
    os.mkfifo(home.root / "go")
    launch = make_launch(home, f"echo ran >> {home.root}/ran; read line < {home.root}/go", resources=SHORT)
    engine.start(launch, token=TOKEN)
    offset = listener.wait(launch, lambda story: story.first(Started)).offset
    engine.close()
    second = engines(site.environ, **HOLD)
    listener = EngineListener(second)
    second.adopt([(Attempt(job_id=1, number=1, offset=offset), launch, TOKEN)])
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED
    wait_until(lambda: not jobs_of(site, home))
    assert (home.root / "ran").read_text() == "ran\n"


def pilots(home):
    """Processes of pilots, by what Slurm started them for."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, about = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if (
            b"carrel.engines.slurm.pilot" in words
            and not words.startswith(b"/bin/bash")
            and f"carrel.{lab_of(home)}.hold.".encode() in about
        ):
            found.append(int(process.name))
    return found


def test_a_pilot_that_is_killed_loses_no_task(home, site, engine, listener):
    first = make_launch(home, "true", resources=SHORT)
    engine.start(first, token=TOKEN)
    assert listener.ended(first).state is JobState.COMPLETED
    wait_until(lambda: len(pilots(home)) == 1)
    (pid,) = pilots(home)
    os.kill(pid, signal.SIGSTOP)  # it takes the line, and does nothing
    second = make_launch(home, f"echo ran >> {home.root}/ran", job_id=2, resources=SHORT)
    engine.start(second, token=TOKEN)
    wait_until(lambda: (home.attempt(second).path / "slurm").exists())
    os.kill(pid, signal.SIGKILL)
    assert listener.ended(second).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"
    wait_until(lambda: not any(".hold." in name for name in jobs_of(site, home)))


def test_slurm_ends_a_held_allocation(home, site, engine, listener):
    launch = running(home, engine, listener, "sleep 600", resources=SHORT)
    site.run("scancel", number(home, launch))
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.CANCELLED, "Cancelled")
    claim = read_claim(home.attempt(launch).claim)
    assert claim is not None
    assert not claim.held


def test_a_task_that_was_killed_in_a_held_allocation_has_failed(home, site, engine, listener):
    launch = make_launch(home, "kill -9 $$", resources=SHORT)
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.signal) == (JobState.FAILED, 9)

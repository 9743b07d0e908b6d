"""The engine for Slurm on a real cluster: the contract of all engines, and what only this one has."""

import os
import signal
from dataclasses import replace

import pytest
from slurm_engines import go_on, lab_of, running, said, slurm_engine

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.ports import Attempt
from carrel.core.domain.resources import Resources
from carrel.core.spool import read_claim
from carrel.engines.attempts import Watched, write_launch
from carrel.engines.slurm import follower, missing
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import options_for
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import wait_until
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

GIB = 1024**3


class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def make_engine(self, site, home):
        return lambda: slurm_engine(home, site.environ)


@pytest.fixture
def engine(engines, faults):
    return engines(faults.environ)


def number_of(home, launch):
    path = home.attempt(launch).path / "slurm"

    def numbers():
        return [int(word) for word in path.read_text().split() if word.isdigit()] if path.exists() else []

    wait_until(numbers)
    return numbers()[0]


def test_a_job_has_the_gpus_that_slurm_gave_it(home, engine, listener):
    launch = make_launch(
        home, 'echo "gpus $CUDA_VISIBLE_DEVICES"', resources=Resources(gpus=2, gpu_type="fake", memory=GIB // 2, time=60)
    )
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED
    assert home.attempt(launch).log.read_text() in ("gpus 0,1\n", "gpus 2,3\n", "gpus 1,2\n", "gpus 0,2\n")


def test_a_job_that_waits_in_slurm_says_why_and_can_be_cancelled(home, engine, listener):
    first = make_launch(home, "sleep 600", resources=Resources(nodes=4, cpus=8, memory=GIB, time=60))
    engine.start(first, token=TOKEN)
    listener.wait(first, lambda story: story.first(Started))
    second = make_launch(home, f"touch {home.root}/ran", job_id=2, resources=Resources(cpus=8, memory=GIB, time=60))
    engine.start(second, token=TOKEN)
    listener.wait(second, lambda story: said(story, "waits in Slurm") and (said(story, "Resources") or said(story, "Priority")))
    engine.cancel(2, 1, by="bob")
    ended = listener.ended(second)
    assert ended.state is JobState.CANCELLED
    assert "bob" in ended.reason.message
    assert not (home.root / "ran").exists()


def test_what_slurm_refuses_has_failed_in_slurms_words(home, engine, listener):
    launch = make_launch(home, "true", resources=Resources(gpus=99, memory=GIB, time=60))
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert "Requested node configuration is not available" in ended.reason.message


def test_a_script_that_never_reaches_the_runner_has_failed(home, faults, engines):
    engine = engines(faults.environ, python="/nowhere/python")
    listener = EngineListener(engine)
    launch = make_launch(home, "true")
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert "/nowhere/python" in ended.reason.message


def test_somebody_cancels_the_job_in_slurm(site, home, engine, listener):
    launch = running(home, engine, listener, "sleep 600")
    site.run("scancel", str(number_of(home, launch)))
    ended = listener.ended(launch)
    assert ended.state is JobState.CANCELLED
    assert f"in Slurm by {site.layout.user} " in ended.reason.message


def test_a_node_fails(site, home, engine, listener):
    launch = running(home, engine, listener, "sleep 600")
    node = site.run("squeue", "-h", "-j", str(number_of(home, launch)), "-o", "%N").out.strip()
    site.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        ended = listener.ended(launch)
    finally:
        site.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)  # it comes back by itself, too
    assert (ended.state, ended.reason.code) == (JobState.NODE_FAIL, "NodeLost")
    assert ended.retryable


def test_a_job_is_preempted(site, home, faults, engines):
    def low(launch):
        return replace(options_for(launch), qos="lowcancel", passed=("--nodelist=node4",))

    engine = engines(faults.environ, options=low)
    listener = EngineListener(engine)
    launch = running(home, engine, listener, "sleep 600", resources=Resources(gpus=4, memory=GIB, time=60))
    site.submit("sleep 600", "--qos=high", "--gres=gpu:4", "--nodelist=node4")
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.PREEMPTED, "Preempted")


# --- trouble with Slurm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["down", "fails", "silent", "garbage", "busy", "swallowed"])
def test_a_submission_that_goes_wrong_is_made_again_and_runs_once(home, engine, listener, faults, fault):
    faults.set(fault, "sbatch")
    launch = make_launch(home, f"echo ran >> {home.root}/ran")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, "not submitted to Slurm yet") or story.ended)
    faults.clear()
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("fault", ["down", "fails", "silent", "garbage", "busy", "slow"])
def test_a_job_runs_to_its_end_while_slurm_says_nothing_of_use(home, faults, engines, fault):
    engine = engines(faults.environ, timeout=3 if fault == "slow" else 60)
    listener = EngineListener(engine)
    launch = running(home, engine, listener, f"{go_on(home)}; exit 4")
    faults.set(fault)
    asked = len(faults.calls("squeue"))
    wait_until(lambda: len(faults.calls("squeue")) > asked + 1)
    assert listener.story(launch).ended is None
    assert not listener.story(launch).gone
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).exit_code == 4
    faults.clear()


@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_that_slurm_has_lost_is_neither_done_nor_failed(site, home, engine, listener, faults, accounting):
    launch = running(home, engine, listener, f"{go_on(home)}; exit 4")
    faults.set("loses", "squeue", text="carrel.t")
    faults.set("loses" if accounting else "down", "sacct", text="carrel.t")
    asked = len(faults.calls("sacct"))
    wait_until(lambda: len(faults.calls("sacct")) > asked + 1)
    assert listener.story(launch).ended is None
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).exit_code == 4


def test_a_waiting_job_that_slurm_has_lost_says_so_and_can_be_given_up(site, home, faults, engines):
    def held(launch):
        return replace(options_for(launch), passed=("--begin=now+1hour",))

    engine = engines(faults.environ, options=held)
    listener = EngineListener(engine)
    launch = make_launch(home, f"touch {home.root}/ran")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, "BeginTime"))
    faults.set("loses", "squeue", "sacct", text="carrel.t")
    story = listener.wait(launch, lambda story: said(story, "does not know job"))
    assert story.ended is None
    engine.cancel(1, 1, by="bob")
    assert listener.ended(launch).state is JobState.CANCELLED
    assert not (home.root / "ran").exists()


def test_a_waiting_job_that_slurm_has_forgotten_is_submitted_again_and_runs_once(site, home, faults, monkeypatch, engines):
    monkeypatch.setattr(missing, "FORGOTTEN", 1.0)
    asked = []

    def later(launch):
        asked.append(launch)
        return replace(options_for(launch), passed=() if len(asked) > 1 else ("--begin=now+4",))

    engine = engines(faults.environ, options=later)
    listener = EngineListener(engine)
    launch = make_launch(home, f"echo ran >> {home.root}/ran; sleep 1")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: said(story, "BeginTime"))
    first = number_of(home, launch)
    faults.set("loses", "squeue", "sacct", text="carrel.t")
    wait_until(lambda: number_of(home, launch) != first)
    faults.clear()
    assert listener.ended(launch).state is JobState.COMPLETED
    site.wait_for(first, "COMPLETED")  # it came after all, and found the attempt claimed
    assert (home.root / "ran").read_text() == "ran\n"


def test_runners_on_other_machines_ring_over_the_network(site, home, monkeypatch, engines):
    monkeypatch.setattr(follower, "POLL", 1000.0)  # nobody looks by himself
    engine = engines(site.environ, host="127.0.0.1", interval=1000.0)
    listener = EngineListener(engine)
    (home.run / "doorbell").unlink()  # no other machine has it
    launch = make_launch(home, f"echo ready; {go_on(home)}; echo done")
    engine.start(launch, token=TOKEN)
    listener.wait(launch, lambda story: story.first(Started))
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED


def test_the_controller_is_killed_and_forgets_the_job(slurm_programs, tmp_path):
    """Killed before it wrote down what it knows. The runner goes on, and its journal tells the end."""
    home = LabHome(tmp_path)
    with SlurmSite(nodes=1, accounting=False) as site:
        engine = slurm_engine(home, site.environ)
        try:
            listener = EngineListener(engine)
            launch = running(home, engine, listener, f"{go_on(home)}; exit 4")
            site.kill("slurmctld")
            site.start_controller()
            (home.root / "go").write_text("go\n")
            assert listener.ended(launch).exit_code == 4
        finally:
            engine.close()


def test_a_script_that_slurm_starts_again_does_nothing(site, home, engine, listener):
    launch = make_launch(home, f"echo ran >> {home.root}/ran; echo ready; {go_on(home)}")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    script = site.run("scontrol", "write", "batch_script", str(number_of(home, launch)), "-").out
    second = int(site.run("sbatch", "--parsable", stdin=script).out)
    site.wait_for(second, "COMPLETED")
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"


def test_slurm_remembers_the_exit_code_of_the_command(site, home, engine, listener):
    launch = make_launch(home, "exit 7")
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).exit_code == 7
    number = number_of(home, launch)
    site.wait_for(number, "FAILED")
    assert "ExitCode=7:0" in site.run("scontrol", "show", "job", str(number)).out


def test_a_job_that_somebody_renamed_is_still_ours(site, home, engine, listener):
    launch = running(home, engine, listener, f"{go_on(home)}")
    site.run("scontrol", "update", f"job={number_of(home, launch)}", "name=better")
    engine.cancel(1, 1, by="alice")
    assert listener.ended(launch).state is JobState.CANCELLED


def test_a_number_that_is_another_jobs_by_now_is_not_cancelled(site, home, engine, listener):
    """As after a controller that was killed: the number that was written down is of a job of somebody else's."""
    launch = make_launch(home, "sleep 600")
    other = site.submit("sleep 600", "--job-name=other", "--comment=carrel.another.1.1")
    site.wait_for(other, "RUNNING")
    write_launch(Watched(launch=launch, token=TOKEN, directory=home.attempt(launch)))
    (home.attempt(launch).path / "slurm").write_text(f"{other}\n")
    engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
    engine.cancel(1, 1, by="alice")
    assert listener.ended(launch).state is JobState.CANCELLED
    assert site.state(other) == "RUNNING"


def test_a_new_engine_finds_a_job_whose_number_nobody_wrote_down(home, faults, engines):
    """The server died between sbatch and its answer."""
    launch = make_launch(home, f"echo ran >> {home.root}/ran; echo ready; {go_on(home)}")
    first = engines(faults.environ)
    listener = EngineListener(first)
    first.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    number = number_of(home, launch)
    first.close()
    (home.attempt(launch).path / "slurm").write_text("")
    second = engines(faults.environ)
    listener = EngineListener(second)
    second.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
    listener.wait(launch, lambda story: story.first(Started))
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).state is JobState.COMPLETED
    assert number
    assert (home.root / "ran").read_text() == "ran\n"


def test_one_listing_for_many_jobs_and_no_question_about_one(home, engine, listener, faults):
    launches = [make_launch(home, "true", job_id=number) for number in range(1, 13)]
    for launch in launches:
        engine.start(launch, token=TOKEN)
    for launch in launches:
        assert listener.ended(launch).state is JobState.COMPLETED
    assert len(faults.calls("sbatch")) == len(launches)
    assert faults.calls("scontrol") == []
    assert all("--job" not in call for call in faults.calls("squeue"))


def test_the_nodes_are_those_of_the_cluster(site, engine):
    nodes = engine.nodes()
    assert [node.name for node in nodes] == list(site.layout.nodes)
    assert {(node.cpus, node.memory, len(node.devices), node.devices[0].type) for node in nodes} == {
        (8, 16000 * 1024**2, 4, "fake")
    }


def test_a_runner_that_is_killed_keeps_slurms_word_out_of_it(home, engine, listener):
    launch = running(home, engine, listener, "sleep 600")
    os.kill(read_claim(home.attempt(launch).claim).pid, signal.SIGKILL)
    story = listener.wait(launch, lambda story: story.gone)
    assert story.ended is None


def test_a_script_that_ends_well_without_a_runner_is_submitted_again_and_given_up(site, home, engines):
    engine = engines(site.environ, python="/bin/true")
    listener = EngineListener(engine)
    launch = make_launch(home, "echo never")
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert "It had not begun." in ended.reason.message
    name = f"carrel.{lab_of(home)}.1.1"
    assert len([job for job in SlurmCommands(environ=site.environ, json=False).listing() if job.identity == name]) == 4

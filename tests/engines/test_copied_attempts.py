"""What a copy of an attempt's directory says of processes is true of the original's, which nobody touches."""

import os
import subprocess

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.ports import Attempt
from carrel.core.spool import AttemptDirectory, read_claim, take_claim
from carrel.engines.attempts import ClaimState, Watched, find_runner
from carrel.engines.leftovers import kill_leftovers
from carrel.engines.local import LocalEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import wait_until


def local_engine(home):
    return LocalEngine(
        spool=home.spool, node=this_node(()), run_dir=home.run, environ=os.environ, locks=DeviceLocks(home.root / "locks")
    )


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return LabHome(tmp_path / "home")


@pytest.fixture
def running(home):
    """A task that runs until somebody writes into home/go, with a process that is in a session of its own."""
    os.mkfifo(home.root / "go")
    engine = local_engine(home)
    listener = EngineListener(engine)
    # It opens the pipe before it is ready: the home may have another name right after that.
    script = f"setsid sleep 600 & echo $! > {home.root}/stray; exec 3<> {home.root}/go; echo ready; read line <&3; exit 7"
    launch = make_launch(home, script)
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    yield launch, listener
    go = os.open(home.root / "go", os.O_WRONLY | os.O_NONBLOCK)  # nobody reads where the task was killed: that is an error
    os.write(go, b"go\n")
    assert listener.ended(launch).exit_code == 7
    os.close(go)
    engine.close()


@pytest.mark.gate
def test_an_engine_on_a_copy_ends_nothing_of_the_original(home, running, tmp_path):
    launch, listener = running
    stray = int((home.root / "stray").read_text())
    for number in range(2):
        copy = LabHome(tmp_path / f"copy{number}")
        subprocess.run(["cp", "-a", home.root, copy.root], check=True)
        engine = local_engine(copy)
        heard = EngineListener(engine)
        engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
        assert heard.wait(launch, lambda story: story.gone).ended is None
        engine.close()
        os.kill(stray, 0)
    assert read_claim(home.attempt(launch).claim).held
    assert not listener.story(launch).gone


def test_a_copy_in_the_place_of_the_original_ends_nothing_either(home, running, tmp_path):
    launch, listener = running
    original = tmp_path / "original"
    home.root.rename(original)
    try:
        subprocess.run(["cp", "-a", original, home.root], check=True)
        assert read_claim(home.attempt(launch).claim).copied
        assert kill_leftovers(home.attempt(launch)) == 0
        os.kill(int((original / "stray").read_text()), 0)
    finally:
        home.root.rename(tmp_path / "copy")
        original.rename(home.root)
    assert not listener.story(launch).gone


def test_what_a_killed_runner_left_is_found_after_the_home_was_moved_and_linked(home, tmp_path):
    engine = local_engine(home)
    listener = EngineListener(engine)
    launch = make_launch(home, f"(setsid sleep 600 & echo $! > {home.root}/stray); echo ready; sleep 600")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    engine.close()
    stray = os.pidfd_open(int((home.root / "stray").read_text()))
    moved = LabHome(tmp_path / "moved")
    home.root.rename(moved.root)
    home.root.symlink_to(moved.root)
    claim = moved.attempt(launch).claim
    os.kill(read_claim(claim).pid, 9)
    wait_until(lambda: not read_claim(claim).held)
    assert kill_leftovers(moved.attempt(launch)) > 0
    wait_until(lambda: _is_over(stray))
    os.close(stray)


def _is_over(pidfd):
    import select

    return bool(select.select([pidfd], [], [], 0)[0])


@pytest.fixture
def directory(tmp_path):
    return AttemptDirectory(tmp_path)


def _as_of_another_boot(claim):
    pid, inode, _ = claim.read_text().split()
    claim.write_text(f"{pid} {inode} 00000000-0000-0000-0000-000000000000\n")


def test_a_process_of_another_machine_is_none_of_this_one(home):
    launch = make_launch(home, "true")
    directory = home.attempt(launch)
    directory.path.mkdir(parents=True)
    held = take_claim(directory.claim, os.getpid())
    _as_of_another_boot(directory.claim)
    watched = Watched(launch=launch, token="", directory=directory)
    assert find_runner(watched) is ClaimState.ELSEWHERE
    assert watched.pidfd == -1
    os.close(held)
    assert find_runner(watched) is ClaimState.DEAD
    assert kill_leftovers(directory) == 0


def test_a_damaged_claim_is_taken_for_a_copy(directory):
    os.close(take_claim(directory.claim, 4242))
    assert not read_claim(directory.claim).copied
    directory.claim.chmod(0o600)
    directory.claim.write_text("4242\n")
    claim = read_claim(directory.claim)
    assert (claim.pid, claim.held, claim.copied, claim.elsewhere) == (4242, False, True, False)


def test_an_engine_leaves_a_runner_on_another_machine_alone(home):
    launch = make_launch(home, "true")
    directory = home.attempt(launch)
    directory.path.mkdir(parents=True)
    held = take_claim(directory.claim, os.getpid())
    _as_of_another_boot(directory.claim)
    engine = local_engine(home)
    listener = EngineListener(engine)
    engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
    second = make_launch(home, "true", job_id=2)
    engine.start(second, token=TOKEN)
    assert listener.ended(second).state is JobState.COMPLETED
    assert not listener.story(launch).gone
    os.close(held)
    assert listener.wait(launch, lambda story: story.gone).ended is None
    engine.close()

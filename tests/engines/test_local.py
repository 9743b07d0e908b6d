"""The local engine: the contract, with the kernel's limits and without, and what only this engine has."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.core.domain.node import Device
from carrel.core.domain.ports import Attempt
from carrel.core.spool import Spool, read_claim
from carrel.core.spool.trees import remove_tree
from carrel.engines.local import LocalEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import EngineListener, LabHome, make_launch
from carrel.testing.engine_contract import TOKEN, EngineContract
from carrel.testing.waiting import wait_until

GPU = Device(uuid="GPU-test-1", index=0, type="h200", name="NVIDIA H200", memory=2**37)


def local_engine(home, **options):
    options.setdefault("locks", DeviceLocks(home.root / "locks"))
    return LocalEngine(spool=home.spool, node=this_node((GPU,)), run_dir=home.run, environ=os.environ, **options)


@pytest.mark.gate
class TestLocalEngine(EngineContract):
    @pytest.fixture
    def home(self, tmp_path):
        return LabHome(tmp_path)

    @pytest.fixture
    def make_engine(self, home):
        return lambda: local_engine(home)


@pytest.fixture
def home(tmp_path):
    return LabHome(tmp_path)


@pytest.fixture
def engine(home):
    engine = local_engine(home)
    yield engine
    engine.close()


@pytest.fixture
def listener(engine):
    return EngineListener(engine)


def test_jobs_run_on_when_the_nursery_is_killed(home, engine, listener):
    os.mkfifo(home.root / "go")
    launch = make_launch(home, f"echo ready; read line < {home.root}/go; exit 5")
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    os.kill(engine.nursery_pid, signal.SIGKILL)
    (home.root / "go").write_text("go\n")
    assert listener.ended(launch).exit_code == 5


def test_a_killed_nursery_is_replaced(home, engine, listener):
    first = make_launch(home, "echo one")
    engine.start(first, token=TOKEN)
    listener.ended(first)
    old = engine.nursery_pid
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: engine.nursery_pid not in (old, None))
    second = make_launch(home, "echo two", job_id=2)
    engine.start(second, token=TOKEN)
    assert listener.ended(second).state is JobState.COMPLETED


def test_requests_that_a_killed_nursery_did_not_answer_are_made_again(home, engine, listener):
    old = engine.nursery_pid
    os.kill(old, signal.SIGSTOP)
    launch = make_launch(home, f"echo ran >> {home.root}/ran")
    engine.start(launch, token=TOKEN)
    os.kill(old, signal.SIGKILL)
    assert listener.ended(launch).state is JobState.COMPLETED
    assert (home.root / "ran").read_text() == "ran\n"


_SERVER = """
import os, sys, threading
from pathlib import Path
from carrel.node.devices import this_node
from carrel.engines.local import LocalEngine
from carrel.testing.builders import EngineListener, LabHome, make_launch
home = LabHome(Path(sys.argv[1]))
engine = LocalEngine(spool=home.spool, node=this_node(), run_dir=home.run, environ=os.environ)
ear = EngineListener(engine)
launch = make_launch(home, f"echo ready; read line < {home.root}/go; exit 6")
engine.start(launch, token="t" * 20)
ear.wrote(launch, home.attempt(launch).log, b"ready")
print("ready", flush=True)
threading.Event().wait()
"""


def test_jobs_outlive_a_server_that_is_killed(home):
    os.mkfifo(home.root / "go")
    with subprocess.Popen([sys.executable, "-c", _SERVER, str(home.root)], stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        server.kill()
    launch = make_launch(home, f"echo ready; read line < {home.root}/go; exit 6")
    engine = local_engine(home)
    try:
        listener = EngineListener(engine)
        engine.adopt([(Attempt(job_id=1, number=1), launch, TOKEN)])
        listener.wait(launch, lambda story: story.first(Started))
        (home.root / "go").write_text("go\n")
        assert listener.ended(launch).exit_code == 6
    finally:
        engine.close()


def test_what_the_spool_holds_is_private(home, engine, listener):
    launch = make_launch(home, "echo hello")
    engine.start(launch, token=TOKEN)
    listener.ended(launch)
    directory = home.attempt(launch)
    for path in (directory.path, directory.path.parent, home.spool.root, home.run):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (directory.token, directory.launch, directory.journal, directory.log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(directory.claim.stat().st_mode) == 0o400, "its command has begun"


#: What multiprocessing does with TMPDIR.
_BIND = """
import os, socket, tempfile
socket.socket(socket.AF_UNIX).bind(tempfile.mkdtemp(prefix="pymp-") + "/listener-12345678")
print(len(os.environ["TMPDIR"]))
"""


def test_a_long_run_directory_works(tmp_path, monkeypatch):
    monkeypatch.setattr("carrel.engines.observer.TICK", 3600.0)  # what is heard is heard by the bell
    home = LabHome(tmp_path / ("d" * 100) / ("e" * 60))
    engine = local_engine(home)
    try:
        listener = EngineListener(engine)
        launch = make_launch(home, "python3 bind.py", files={"bind.py": _BIND})
        engine.start(launch, token=TOKEN)
        ended = listener.ended(launch)
        assert ended.state is JobState.COMPLETED, home.attempt(launch).log.read_text()
        assert int(home.attempt(launch).log.read_text()) < 65
        engine.forget(1, 1)
        wait_until(lambda: not os.path.lexists(home.attempt(launch).temporary))
    finally:
        engine.close()


def test_nothing_starts_on_a_device_that_another_lab_holds(home, engine, listener):
    other = DeviceLocks(home.root / "locks").take((GPU,))
    launch = make_launch(home, "echo hello", devices=(GPU,))
    try:
        assert engine.withheld() == {GPU.uuid}
        with pytest.raises(Unavailable, match="GPU-test-1"):
            engine.start(launch, token=TOKEN)
        assert not home.attempt(launch).launch.exists()
    finally:
        for fd in other:
            os.close(fd)
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch).state is JobState.COMPLETED


def test_a_device_is_locked_for_as_long_as_its_job_runs(home, engine, listener):
    locks = DeviceLocks(home.root / "locks")
    launch = make_launch(home, "echo ready; sleep 600", devices=(GPU,))
    engine.start(launch, token=TOKEN)
    listener.wrote(launch, home.attempt(launch).log, b"ready")
    assert locks.is_held(GPU)
    assert engine.withheld() == frozenset()
    engine.cancel(1, 1, by="bob")
    listener.ended(launch)
    assert not locks.is_held(GPU)


def test_a_job_sees_only_its_own_devices(home, engine, listener):
    show = 'echo "[$CUDA_VISIBLE_DEVICES]"'
    with_gpu, without = make_launch(home, show, devices=(GPU,)), make_launch(home, show, job_id=2)
    for launch in (with_gpu, without):
        engine.start(launch, token=TOKEN)
        listener.ended(launch)
    assert home.attempt(with_gpu).log.read_text() == "[GPU-test-1]\n"
    assert home.attempt(without).log.read_text() == "[]\n"


def test_the_variables_of_the_server_do_not_leak(home, monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    engine = local_engine(home)
    try:
        listener = EngineListener(engine)
        launch = make_launch(home, "env", task={"variables": {"MINE": "yes", "PYTHONHASHSEED": "42"}})
        engine.start(launch, token=TOKEN)
        ended = listener.wait(launch, lambda story: story.ended)
        variables = dict(line.split("=", 1) for line in home.attempt(launch).log.read_text().splitlines())
        assert not {"DATABASE_PASSWORD", "AWS_SECRET_ACCESS_KEY", "VIRTUAL_ENV", "PYTHONPATH"} & set(variables)
        assert not any("hunter2" in value for value in variables.values())
        assert variables["MINE"] == "yes"
        assert variables["CARREL_JOB_ID"] == "1"
        assert variables["CARREL_TOKEN"] == "********"
        assert ended.first(Started).seeds["PYTHONHASHSEED"] == "42"
    finally:
        engine.close()


def test_a_full_spool_starts_nothing(tmp_path, small_disk):
    home = LabHome(tmp_path)
    spool = Spool(small_disk / "spool")
    engine = LocalEngine(spool=spool, node=this_node(), run_dir=home.run, environ=os.environ)
    try:
        EngineListener(engine)
        launch = make_launch(home, "echo hello")
        with open(small_disk / "filler", "wb", buffering=0) as filler:
            with pytest.raises(OSError, match="No space"):
                while True:
                    filler.write(b"x" * 4096)
        with pytest.raises(StorageFull):
            engine.start(launch, token=TOKEN)
        assert not spool.attempt(1, 1).launch.exists()
        (small_disk / "filler").unlink()
        engine.start(launch, token=TOKEN)
        wait_until(lambda: (claim := read_claim(spool.attempt(1, 1).claim)) is not None and not claim.held)
        assert spool.attempt(1, 1).log.read_bytes() == b"hello\n"
    finally:
        engine.close()


def test_runners_that_a_full_disk_kept_from_their_claim_are_not_lost(tmp_path, small_disk, caplog):
    home = LabHome(tmp_path)
    spool = Spool(small_disk / "spool")
    # Time flies: the engine looks at everything fifty times as often.
    engine = LocalEngine(
        spool=spool, node=this_node(), run_dir=home.run, environ=os.environ, monotonic=lambda: 50 * time.monotonic()
    )
    try:
        listener = EngineListener(engine)
        launch = make_launch(home, "echo hello")
        with open(small_disk / "filler", "wb", buffering=0) as filler:
            os.posix_fallocate(filler.fileno(), 0, small_disk.stat().st_blksize * (os.statvfs(small_disk).f_bavail - 2))
        engine.start(launch, token=TOKEN)  # its launch file and its token just fit
        wait_until(lambda: caplog.text.count("No space is left on the disk") >= 4)
        assert not listener.story(launch).gone
        (small_disk / "filler").unlink()
        assert listener.ended(launch).state is JobState.COMPLETED
        assert spool.attempt(1, 1).log.read_bytes() == b"hello\n"
    finally:
        engine.close()


#: Makes 3,000 directories in each other in each place that a command may fill, and takes its own right to empty them.
_DIG = """
import os
for place in (os.environ["TMPDIR"], os.environ["CARREL_CHECKPOINT_DIR"], os.getcwd()):
    os.chdir(place)
    for _ in range(3000):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    os.chmod(place, 0o500)
"""


@pytest.mark.parametrize("killed", [False, True], ids=["its runner clears up", "the lab clears up"])
def test_what_a_job_dug_goes_with_it(home, engine, listener, killed):
    launch = make_launch(home, f"python3 dig.py && echo dug && {'sleep 600' if killed else 'true'}", files={"dig.py": _DIG})
    engine.start(launch, token=TOKEN)
    directory = home.attempt(launch)
    if killed:
        listener.wrote(launch, directory.log, b"dug")
        os.kill(read_claim(directory.claim).pid, signal.SIGKILL)
        listener.wait(launch, lambda story: story.gone)
    else:
        assert listener.ended(launch).state is JobState.COMPLETED, directory.log.read_text()
    place = directory.temporary_place
    engine.forget(1, 1)
    assert [path for path in (directory.temporary, place, directory.checkpoint) if os.path.lexists(path)] == []
    if killed:
        remove_tree(directory.work)  # a lab's collector does; pytest could not
    wait_until(lambda: not directory.work.exists())

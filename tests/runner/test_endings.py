"""Every ending of an attempt, by real commands: its state, its reason, its numbers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import LaunchLimits, Sampled, Started
from carrel.core.domain.network import Network
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, InputSpec
from carrel.core.spool import Spool, read_entries
from carrel.node.runner.advice import advice
from carrel.node.runner.endings import Ending
from carrel.testing.builders import make_launch
from carrel.testing.waiting import PATIENCE, wait_until

MIB = 1024**2
#: What ends by itself when it is asked to, ends before this.
PATIENT = LaunchLimits(grace=int(PATIENCE))
EAT = """
import time
held = []
for _ in range(400):
    held.append(bytearray(b"x" * 2**20))
    time.sleep(0.002)
print("ate it all")
"""


def verdict(ended):
    return ended.state, ended.reason.code


#: What is run, and with which fields of the task; how it ends, with which exit code or by which signal, and words of the reason.
ENDS = [
    ("true", {}, JobState.COMPLETED, "Completed", 0, ()),
    ("true", {"network": Network.ON}, JobState.COMPLETED, "Completed", 0, ()),
    ("true", {"network": Network.OFF}, JobState.FAILED, "LaunchFailed", None, ('asks for network "off"',)),
    ("true", {"directory": "../../.."}, JobState.FAILED, "LaunchFailed", None, ("not inside",)),
    ("true " + "x" * 200_000, {}, JobState.FAILED, "LaunchFailed", None, ("too long",)),
    (
        "true", {"inputs": (InputSpec(path="data", uri="file:///no/such/file"),)},
        JobState.FAILED, "InputFailed", None, ("/no/such/file", "No such file"),
    ),
    ("no-such-program", {}, JobState.FAILED, "NonZeroExitCode", 127, ("did not find",)),
    (
        "python3 -c 'import no_such_module_here'", {}, JobState.FAILED, "NonZeroExitCode", 1,
        ("no_such_module_here is not installed in the machine's own Python", "requirements.txt"),
    ),
    (
        "python3 -c 'open(\"data/train.csv\")'", {}, JobState.FAILED, "NonZeroExitCode", 1,
        ("It did not find data/train.csv.", "inputs of the task"),
    ),
    *(
        (f"kill -{one} $$; sleep 600", {}, JobState.FAILED, "RaisedSignal", one, (one.name, "not sent by Carrel"))
        for one in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGUSR1)
    ),
]  # fmt: skip


@pytest.mark.gate
@pytest.mark.parametrize(("command", "task", "state", "code", "by", "words"), ENDS, ids=lambda value: str(value)[:40])
def test_an_end_has_its_state_its_code_and_words(lab, command, task, state, code, by, words):
    ended = lab.run(command, task=task)
    assert verdict(ended) == (state, code)
    assert (ended.exit_code, ended.signal) == ((None, by) if isinstance(by, signal.Signals) else (by, None))
    assert all(word in ended.reason.message for word in words)


def test_a_walltime_is_the_commands_until_its_end_and_then_it_may_finish(any_lab):
    # It is told once, at the end, and what it writes then is kept.
    command = "trap 'echo told after $SECONDS s; exit 0' TERM; echo ready; sleep 600 & wait $!"
    ended = any_lab.run(command, resources=Resources(time=8, memory=256 * MIB), limits=PATIENT)
    assert verdict(ended) == (JobState.TIMEOUT, "TimeLimit")
    assert ended.exit_code == 0
    assert ended.reason.message == "It reached its walltime of 8 s."
    (told,) = re.findall(rb"told after (\d+) s", any_lab.output())
    assert int(told) >= 7  # SECONDS counts from the shell's own start


def test_what_does_not_end_at_its_walltime_is_killed_after_the_grace(any_lab):
    command = "trap 'echo told' TERM; echo ready; while :; do sleep 600 & wait $!; done"
    ended = any_lab.run(command, resources=Resources(time=8, memory=256 * MIB), limits=LaunchLimits(grace=2))
    assert (verdict(ended), ended.signal) == ((JobState.TIMEOUT, "TimeLimit"), signal.SIGKILL)
    assert re.fullmatch(r"It reached its walltime of 8 s, and was killed after \d+ s\.", ended.reason.message)
    assert b"told" in any_lab.output()


def test_a_task_that_asks_for_it_is_warned_before_its_walltime_and_told_again_at_its_end(lab):
    command = "trap 'echo told' TERM; echo ready; while :; do sleep 600 & wait $!; done"
    ended = lab.run(command, resources=Resources(time=16, memory=256 * MIB), limits=LaunchLimits(warning=8, grace=1))
    assert verdict(ended) == (JobState.TIMEOUT, "TimeLimit")
    assert lab.output().count(b"told\n") == 2


def test_what_ends_well_after_the_warning_is_completed(lab):
    command = "trap 'echo saved; exit 0' TERM; sleep 600 & wait $!"
    # Warned after 8 s, by which its trap is set.
    ended = lab.run(command, resources=Resources(time=16, memory=256 * MIB), limits=LaunchLimits(warning=8))
    assert verdict(ended) == (JobState.COMPLETED, "Completed")


def test_what_dies_of_the_warning_is_a_timeout(lab):
    ended = lab.run("sleep 600", resources=Resources(time=16, memory=256 * MIB), limits=LaunchLimits(warning=8))
    assert verdict(ended) == (JobState.TIMEOUT, "TimeLimit")
    assert ended.signal == signal.SIGTERM
    # The real moment, and not that of the walltime.
    assert re.fullmatch(r"It ended after \d+ s, warned that its walltime of 16 s would end\.", ended.reason.message)


@pytest.mark.parametrize(("mib", "state"), [(64, JobState.OUT_OF_MEMORY), (1024, JobState.COMPLETED)])
def test_memory_is_limited(any_lab, mib, state):
    ended = any_lab.run("python3 eat.py", files={"eat.py": EAT}, resources=Resources(memory=mib * MIB, time=600))
    assert ended.state is state, ended
    assert (b"ate it all" in any_lab.output()) is (state is JobState.COMPLETED)
    if state is JobState.OUT_OF_MEMORY:
        assert (ended.reason.code, "64M" in ended.reason.message) == ("OutOfMemory", True)
        assert ended.usage.memory_peak > 40 * MIB


def test_memory_that_forked_workers_share_is_counted_once(any_lab):
    share = (
        "import os, time\n"
        "data = bytearray(b'x' * (100 * 2**20))\n"
        "children = []\n"
        "for _ in range(6):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(1.5); os._exit(0)\n"  # the memory is looked at meanwhile
        "    children.append(pid)\n"
        "for pid in children: os.waitpid(pid, 0)\n"
    )
    ended = any_lab.run("python3 share.py", files={"share.py": share}, resources=Resources(memory=300 * MIB, time=600))
    assert verdict(ended) == (JobState.COMPLETED, "Completed"), ended


def test_a_cancelled_job_may_finish_in_its_grace(any_lab):
    launch = any_lab.start(
        "trap 'echo saving; sleep 0.3; echo saved; exit 0' TERM; echo ready; sleep 600 & wait $!", limits=PATIENT
    )
    any_lab.wrote(launch, b"ready")
    any_lab.cancel(launch)
    ended = any_lab.ended(launch)
    assert verdict(ended) == (JobState.CANCELLED, "Cancelled")
    assert ended.exit_code == 0
    assert "bob" in ended.reason.message
    assert b"saved" in any_lab.output()


def test_children_may_finish_in_the_grace_when_the_shell_is_gone(lab):
    # bash dies of the SIGTERM at once; the checkpoint of its child must still be written
    child = (
        "import signal, time\n"
        "signal.signal(15, lambda *_: (time.sleep(0.5), print('checkpoint', flush=True), exit(0)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    launch = lab.start(
        "python3 child.py & python3 -c 'import time; time.sleep(600)'; true", files={"child.py": child}, limits=PATIENT
    )
    lab.wrote(launch, b"ready")
    lab.cancel(launch)
    assert verdict(lab.ended(launch)) == (JobState.CANCELLED, "Cancelled")
    assert b"checkpoint" in lab.output()


def test_a_stubborn_job_is_killed_after_the_grace(any_lab):
    launch = any_lab.start("trap '' TERM; echo ready; while :; do sleep 1; done", limits=LaunchLimits(grace=1))
    any_lab.wrote(launch, b"ready")
    any_lab.cancel(launch)
    ended = any_lab.ended(launch)
    assert verdict(ended) == (JobState.CANCELLED, "Cancelled")
    assert ended.signal == signal.SIGKILL


def test_a_stopped_job_can_be_cancelled(lab):
    launch = lab.start("echo ready; kill -STOP $$; sleep 600", limits=PATIENT)
    lab.wrote(launch, b"ready")
    pid = lab.listener.wait(launch, lambda story: story.first(Started)).first(Started).pid
    wait_until(lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text())
    lab.cancel(launch)
    assert lab.ended(launch).signal == signal.SIGTERM


def test_a_snapshot_that_is_not_there(lab):
    launch = make_launch(lab.home, "true", job_id=77)
    next(lab.home.snapshots.iterdir()).unlink()
    lab.engine.start(launch, token="x" * 20)
    ended = lab.ended(launch)
    assert verdict(ended) == (JobState.FAILED, "LaunchFailed")
    assert "code" in ended.reason.message


def test_preparing_for_too_long(lab):
    pipe = lab.home.root / "pipe"
    os.mkfifo(pipe)
    ended = lab.run("true", task={"inputs": (InputSpec(path="data", uri=f"file://{pipe}"),)}, limits=LaunchLimits(prepare=1))
    assert verdict(ended) == (JobState.FAILED, "InputFailed")
    assert "1 s" in ended.reason.message


def test_a_cancelled_job_never_starts(lab):
    # the word was left before any runner claimed the attempt
    launch = make_launch(lab.home, f"touch {lab.home.root}/ran", job_id=50)
    directory = lab.home.attempt(launch)
    directory.path.mkdir(parents=True)
    directory.cancel.write_text("bob\n")
    lab.engine.start(launch, token="x" * 20)
    ended = lab.ended(launch)
    assert verdict(ended) == (JobState.CANCELLED, "Cancelled")
    assert not (lab.home.root / "ran").exists()


def test_a_fault_of_the_runner_itself_is_an_ending(lab):
    # the blob store is a file: storing outputs cannot work
    lab.home.blobs.write_text("not a directory")
    ended = lab.run("echo x > outputs/x")
    assert verdict(ended) == (JobState.FAILED, "OutputFailed")
    assert (ended.exit_code, ended.uncollected) == (0, True)
    assert "could not be kept" in ended.reason.message
    directory = lab.home.spool.attempt(1, 1)
    assert (directory.work / "outputs" / "x").read_text() == "x\n"


def test_usage_is_told(any_lab):
    burn = (
        "import os, time\n"
        "held = bytearray(b'x' * 50 * 2**20)\n"
        "end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
    )
    launch = any_lab.start("python3 burn.py", files={"burn.py": burn}, limits=LaunchLimits(sample=0.2))
    any_lab.listener.wait(launch, lambda story: sum(isinstance(record, Sampled) for record in story.records) >= 3)
    (any_lab.home.attempt(launch).work / "go").touch()
    ended = any_lab.ended(launch)
    assert 0.4 < ended.usage.cpu_seconds < 20
    assert 50 * MIB < ended.usage.memory_peak < 200 * MIB
    samples = [record.usage for record in any_lab.story(launch).records if isinstance(record, Sampled)]
    assert len(samples) >= 2
    assert any(usage.memory > 50 * MIB for usage in samples)
    assert all(usage.memory_peak >= usage.memory for usage in samples)


_RUNNER = """
import os, sys
from pathlib import Path
from carrel.node.runner.main import RunnerContext, run_attempt
run_attempt(Path(sys.argv[1]), RunnerContext(environ=dict(os.environ)))
"""


def test_a_full_disk_is_an_ending_and_can_be_tried_again(tmp_path, lab):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "carrel-test", disk], capture_output=True).returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        launch = make_launch(
            lab.home,
            "cat big > copy; cat big > copy2; cat big > outputs/copy3; echo after; exit 3",
            files={"big": b"x" * 900_000},
        )
        attempt = Spool(disk).attempt(1, 1)
        attempt.path.mkdir(parents=True)
        attempt.launch.write_text(json.dumps(to_plain(launch)))
        subprocess.run([sys.executable, "-c", _RUNNER, attempt.path], timeout=PATIENCE, check=True)
        entries, _ = read_entries(attempt.journal)
        assert entries[-1].record.state is JobState.FAILED
        assert entries[-1].record.exit_code == 3
        assert b"after" in attempt.log.read_bytes()
        shutil.rmtree(attempt.path)
        launch = make_launch(lab.home, "true", job_id=2, files={"big": b"x" * 3_000_000})
        attempt = Spool(disk).attempt(2, 1)
        attempt.path.mkdir(parents=True)
        attempt.launch.write_text(json.dumps(to_plain(launch)))
        subprocess.run([sys.executable, "-c", _RUNNER, attempt.path], timeout=PATIENCE, check=True)
        ended = read_entries(attempt.journal)[0][-1].record
        assert verdict(ended) == (JobState.FAILED, "StorageFull")
        assert ended.retryable
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize(
    "words", ["ModuleNotFoundError: No module named 'pkg_resources'", "numpy.dtype size changed, may indicate"]
)
def test_old_pins_that_meet_new_packages_propose_a_date(tmp_path: Path, words: str) -> None:
    ended = Ending(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 1."), exit_code=1)
    pinned = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=("mlflow==2.8.1", "setuptools"))
    log = tmp_path / "log"
    log.write_text("much\n" * 10_000 + words + "\n[carrel] Exit code 1.\n")
    (said,) = advice(ended, pinned, log)
    assert "mlflow==2.8.1" in said
    assert "resolve_as_of" in said
    for other in (replace(pinned, as_of="2023-12-02T00:00:00Z"), replace(pinned, requirements=("mlflow",))):
        assert "resolve_as_of" not in str(advice(ended, other, log))
    assert advice(replace(ended, reason=Reason(code="Cancelled", message="x")), pinned, log) == []
    log.write_text("ZeroDivisionError: division by zero\n")
    assert advice(ended, pinned, log) == []
    assert advice(ended, pinned, tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            EnvironmentRecipe(),
            "in a requirements.txt beside the code, or in the script itself (`uv add --script SCRIPT scikit-learn`)",
        ),
        (EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, source="requirements.txt"), "add it to requirements.txt"),
        (EnvironmentRecipe(kind=EnvironmentKind.IMAGE, requirements=("debian:12",)), "install it in the image"),
    ],
)
def test_a_module_that_is_missing_is_named_as_it_is_installed(tmp_path: Path, recipe: EnvironmentRecipe, words: str) -> None:
    ended = Ending(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 1."), exit_code=1)
    log = tmp_path / "log"
    log.write_text("Traceback\nModuleNotFoundError: No module named 'sklearn.svm'\n[carrel] Exit code 1.\n")
    (said,) = advice(ended, recipe, log)
    assert said.startswith("sklearn is not installed in ")
    assert f"If it is the package scikit-learn: {words}" in said or f"scikit-learn: name it {words}" in said


def test_a_gpu_without_memory_left_is_named(tmp_path: Path) -> None:
    ended = Ending(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 1."), exit_code=1)
    log = tmp_path / "log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n[carrel] Exit code 1.\n")
    (said,) = advice(ended, EnvironmentRecipe(), log)
    assert said.startswith("The memory of its GPU was full.")


CHILD = """
import signal, sys, time

def end(number, frame):
    open("outputs/told", "a").write(f"{number}\\n")
    time.sleep(0.2)
    sys.exit(3)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "command",
    [
        "python3 child.py",
        "timeout 600 python3 child.py",
        "setsid --wait python3 child.py",
        "setsid --fork python3 child.py; sleep 600",
        "bash -mc 'python3 child.py & wait'",
        "setsid --wait timeout 600 setsid --wait python3 child.py",
    ],
)
def test_every_process_is_asked_to_end_once_whatever_it_is_behind(lab, command):
    launch = lab.start(command, files={"child.py": CHILD})
    lab.wrote(launch, b"ready")
    lab.cancel(launch)
    ended = lab.ended(launch)
    (told,) = (file for file in ended.outputs if file.path == "outputs/told")
    assert lab.home.blob(told.digest).read_text() == "15\n"

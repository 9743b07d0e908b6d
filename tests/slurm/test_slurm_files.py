"""What the engine for Slurm reads and writes beside the runner: allocations, and ends in a journal."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Claimed, Ended, Started
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.spool import AttemptDirectory, append_entry, read_entries, take_claim
from carrel.engines.attempts import Watched
from carrel.engines.slurm.batch import allocated
from carrel.engines.slurm.engine import node_of
from carrel.engines.slurm.followed import Followed, explained, is_doubtful, never_to_run, runner_of, write_end
from carrel.engines.slurm.immediate import may_be_immediate, short_or_session, srun_arguments
from carrel.engines.slurm.listing import parse_granted
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.states import SlurmEnd
from carrel.testing.builders import LabHome, make_launch

pytestmark = pytest.mark.quick

END = Ended(state=JobState.TIMEOUT, reason=Reason(code="TimeLimit", message="Slurm ended it."))


@pytest.fixture
def directory(tmp_path):
    return AttemptDirectory(tmp_path)


@pytest.fixture
def followed(tmp_path):
    home = LabHome(tmp_path)
    launch = make_launch(home, "true")
    home.attempt(launch).path.mkdir(parents=True)
    return Followed(watched=Watched(launch=launch, token="", directory=home.attempt(launch)), name="carrel.lab.1.1")


@given(cut=st.integers(0, 60))
def test_an_end_is_written_after_the_last_whole_line(tmp_path_factory, cut):
    directory = AttemptDirectory(tmp_path_factory.mktemp("attempt"))
    fd = os.open(directory.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    append_entry(fd, 1.0, Claimed(pid=7))
    whole = os.fstat(fd).st_size
    append_entry(fd, 2.0, Started(pid=8))
    os.ftruncate(fd, min(whole + cut, os.fstat(fd).st_size))
    os.close(fd)
    before, _ = read_entries(directory.journal)
    write_end(directory, END, 3.0)
    after, offset = read_entries(directory.journal)
    assert after[: len(before)] == before
    assert [entry.record for entry in after[len(before) :]] == [END]
    assert offset == directory.journal.stat().st_size


def test_an_attempt_that_was_ended_without_a_runner_can_be_claimed_by_none(followed):
    assert runner_of(followed) is None
    assert never_to_run(followed, END, 1.0)
    assert take_claim(followed.directory.claim, os.getpid()) is None
    assert runner_of(followed) is False
    assert not never_to_run(followed, END, 2.0)
    (entry,) = read_entries(followed.directory.journal)[0]
    assert entry.record == END


def test_an_attempt_with_a_runner_is_not_ended_without_it(followed):
    claim = take_claim(followed.directory.claim, os.getpid())
    assert runner_of(followed) is True
    assert not never_to_run(followed, END, 1.0)
    os.close(claim)
    assert not followed.directory.journal.exists()


_KILLED = Ended(state=JobState.FAILED, reason=Reason(code="RaisedSignal", message=""), signal=15)


@pytest.mark.parametrize(
    ("ended", "doubtful"),
    [
        (_KILLED, True),
        (Ended(state=JobState.FAILED, reason=_KILLED.reason, signal=9), True),
        (Ended(state=JobState.FAILED, reason=_KILLED.reason, exit_code=143), True),
        (Ended(state=JobState.FAILED, reason=_KILLED.reason, exit_code=137), True),
        (Ended(state=JobState.FAILED, reason=_KILLED.reason, exit_code=1), False),
        (Ended(state=JobState.FAILED, reason=_KILLED.reason, signal=11), False),
        (Ended(state=JobState.TIMEOUT, reason=_KILLED.reason, signal=15), False),
        (Ended(state=JobState.CANCELLED, reason=_KILLED.reason, signal=15), False),
    ],
)
def test_only_ends_that_slurm_may_have_brought_about_wait_for_its_word(ended, doubtful):
    assert is_doubtful(ended) is doubtful
    # A SIGTERM that nobody here has sent makes any failure doubtful, and nothing else.
    assert is_doubtful(ended, terminated=True) is (ended.state is JobState.FAILED)


@given(st.sampled_from([state for state in JobState if state.ended]))
def test_slurm_explains_an_end_but_never_makes_it_a_good_one(state):
    end = SlurmEnd(state=state, reason=Reason(code="Preempted", message="why"))
    told = explained(replace(_KILLED, checkpointed=True), end)
    assert told.checkpointed
    assert told.signal == 15
    assert told.state is (JobState.FAILED if state in (JobState.COMPLETED, JobState.FAILED) else state)
    assert explained(_KILLED, None) == _KILLED


def test_gpus_are_called_as_slurm_calls_them():
    assert [device.uuid for device in allocated({"CUDA_VISIBLE_DEVICES": "2,3"}, "a100")] == ["2", "3"]
    assert [device.uuid for device in allocated({"CUDA_VISIBLE_DEVICES": "MIG-1-2"}, "gpu")] == ["MIG-1-2"]
    assert allocated({}, "gpu") == allocated({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "gpu") == ()


@pytest.mark.parametrize(
    ("record", "gpus", "drained"),
    [
        ({"Gres": "gpu:a100:4", "State": "IDLE"}, ["a100"] * 4, False),
        ({"Gres": "gpu:a100:2(S:0-1),gpu:v100:1", "State": "MIXED"}, ["a100", "a100", "v100"], False),
        ({"Gres": "gpu:1g.10gb:2(S:0),gpu:a100_3g.20gb:1", "State": "IDLE"}, ["1g.10gb", "1g.10gb", "a100_3g.20gb"], False),
        ({"Gres": "gpu:2", "State": "ALLOCATED"}, ["gpu", "gpu"], False),
        ({"Gres": "(null)", "State": "IDLE+DRAIN"}, [], True),
        ({"Gres": "gpu:1", "State": "DOWN*"}, ["gpu"], True),
    ],
)
def test_nodes_are_ours(record, gpus, drained):
    node = node_of({"NodeName": "n1", "CPUTot": "8", "RealMemory": "16000", **record})
    assert [device.type for device in node.devices] == gpus
    assert len({device.uuid for device in node.devices}) == len(gpus)
    assert (node.drained is not None) is drained
    assert (node.cpus, node.memory) == (8, 16000 * 1024**2)


# --- the immediate path -----------------------------------------------------------------------------------------------------


def test_an_allocation_is_asked_for_what_the_batch_job_would_be():
    options = SlurmOptions(partition="gpu", time=90, memory=2**30, cpus=2, gpus=1, gpu_type="a100", passed=("--nice=10",))
    said = srun_arguments(
        options, name="digits", comment="carrel.lab.1.1.now", directory="/spool/1/1", script="/spool/1/1/slurm.sh"
    )
    asked = (
        "--job-name=digits --comment=carrel.lab.1.1.now --chdir=/spool/1/1 --partition=gpu --time=0-00:02:00 --cpus-per-task=2"
    )
    fixed = "--ntasks=1 --overlap --mpi=none --input=none --output=none --error=none /bin/bash /spool/1/1/slurm.sh"
    assert said == f"{asked} --mem=1024M --gres=gpu:a100:1 --nice=10 {fixed}".split()


@pytest.mark.parametrize(
    "options",
    [
        {"requeue": True},
        {"nodes": 2},
        {"tasks_per_node": 4},
        {"passed": ("--begin=now+1hour",)},
        {"passed": ("--ntasks=4",)},
    ],
)
def test_some_things_only_a_batch_job_can_do(options):
    assert may_be_immediate(SlurmOptions())
    assert not may_be_immediate(SlurmOptions(**options))


def test_sessions_and_short_tasks_do_not_wait(tmp_path):
    home = LabHome(tmp_path)
    task = make_launch(home, "true", resources=Resources(time=60))
    long = make_launch(home, "true", resources=Resources(time=86400))
    assert short_or_session(task)
    assert not short_or_session(long)
    assert short_or_session(replace(long, kind=JobKind.SESSION))


def test_the_number_of_an_allocation_is_read_from_what_srun_says():
    said = "srun: defined options\nsrun: mem                 : 100\nsrun: jobid 12: nodes(1):`node1', cpu counts: 1(x1)\n"
    assert parse_granted(said) == 12
    assert parse_granted(said[:-1]) is None
    assert parse_granted("srun: launching StepId=12.0 on host node1, 1 tasks: 0\n") == 12


@given(st.text())
def test_nothing_else_that_srun_says_is_a_number(text):
    assert parse_granted(text.replace("jobid", "").replace("StepId", "")) is None


def test_what_was_written_down_of_an_allocation_is_found_again(followed):
    followed.hold(True)
    followed.remember(12)
    followed.remember_srun(345)
    again = Followed(watched=followed.watched, name="carrel.lab.1.1")
    again.recall()
    assert (again.asked, again.held, again.number, again.srun, again.name) == (True, True, 12, 345, "carrel.lab.1.1.now")
    again.hold(False)
    again.srun = -1
    again.remember(None)
    third = Followed(watched=followed.watched, name="carrel.lab.1.1")
    third.recall()
    assert (third.asked, third.held, third.number, third.srun, third.name) == (True, False, None, -1, "carrel.lab.1.1")

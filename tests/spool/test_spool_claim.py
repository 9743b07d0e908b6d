"""The claim and the journal of an attempt, with real processes and real full disks."""

import os
import subprocess
import sys

import pytest

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Claimed, Ended, Preparing
from carrel.core.spool import Journal, read_claim, read_entries, take_claim

_CLAIMANT = """
import os, sys
from pathlib import Path
from carrel.core.spool import take_claim
fd = take_claim(Path(sys.argv[1]), os.getpid())
print("mine" if fd is not None else "taken", flush=True)
sys.stdin.read()
"""


def claimant(path):
    return subprocess.Popen([sys.executable, "-c", _CLAIMANT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_one_process_gets_the_claim(tmp_path):
    path = tmp_path / "claim"
    processes = [claimant(path) for _ in range(6)]
    answers = [process.stdout.readline().strip() for process in processes]
    assert sorted(answers) == [b"mine"] + [b"taken"] * 5
    owner = processes[answers.index(b"mine")]
    assert read_claim(path).pid == owner.pid
    assert read_claim(path).held
    for process in processes:
        process.communicate()
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_owner_leaves_a_claim_that_nobody_holds(tmp_path):
    path = tmp_path / "claim"
    assert read_claim(path) is None
    with claimant(path) as process:
        assert process.stdout.readline() == b"mine\n"
        process.kill()
    assert not read_claim(path).held
    assert read_claim(path).pid == process.pid
    assert take_claim(path, os.getpid()) is None
    assert not read_claim(path).held


def test_a_journal_is_read_in_parts(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    assert read_entries(path) == ((), 0)
    journal.append(1.0, Claimed(pid=7))
    first, offset = read_entries(path)
    journal.append(2.0, Preparing(message="é\n"))
    with path.open("ab") as file:
        file.write(b'{"half":')
    second, _ = read_entries(path, offset)
    journal.close()
    assert [entry.record for entry in first] == [Claimed(pid=7)]
    assert [entry.record for entry in second] == [Preparing(message="é\n")]


def test_a_journal_on_a_full_disk_stays_sound(small_disk):
    path = small_disk / "journal"
    journal = Journal(path)
    journal.append(1.0, Claimed(pid=7))
    end = Ended(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="x" * 5000))
    with open(small_disk / "filler", "wb", buffering=0) as filler:
        with pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 512)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            journal.append(2.0, end)
    assert len(read_entries(path)[0]) == 1
    (small_disk / "filler").unlink()
    journal.append(3.0, end)
    journal.close()
    assert [entry.at for entry in read_entries(path)[0]] == [1.0, 3.0]

"""A job's memory limit counts what its processes hold in files in memory, with a cgroup and without one."""

from __future__ import annotations

import mmap
import os
import shutil

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import LaunchWalls
from carrel.core.domain.resources import Resources
from carrel.node.runner.file_memory import files_in_memory
from carrel.node.runner.tree import proportional_memory
from support.namespaces import why_no_namespaces

MIB = 1024**2
LIMIT = Resources(memory=200 * MIB, time=600)
BEGIN = """
import ctypes, mmap, os, sys, time
PIECE, COUNT = bytes(4 * 2**20), int(sys.argv[1]) // 4
def fill(write):
    for _ in range(COUNT):
        write(PIECE)
def stay():
    print("has it all", flush=True)
    time.sleep(int(sys.argv[2]))
"""
#: Each takes as many MiB as it is told. Little or nothing of that is resident in a process.
TAKES = {
    "memory file": "fd = os.memfd_create('x'); fill(lambda piece: os.write(fd, piece)); stay()",
    "mapped and closed": (
        "fd = os.memfd_create('x'); fill(lambda piece: os.write(fd, piece))\n"
        "size = ctypes.c_size_t(len(PIECE) * COUNT)\n"  # an mmap of Python's own keeps a descriptor
        "ctypes.CDLL(None).mmap(None, size, 3, 1, fd, ctypes.c_long(0)); os.close(fd); stay()"
    ),
    "mapped and given back": (
        "there = mmap.mmap(-1, len(PIECE) * COUNT)\n"
        "def write(piece):\n"
        "    there.write(piece); there.madvise(mmap.MADV_DONTNEED)\n"
        "fill(write); stay()"
    ),
    "many files": ("fds = [os.memfd_create('x') for _ in range(COUNT)]\nfor fd in fds: os.write(fd, PIECE)\nstay()"),
    "not to be looked into": (
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"  # PR_SET_DUMPABLE
        "kept = []; fill(lambda piece: kept.append(bytearray(piece))); stay()"
    ),
}


def script(text: str) -> dict[str, str | bytes]:
    return {"take.py": f"{BEGIN}\n{text}\n"}


@pytest.mark.parametrize("how", TAKES)
def test_who_holds_more_than_it_asked_for_is_ended(any_lab, how):
    ended = any_lab.run("python3 take.py 400 60", files=script(TAKES[how]), resources=LIMIT)
    assert (ended.state, ended.reason.code) == (JobState.OUT_OF_MEMORY, "OutOfMemory"), ended
    assert "200M" in ended.reason.message


@pytest.mark.parametrize("how", ["memory file", "mapped and closed", "mapped and given back"])
def test_who_holds_less_goes_on(any_lab, how):
    ended = any_lab.run("python3 take.py 100 2", files=script(TAKES[how]), resources=LIMIT)
    assert ended.state is JobState.COMPLETED, ended


@pytest.mark.gate
def test_behind_walls_its_shared_memory_counts(any_lab, tmp_path):
    """Two thirds of its limit there, and as much in its own memory."""
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    (tmp_path / "person").mkdir()
    both = (
        "there = open('/dev/shm/x', 'wb', buffering=0); fill(there.write); there.close()\n"
        "kept = []; fill(lambda piece: kept.append(bytearray(piece))); stay()"
    )
    walls = LaunchWalls(home=str(tmp_path / "person"), hidden=("/run",))
    python = shutil.which("python3", path=os.defpath)
    ended = any_lab.run(f"{python} take.py 132 60", files=script(both), resources=LIMIT, walls=walls)
    assert (ended.state, ended.reason.code) == (JobState.OUT_OF_MEMORY, "OutOfMemory"), ended
    assert b"No space left" not in any_lab.output()


def test_a_file_in_memory_counts_once_and_by_what_it_takes() -> None:
    own = [os.getpid()]
    before = files_in_memory(own)
    fd = os.memfd_create("sparse")
    again = os.dup(fd)
    os.ftruncate(fd, 1024 * MIB)
    os.pwrite(fd, bytes(8 * MIB), 512 * MIB)
    with mmap.mmap(fd, 1024 * MIB):
        found = files_in_memory(own)
        assert found[0] - before[0] == 8 * MIB
    os.close(fd)
    os.close(again)
    assert files_in_memory(own, most=1) is None


def test_what_is_in_files_is_not_counted_twice() -> None:
    own = [os.getpid()]
    with mmap.mmap(-1, 64 * MIB) as there:
        there.write(bytes(64 * MIB))
        with_map = proportional_memory(own, 64 * MIB)
        without = proportional_memory(own, 0)
        assert abs(with_map - without) < 8 * MIB
        more = proportional_memory(own, 256 * MIB)
        assert more - without > 150 * MIB

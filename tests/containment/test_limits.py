"""What a contained process may not take all of: processes, shared memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Bind, Walls
from support.inside import run_inside
from support.namespaces import why_no_namespaces

#: Only inside a limit: each child waits for the end of its parent.
BOMB = """
import os, sys
read, write = os.pipe()
made = 0
while made < 2000:
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    made += 1
print(made)
"""
FILL = """
import os
try:
    with open("/dev/shm/full", "wb") as file:
        for _ in range(64):
            file.write(bytes(1024**2))
            file.flush()
    print("filled")
except OSError as error:
    print(error.strerror, os.stat("/dev/shm/full").st_size)
"""


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Walls:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    binds = tuple(Bind(path) for path in sorted(prefixes))
    return Walls(hidden=("/run",), binds=binds, temporary=str(tmp_path_factory.mktemp("private")))


def run(walls: Walls, text: str) -> str:
    code, said = run_inside(walls, [os.path.realpath(sys.executable), "-I", "-c", text])
    assert code == 0, said
    return said.decode().strip()


def counts_for_everybody() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return os.geteuid() != 0 or (int(major), int(minor)) >= (6, 14)


@pytest.mark.gate
@pytest.mark.skipif(not counts_for_everybody(), reason="This kernel limits no processes of root.")
def test_a_job_cannot_take_all_processes(walls: Walls) -> None:
    most = Path("/proc/sys/kernel/pid_max").read_text()
    assert 200 < int(run(replace(walls, processes=400), BOMB)) <= 400
    assert Path("/proc/sys/kernel/pid_max").read_text() == most
    assert subprocess.run(["true"], check=True).returncode == 0


def test_a_job_cannot_fill_the_memory_with_shared_files(walls: Walls) -> None:
    said, size = run(replace(walls, shared_memory=4 * 1024**2), FILL).rsplit(" ", 1)
    assert said == os.strerror(28)
    assert int(size) <= 4 * 1024**2


#: A namespace of each kind with a user namespace, what mounts the control groups, and what raises the limits themselves.
NESTS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
said = []
for flags in (0, 0x20000, 0x2000000, 0x40000000, 0x20000000, 0x8000000, 0x4000000):
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.get_errno() if libc.unshare(0x10000000 | flags) else 0)
    said.append(errno.errorcode.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "made"))
for name in os.listdir("/proc/sys/user"):
    if name.endswith("_namespaces"):
        try:
            os.close(os.open("/proc/sys/user/" + name, os.O_WRONLY))
            said.append(name)
        except OSError as error:
            pass
print(*said)
"""


@pytest.mark.gate
def test_a_job_makes_no_namespaces(walls: Walls) -> None:
    """Not to take all that its Unix user may have, nor to have capabilities in them and mount the control groups."""
    before = Path("/proc/sys/user/max_user_namespaces").read_text()
    assert run(walls, NESTS) == " ".join(["ENOSPC"] * 7)
    assert Path("/proc/sys/user/max_user_namespaces").read_text() == before
    assert run(replace(walls, nests=True), NESTS).startswith("made")


WATCHES = """
import ctypes
libc = ctypes.CDLL(None)
print(sum(libc.inotify_init() >= 0 for _ in range(200)))
"""


def test_a_job_takes_a_part_of_what_its_user_may_watch(walls: Walls) -> None:
    if not Path("/proc/sys/user/max_inotify_instances").exists():
        pytest.skip("This kernel does not count instances of inotify by user namespace.")
    assert run(walls, WATCHES) == "32"
    most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    for name, part in (("max_inotify_watches", most // 4), ("max_fanotify_groups", 32)):
        assert run(walls, f"print(open('/proc/sys/user/{name}').read())") == str(part)


#: Two programs, where there is one user namespace for both.
TURNS = """
import pathlib, subprocess, sys, tempfile
from carrel.node.containment.program import start_program
from carrel.node.containment.walls import Walls
pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("1")
with tempfile.TemporaryDirectory() as private:
    walls = Walls(temporary=private)
    about = {"directory": "/", "variables": {"PATH": "/usr/bin:/bin"}}
    first = start_program(walls, ["sh", "-c", "echo here; read line"], stdin=subprocess.PIPE, **about)
    print(first.process.stdout.readline())
    second = start_program(walls, ["echo", "gone"], **about)
    print(second.process.stderr.readline())
    first.process.stdin.close()
    first.end()
    print(second.process.communicate())
    second.end()
"""


def test_what_prepares_a_job_waits_for_namespaces_and_says_so(walls: Walls) -> None:
    """A build that fails of it would fail its job, and no disk is full."""
    own = ["unshare", "--user", "--map-root-user", sys.executable, "-c", TURNS]
    here, waits, gone = subprocess.run(own, capture_output=True, check=True, text=True).stdout.splitlines()
    assert (here, gone) == ("b'here\\n'", "(b'gone\\n', b'')")
    assert waits.startswith("b\"Waiting: the lab's Unix user has all namespaces")
    assert "max_user_namespaces is 1" in waits


@pytest.mark.gate
def test_a_job_has_a_part_of_the_signals_queues_and_descriptors_of_the_labs_user(walls: Walls) -> None:
    ask = "import resource; print(*(resource.getrlimit(kind)[1] for kind in ({})))"
    counted = "resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE"
    here = subprocess.run([sys.executable, "-c", ask.format(counted)], capture_output=True, check=True, text=True).stdout
    for outside, inside in zip(here.split(), run(walls, ask.format(counted)).split(), strict=True):
        assert 0 <= int(inside) <= int(outside) // 4 or outside == "-1"


def test_what_builds_may_have_fewer_descriptors_than_the_lab(walls: Walls) -> None:
    """The kernel compares the descriptors that all processes of a user send with the limit of the one that sends (unix(7))."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ask = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    program = start_program(walls, [os.path.realpath(sys.executable), "-I", "-c", ask], directory="/", variables={})
    said, _errors = program.process.communicate()
    program.end()
    assert int(said) <= most * 3 // 4 or most == resource.RLIM_INFINITY

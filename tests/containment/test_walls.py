"""Walls that the kernel builds: what a command sees inside, how it ends, and that nothing gets out."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.launch import LaunchWalls
from carrel.node.containment.filters import filter_program
from carrel.node.containment.trial import try_walls
from carrel.node.containment.walls import Bind, Walls
from carrel.node.runner.prepared import Prepared
from carrel.node.runner.process import Command, LaunchError, start
from carrel.node.runner.variables import Places
from carrel.node.runner.walls import walls_of
from carrel.testing.builders import LabHome, make_launch
from support.attacking import attack
from support.attacks import ATTACKS, ATTACKS_AS_USER
from support.inside import run_inside
from support.namespaces import why_no_namespaces

SECRET = "correct-horse-battery-staple"


@dataclass
class Rig:
    """A lab's home that is hidden, a work directory that is not, and a neighbour."""

    root: Path
    walls: Walls

    @property
    def work(self) -> Path:
        return self.root / "home" / "spool" / "1" / "work"

    def run(self, command: str) -> tuple[int, str]:
        code, said = run_inside(self.walls, ["/bin/sh", "-c", command])
        return code, said.decode(errors="replace")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    if why_no_namespaces():
        pytest.skip(f"This machine has no namespaces for us: {why_no_namespaces()}")
    trial = try_walls()
    assert not trial.why_not, (trial.why_not, trial.remedy)
    root = tmp_path_factory.mktemp("walls")
    for place in ("home/spool/1/work", "home/spool/2", "private", "home/run"):
        (root / place).mkdir(parents=True)
    for place in ("home/secret", "home/token", "home/spool/2/journal", "home/spool/1/journal", "home/lab.db"):
        (root / place).write_text(SECRET)
    prefixes = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)}
    walls = Walls(
        hidden=(str(root / "home"), "/run", "/var/tmp"),
        binds=(
            *(Bind(path) for path in sorted(prefixes)),
            Bind(str(root / "home/spool/1")),
            Bind(str(root / "home/spool/1/work"), writable=True),
        ),
        temporary=str(root / "private"),
    )
    return Rig(root, walls)


@pytest.fixture(scope="module")
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user outside, with something in its environment."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "TOKEN": SECRET})
    yield process
    process.communicate(b"\n")


@pytest.fixture(scope="module")
def sockets(rig: Rig) -> Iterator[list[str]]:
    """A socket with a path in the lab's home, and one with a name."""
    path, name = str(rig.root / "home/run/s"), f"\0carrel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for listener, address in ((first, path), (second, name)):
            listener.bind(address)
            listener.listen()
        yield [path, name]


@pytest.mark.gate
def test_nothing_gets_out(rig: Rig, neighbour: subprocess.Popen[bytes], sockets: list[str]) -> None:
    home = rig.root / "home"
    through = attack(
        rig.walls,
        secrets=[*(str(home / name) for name in ("secret", "token", "lab.db", "spool/2/journal"))],
        directories=[str(home), str(home / "spool"), str(home / "spool/2"), "/run", "/etc", "/usr/bin"],
        processes=[neighbour.pid, os.getpid()],
        sockets=sockets,
        devices=["/dev/nvidia0", "/dev/kmsg", "/dev/mem", "/dev/sda", "/dev/vda"],
        writable=str(rig.work),
    ).through
    # What is there, but empty, may be listed; the system may be read.
    allowed = {f"directories: list {path}" for path in (str(home), str(home / "spool"), "/run", "/etc", "/usr/bin")}
    assert set(through) - allowed == set(), through
    assert through.get(f"directories: list {home / 'spool'}") == "['1']"
    assert ATTACKS.count("@attempt") >= 30


LEASE = """
import fcntl, os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"""


def test_no_job_keeps_the_lab_waiting_for_its_own_files(rig: Rig) -> None:
    """A lease on a file makes every other open(2) of it wait; the lab's programs belong to the user as whom jobs run."""
    python, file = os.path.realpath(sys.executable), rig.work / "leased"
    file.touch()
    subprocess.run([python, "-I", "-c", LEASE, str(file)], check=True)
    code, said = run_inside(rig.walls, [python, "-I", "-c", LEASE, str(file)])
    assert code == 1
    assert b"PermissionError" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="Others may not read them in any case.")
def test_jobs_of_roots_lab_read_nothing_that_root_alone_may_read_of_the_kernel(rig: Rig) -> None:
    code, said = rig.run(
        "head -c 1 /proc/kpageflags || head -c 1 /proc/slabinfo || head -c 1 /proc/timer_list || head -c 1 /proc/keys"
    )
    assert code != 0, said


def test_the_attacks_are_not_made_where_there_are_no_walls(rig: Rig) -> None:
    """They would be made on the machine itself."""
    about = {"outside": str(Path("/proc/self/ns/mnt").readlink()), "outside_user": str(Path("/proc/self/ns/user").readlink())}
    done = subprocess.run([sys.executable, "-c", ATTACKS, json.dumps(about)], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == {"the walls": "there are none"}
    # The guard comes before the first attempt, and nothing is attempted where it does not know what is outside.
    assert ATTACKS.index("sys.exit()") < ATTACKS.index("@attempt")
    assert subprocess.run([sys.executable, "-c", ATTACKS, "{}"], capture_output=True, check=False).stdout == b""


def test_what_harms_a_machine_is_no_part_of_what_other_users_try() -> None:
    assert "umount" not in ATTACKS_AS_USER
    assert "fork" not in ATTACKS_AS_USER
    assert ATTACKS_AS_USER.index("sys.exit()") < ATTACKS_AS_USER.index("@attempt")


@pytest.mark.skipif(os.geteuid() != 0, reason="It is about root.")
def test_root_does_not_try_what_other_users_try() -> None:
    done = subprocess.run([sys.executable, "-c", ATTACKS_AS_USER, "{}"], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == {"the walls": "there are none for root"}


def test_what_is_attacked_is_there_for_others(rig: Rig, neighbour: subprocess.Popen[bytes], sockets: list[str]) -> None:
    """An attack that fails everywhere shows nothing."""
    assert (rig.root / "home/secret").read_text() == SECRET
    assert SECRET.encode() in Path(f"/proc/{neighbour.pid}/environ").read_bytes()
    for name in sockets:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect(name)


@pytest.mark.gate
def test_sockets_lead_nowhere_but_to_programs_and_networks(rig: Rig) -> None:
    """The machine's hypervisor is a neighbour, too, and no network of a job's own keeps it away (vsock(7))."""
    python = os.path.realpath(sys.executable)
    code, said = rig.run(f'{python} -I -c "import socket; socket.socket(40, socket.SOCK_STREAM)"')
    assert (code, "Address family not supported" in said) == (1, True), said
    use = "import socket; socket.getaddrinfo('localhost', 80); socket.socketpair(); socket.if_nameindex(); socket.socket(16, 3)"
    assert rig.run(f'{python} -I -c "{use}"') == (0, "")


def test_it_reads_but_does_not_write_what_its_runner_trusts(rig: Rig) -> None:
    journal = rig.root / "home/spool/1/journal"
    code, said = rig.run(f"echo forged >> {journal}; rm -f {journal}; mv {journal} {journal}.old; echo kept > {rig.work}/kept")
    assert journal.read_text() == SECRET
    assert (rig.work / "kept").read_text() == "kept\n"
    assert code == 0, said


def test_its_tmp_is_its_own(rig: Rig) -> None:
    assert rig.run("echo mine > /tmp/mine; cat /tmp/mine") == (0, "mine\n")
    assert (rig.root / "private/mine").read_text() == "mine\n"
    assert not Path("/tmp/mine").exists()


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("exit 7", 7),
        ("true", 0),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL),
        ("no-such-program", 127),
    ],
)
def test_it_ends_as_its_command_ended(rig: Rig, command: str, ends: int) -> None:
    assert rig.run(command)[0] == ends


@dataclass
class Started:
    pid: int
    output: int

    def line(self) -> bytes:
        said = b""
        while not said.endswith(b"\n") and (piece := os.read(self.output, 1)):
            said += piece
        return said

    def end(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def begin(rig: Rig, command: str) -> Started:
    read, write = os.pipe2(os.O_CLOEXEC)
    arguments = ["/bin/sh", "-c", command]
    made = Command(arguments=arguments, variables={"PATH": os.defpath}, directory=str(rig.work), output=write, walls=rig.walls)
    pid = start(made)
    os.close(write)
    return Started(pid, read)


def test_a_signal_to_the_group_reaches_the_command(rig: Rig) -> None:
    """As the runner warns a job before its walltime ends."""
    job = begin(rig, 'trap "echo warned; exit 3" TERM; echo ready; sleep 600 & wait')
    assert job.line() == b"ready\n"
    os.killpg(job.pid, signal.SIGTERM)
    assert job.line() == b"warned\n"
    assert job.end() == 3


def test_what_it_leaves_behind_is_still_there_for_the_runner_to_end(rig: Rig) -> None:
    job = begin(rig, "(echo stays; exec sleep 600) & read x < /dev/null; exit 4")
    assert job.line() == b"stays\n"
    assert job.end() == 4
    # The output is held open by what stays; it goes with the first process of the namespace, which the runner kills.
    ended = threading.Thread(target=lambda: os.read(job.output, 1))
    ended.start()
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words == b"sleep\x00600\x00":
            os.kill(pid, signal.SIGKILL)
    ended.join(180)
    assert not ended.is_alive()


def test_all_of_it_dies_with_who_started_it(rig: Rig) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    runner = os.fork()
    if runner == 0:
        made = Command(
            arguments=["/bin/sh", "-c", "trap '' TERM HUP INT; echo up; sleep 600 & sleep 600"],
            variables={"PATH": os.defpath},
            directory=str(rig.work),
            output=write,
            walls=rig.walls,
        )
        start(made)
        signal.pause()
        os._exit(0)
    os.close(write)
    assert os.read(read, 3) == b"up\n"
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    with os.fdopen(read, "rb") as output:
        output.read()  # until nobody holds the output any more; the shell may have said that its child was killed


def test_why_it_cannot_be_started_is_said(rig: Rig) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    gone = Walls(binds=(Bind("/no/such/place"),), temporary=str(rig.root / "private"))
    for walls, directory, words in ((gone, "/", "contained.*no/such/place"), (rig.walls, "/gone", "started in /gone")):
        made = Command(arguments=["/bin/true"], variables={}, directory=directory, output=write, walls=walls)
        with pytest.raises(LaunchError, match=words):
            start(made)
    os.close(read)
    os.close(write)


SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}


@given(
    st.sampled_from(["x86_64", "aarch64"]),
    st.integers(0, 2**32 - 1) | st.sampled_from([one for numbers in SOCKETS.values() for one in numbers]),
    st.integers(0, 64) | st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
def test_the_filter_answers_every_call(machine: str, number: int, first: int, second: int) -> None:
    """Run as the kernel runs it (seccomp(2)): it ends, and refuses exactly what it is there for."""
    import struct

    program = [struct.unpack("HBBI", filter_program(machine)[at : at + 8]) for at in range(0, len(filter_program(machine)), 8)]
    data = {0: number, 4: {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine], 16: first, 24: second}
    at, loaded = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x20:
            loaded = data[value]
        elif code == 0x06:
            break
        else:
            at += yes if (loaded == value if code == 0x15 else loaded >= value) else no
    ioctl = {"x86_64": 16, "aarch64": 29}[machine]
    if number in SOCKETS[machine]:
        left = first in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
        assert value == (0x7FFF0000 if left else 0x00050000 | errno.EAFNOSUPPORT)
    elif value != 0x7FFF0000:
        assert number >= 0x40000000 or number < 1024
        assert number != ioctl or second in (0x5412, 0x541C)
    assert filter_program("another") == b""


def test_a_link_in_an_environment_that_its_owner_writes_opens_nothing(tmp_path: Path) -> None:
    """A session's next start sees its environment, and not what its owner has made `bin/python` lead to."""
    home = LabHome(tmp_path / "lab")
    launch = make_launch(home, "true", walls=LaunchWalls(hidden=(str(home.root),)))
    directory = home.attempt(launch)
    prefix = home.environments / "named" / "eve"
    for place in (directory.path, home.spool.root / "2" / "1", prefix / "bin"):
        place.mkdir(parents=True)
    (home.spool.root / "2" / "1" / "journal").write_text(SECRET)
    (prefix / "bin" / "python").symlink_to(home.spool.root / "2" / "1" / "journal")
    places = Places(outputs=directory.path, temporary=directory.path, environment=prefix)
    activated = {"VIRTUAL_ENV": str(prefix)}
    prepared = Prepared(command="true", directory=directory.path, places=places, activated=activated, lock="")
    walls = walls_of(launch, directory, prepared)
    opened = [Path(bind.place) for bind in walls.binds]
    assert prefix in opened
    assert not [place for place in opened if (home.spool.root / "2").is_relative_to(place)]


def test_what_lies_on_another_disk_is_there_as_it_is_called(tmp_path: Path) -> None:
    """Virtual environments hold their own path; the link to the other disk is in the lab's directory, which is hidden."""
    home = LabHome(tmp_path / "lab")
    launch = make_launch(home, "true", walls=LaunchWalls(hidden=(str(home.root),)))
    directory = home.attempt(launch)
    directory.path.mkdir(parents=True)
    (tmp_path / "disk" / "envs" / "one").mkdir(parents=True)
    shutil.rmtree(home.environments, ignore_errors=True)
    home.environments.parent.mkdir(parents=True, exist_ok=True)
    home.environments.symlink_to(tmp_path / "disk")
    prefix = home.environments / "envs" / "one"
    places = Places(outputs=directory.path, temporary=directory.path, environment=None)
    activated = {"VIRTUAL_ENV": str(prefix)}
    prepared = Prepared(command="true", directory=directory.path, places=places, activated=activated, lock="")
    walls = walls_of(launch, directory, prepared)
    assert {str(prefix), str(tmp_path / "disk/envs/one")} <= {bind.place for bind in walls.binds}

"""Several processes on one machine: what each is told, what of them is seen, and that they end together."""

import contextlib
import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState, Preemption
from carrel.core.domain.launch import LaunchLimits, Resumed, Sampled, Suspended
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher
from carrel.testing.waiting import wait_until

MIB = 1024**2
#: What a program says that finds its port taken, in PyTorch's words, upon its first start.
TAKEN = """
import os, sys
said = (
    "DistNetworkError: The server socket has failed to listen on any local network address. "
    f"port: {os.environ['MASTER_PORT']}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
rank, mark = os.environ["RANK"], sys.argv[1]
if not os.path.exists(mark):
    os.system("sleep 600 &")  # left behind, with the output in its hands
if rank == "0" and not os.path.exists(mark):
    open(mark, "w").write(os.environ["MASTER_PORT"])
    sys.exit(said)
while not os.path.exists(mark):
    pass
print("goes on at", os.environ["MASTER_PORT"] != open(mark).read())
"""


def group(lab, command, processes=2, launcher=Launcher.NONE, **more):
    resources = more.pop("resources", Resources(cpus=4, memory=512 * MIB, time=600))
    task = {"launcher": launcher, "tasks_per_node": processes, **more.pop("task", {})}
    return lab.start(command, resources=resources, task=task, **more)


def lines(lab):
    return sorted(lab.output().decode().splitlines())


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()]


def words_of(process):
    with suppress(OSError):  # it ended meanwhile
        return (process / "cmdline").read_bytes()
    return b""


def listening(process):
    """Ports on which a process listens (proc(5), /proc/net/tcp)."""
    held = {str(fd.readlink()) for fd in (process / "fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]


@pytest.mark.gate
def test_each_process_knows_its_place(lab):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR OMP_NUM_THREADS"
    command = f"for name in {names}; do echo $name=${{!name}}; done; echo port=$MASTER_PORT"
    ended = lab.ended(group(lab, command))
    assert (ended.state, ended.exit_code) == (JobState.COMPLETED, 0)
    found = lines(lab)
    for rank in "01":
        for said in (
            f"RANK={rank}", "WORLD_SIZE=2", f"LOCAL_RANK={rank}", "LOCAL_WORLD_SIZE=2", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1",
            "OMP_NUM_THREADS=2",
        ):  # fmt: skip
            assert f"{rank}: {said}" in found
    ports = {line.partition("port=")[2] for line in found if "port=" in line}
    assert len(ports) == 1
    socket.create_server(("127.0.0.1", int(ports.pop()))).close()


def test_processes_meet_and_share_a_directory(lab):
    meet = "touch here.$RANK; while [ ! -e here.0 ] || [ ! -e here.1 ] || [ ! -e here.2 ]; do sleep 0.05; done"
    ended = lab.ended(group(lab, f'{meet}; echo met > "$CARREL_OUTPUT_DIR/$RANK"', processes=3))
    assert ended.state is JobState.COMPLETED
    assert sorted(file.path for file in ended.outputs) == ["outputs/0", "outputs/1", "outputs/2"]


def test_lines_are_whole_and_labelled(lab):
    command = "for i in $(seq 200); do printf 'a%.0s' $(seq 50); printf 'b\\n'; done; printf 'last %s' $RANK"
    assert lab.ended(group(lab, command, processes=3)).state is JobState.COMPLETED
    found = lines(lab)
    assert len(found) == 603
    assert all(re.fullmatch(r"([0-2]): (a{50}b|last \1)", line) for line in found)


def test_output_that_is_one_long_stream_arrives_in_full(lab):
    assert lab.ended(group(lab, "head -c 3000000 /dev/zero | tr '\\0' x")).state is JobState.COMPLETED
    assert lab.output().count(b"x") == 6000000


@pytest.mark.parametrize("stays", ["", "sleep 600 & "], ids=["", "with its output open"])
def test_one_process_that_fails_ends_the_others_is_named_and_not_started_again(lab, tmp_path, stays):
    said = f"echo began >> {tmp_path}/began; echo 'address already in use: 80'"
    launch = group(lab, f'{said}; [ $RANK = 1 ] && {{ {stays}exit 7; }}; echo $$ > "$CARREL_CHECKPOINT_DIR/pid"; sleep 600')
    ended = lab.ended(launch)
    assert (ended.state, ended.reason.code, ended.exit_code) == (JobState.FAILED, "NonZeroExitCode", 7)
    assert f"Exit code 7. That was rank 1 on {socket.gethostname()}" in ended.reason.message
    assert (tmp_path / "began").read_text().count("began") <= 2
    wait_until(lambda: not list(Path(lab.home.attempt(launch).path).glob("tmp/*")))


def test_a_process_that_is_killed_is_named_with_its_signal(lab):
    ended = lab.ended(group(lab, "[ $RANK = 2 ] && kill -SEGV $$; sleep 600", processes=3))
    assert (ended.state, ended.reason.code, ended.signal) == (JobState.FAILED, "RaisedSignal", signal.SIGSEGV)
    assert "rank 2 on" in ended.reason.message


def test_processes_that_ignore_sigterm_are_killed_with_the_rest(lab):
    command = "[ $RANK = 0 ] && { sleep 1; exit 3; }; trap '' TERM; (trap '' TERM; sleep 600) & echo pid $! $$; wait; sleep 600"
    ended = lab.ended(group(lab, command))
    assert (ended.exit_code, "rank 0 on" in ended.reason.message) == (3, True)
    pids = re.search(rb"1: pid (\d+) (\d+)", lab.output())
    assert not alive(map(int, pids.groups()))


def test_cancellation_reaches_every_process(any_lab):
    launch = group(any_lab, "trap 'echo asked; exit 0' TERM; echo pid $$; while :; do sleep 600 & wait $!; done", processes=3)
    for rank in b"012":
        any_lab.wrote(launch, b"%c: pid" % rank)
    any_lab.cancel(launch)
    ended = any_lab.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.CANCELLED, "Cancelled")
    assert {line for line in lines(any_lab) if "asked" in line} == {"0: asked", "1: asked", "2: asked"}
    assert not alive(map(int, re.findall(rb"pid (\d+)", any_lab.output())))


def test_walltime_reaches_every_process(lab):
    resources = Resources(cpus=2, memory=512 * MIB, time=16)
    command = "trap 'echo warned; exit 3' TERM; echo pid $$; while :; do sleep 600 & wait $!; done"
    ended = lab.ended(group(lab, command, resources=resources, limits=LaunchLimits(warning=8)))
    assert (ended.state, ended.reason.code) == (JobState.TIMEOUT, "TimeLimit")
    assert {"0: warned", "1: warned"} <= set(lines(lab))
    assert not alive(map(int, re.findall(rb"pid (\d+)", lab.output())))


def test_memory_of_all_processes_counts(any_lab):
    eat = "python3 -c \"import time; held = b'x' * (180 * 2**20); time.sleep(600)\""
    resources = Resources(cpus=2, memory=256 * MIB, time=600)
    ended = any_lab.ended(group(any_lab, eat, resources=resources))
    assert ended.state is JobState.OUT_OF_MEMORY


def test_use_of_all_processes_is_told(lab):
    spin = 'python3 -c "import time; t = time.process_time()\nwhile time.process_time() < t + 1: pass"'
    launch = group(lab, spin, limits=LaunchLimits(sample=0.05))
    assert lab.ended(launch).usage.cpu_seconds >= 2
    assert lab.story(launch).first(Sampled)


def test_a_group_gives_way_and_goes_on(lab):
    launch = group(lab, "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo done")
    for rank in b"01":
        lab.wrote(launch, b"%c: begun" % rank)
    lab.engine.preempt(1, 1, Preemption(mode=PreemptMode.SUSPEND, by=9, qos="high", at=0.0, grace=60))
    lab.listener.wait(launch, lambda story: story.first(Suspended))
    lab.engine.preempt(1, 1, None)
    lab.listener.wait(launch, lambda story: story.first(Resumed))
    (lab.home.attempt(launch).work / "go").touch()
    assert lab.ended(launch).state is JobState.COMPLETED
    assert {"0: done", "1: done"} <= set(lines(lab))


def test_a_port_that_is_taken_is_another_one_upon_the_next_start(lab, tmp_path):
    launch = group(lab, f"python3 taken.py {tmp_path}/mark", files={"taken.py": TAKEN})
    assert lab.ended(launch).state is JobState.COMPLETED
    assert {"0: goes on at True", "1: goes on at True"} <= set(lines(lab))
    assert b"was taken meanwhile" in lab.output()


@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.MPI])
def test_a_launcher_that_the_environment_lacks_is_named(lab, launcher):
    program = {Launcher.TORCHRUN: "torchrun", Launcher.MPI: "mpirun"}[launcher]
    ended = lab.ended(group(lab, "true", launcher=launcher, task={"variables": {"PATH": "/nowhere"}}))
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert f"{program} is not in the task's environment" in ended.reason.message


def test_mpirun_of_the_environment_starts_the_processes(lab, tmp_path):
    # A program that does what mpirun(1) promises.
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = -n ] || exit 9\nlast=$(($2 - 1))\nshift 2\nfor rank in $(seq 0 $last); do\n'
        'env -i PATH=$PATH OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@" &\ndone\nwait\n'
    )
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:/usr/bin:/bin", "GREETING": "it's here"}
    launch = group(lab, 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK: $GREETING"', 3, Launcher.MPI, task={"variables": variables})
    assert lab.ended(launch).state is JobState.COMPLETED
    assert lines(lab) == [f"{rank} of 3, {rank}: it's here" for rank in range(3)]


def test_a_killed_leader_leaves_nothing_behind(lab):
    launch = group(lab, "echo pid $$; sleep 600")
    for rank in b"01":
        lab.wrote(launch, b"%c: pid" % rank)
    pids = list(map(int, re.findall(rb"pid (\d+)", lab.output())))
    lab.engine.preempt(1, 1, Preemption(mode=PreemptMode.REQUEUE, by=9, qos="high", at=0.0, grace=0))
    ended = lab.ended(launch)
    assert ended.state is JobState.PREEMPTED
    wait_until(lambda: not alive(pids))


#: What a process of a group can put in the place of the end that its leader writes, by a command.
IN_ITS_PLACE = {
    "device": "ln -s /dev/zero",
    "pipe": "mkfifo",
    "endless": "truncate -s 1T",
    "directory": "mkdir",
    "nested": 'python3 -c \'import sys; open(sys.argv[1], "w").write("[" * 60000)\'',
    "nonsense": 'python3 -c \'import sys; open(sys.argv[1], "w").write("{\\"culprit\\": 7}")\'',
}


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_what_processes_put_in_the_place_of_their_end_holds_no_runner_up(lab, what):
    """Their runner reads it, outside of their walls and their memory limit."""
    launch = group(lab, f"{IN_ITS_PLACE[what]} {lab.home.spool.root}/1/1/group/plan.end; echo did it; sleep 600")
    for rank in b"01":
        lab.wrote(launch, b"%c: did it" % rank)
    plan = str(lab.home.attempt(launch).group).encode()
    found = {path.name for path in Path("/proc").glob("[0-9]*") if plan in words_of(path)}
    (leader,) = [pid for pid in found if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] not in found]
    os.kill(int(leader), signal.SIGKILL)
    ended = lab.ended(launch)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "RaisedSignal")


def test_strangers_disturb_nothing(lab):
    launch = group(lab, "echo began; while [ ! -e go ]; do sleep 0.05; done")
    for rank in b"01":
        lab.wrote(launch, b"%c: began" % rank)
    plan = str(lab.home.attempt(launch).group).encode()
    leaders = [path for path in Path("/proc").glob("[0-9]*") if plan in words_of(path)]
    (port,) = {port for leader in leaders for port in listening(leader)}
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as loud:
        loud.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
        with contextlib.ExitStack() as many:
            for _ in range(300):
                many.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.settimeout(15)  # half of what an agent has
            while silent.recv(100):  # it goes before those that came later
                pass
        (lab.home.attempt(launch).work / "go").touch()
        assert lab.ended(launch).state is JobState.COMPLETED
        silent.close()
    assert lab.home.attempt(launch).group.stat().st_mode & 0o777 == 0o600

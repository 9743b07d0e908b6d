"""Groups of processes across the nodes of a real cluster."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.core.domain.job import JobState, Preemption
from carrel.core.domain.launch import LaunchLimits, Resumed, Sampled, Suspended
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.testing.builders import EngineListener, make_launch
from carrel.testing.engine_contract import TOKEN
from carrel.testing.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-engine")]

MIB = 1024**2
#: Seconds for what a cluster does that shares a small machine with others.
LONG = 120


@pytest.fixture
def engine(engines, site):
    return engines(site.environ)


def group(home, command, nodes=2, processes=1, launcher=Launcher.NONE, **more):
    resources = more.pop("resources", None) or Resources(nodes=nodes, cpus=2, memory=256 * MIB, time=300)
    task = {"launcher": launcher, "tasks_per_node": processes, **more.pop("task", {})}
    return make_launch(home, command, resources=resources, task=task, **more)


def lines(home, launch):
    return sorted(home.attempt(launch).log.read_text().splitlines())


def marked(*marks, word=""):
    """Processes, on whichever of the nodes of this machine, whose variables have the marks and whose command has the word."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (path / "environ").read_bytes()
            if all(mark.encode() in variables for mark in marks) and word.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def state_of(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rfind(")") + 2]


@pytest.mark.gate
def test_each_process_knows_its_place_and_has_the_gpus_of_its_node(home, engine, listener):
    command = (
        "for name in RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR; do echo $name=${!name}; done; "
        'echo gpus=$CUDA_VISIBLE_DEVICES; echo tmp=$TMPDIR; touch "$TMPDIR/here.$RANK"; ls; '
        "env | grep -cE '^SLURM_(PROCID|LOCALID|STEP|SRUN)' || true; echo node=$SLURMD_NODENAME"
    )
    resources = Resources(nodes=2, cpus=2, memory=256 * MIB, gpus=2, gpu_type="fake", time=300)
    launch = group(home, command, processes=2, resources=resources, files={"data": "x"})
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch, LONG)
    found = lines(home, launch)
    assert ended.state is JobState.COMPLETED, (ended, found)
    for rank in range(4):
        for said in (
            f"RANK={rank}", "WORLD_SIZE=4", f"LOCAL_RANK={rank % 2}", "LOCAL_WORLD_SIZE=2", f"NODE_RANK={rank // 2}",
            "MASTER_ADDR=127.0.0.1", "data", "0",
        ):  # fmt: skip
            assert f"{rank}: {said}" in found
        gpus = next(line for line in found if line.startswith(f"{rank}: gpus="))
        assert re.fullmatch(r"\d: gpus=\d,\d", gpus)
    places = {line.split("=")[1] for line in found if ": tmp=" in line}
    assert len(places) == 2
    names = {line.split("=")[1]: int(line[0]) // 2 for line in sorted(found) if ": node=" in line}
    assert sorted(names.values()) == [0, 1]
    wait_until(lambda: not any(Path(place).exists() for place in places))


def test_one_process_that_fails_ends_those_on_other_nodes_and_is_named(home, engine, listener, site):
    mark = f"MARK={home.root}"
    launch = group(
        home, "[ $RANK = 3 ] && { sleep 1; exit 9; }; sleep 600", processes=2, task={"variables": {"MARK": str(home.root)}}
    )
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch, LONG)
    assert (ended.state, ended.reason.code, ended.exit_code) == (JobState.FAILED, "NonZeroExitCode", 9)
    assert re.search(r"That was rank 3 on node\d", ended.reason.message)
    wait_until(lambda: not marked(mark))


def test_cancellation_reaches_all_nodes_and_leaves_nothing(home, engine, listener, site):
    mark = f"MARK={home.root}"
    command = (
        "trap 'echo asked; exit 0' TERM; (trap '' TERM; exec setsid sleep 600) & "
        "echo began; while :; do sleep 600 & wait $!; done"
    )
    launch = group(home, command, nodes=3, task={"variables": {"MARK": str(home.root)}})
    engine.start(launch, token=TOKEN)
    for rank in b"012":
        listener.wrote(launch, home.attempt(launch).log, b"%c: began" % rank, LONG)
    engine.cancel(1, 1, by="bob")
    ended = listener.ended(launch, LONG)
    assert (ended.state, "bob" in ended.reason.message) == (JobState.CANCELLED, True)
    assert {"0: asked", "1: asked", "2: asked"} <= set(lines(home, launch))
    wait_until(lambda: not marked(mark))


def test_walltime_reaches_all_nodes(home, engine, listener, site):
    mark = f"MARK={home.root}"
    launch = group(
        home, "trap '' TERM; sleep 600", resources=Resources(nodes=2, memory=256 * MIB, time=8),
        task={"variables": {"MARK": str(home.root)}},
    )  # fmt: skip
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch, LONG).reason.code == "TimeLimit"
    wait_until(lambda: not marked(mark))


def test_slurms_own_cancellation_is_told_as_such(home, engine, listener, site):
    launch = group(home, "echo began; sleep 600")
    engine.start(launch, token=TOKEN)
    for rank in b"01":
        listener.wrote(launch, home.attempt(launch).log, b"%c: began" % rank, LONG)
    site.run("scancel", (home.attempt(launch).path / "slurm").read_text().strip())
    ended = listener.ended(launch, LONG)
    assert ended.state is JobState.CANCELLED
    assert "in Slurm by " in ended.reason.message


def test_an_agent_that_is_lost_ends_the_group(home, engine, listener, site):
    launch = group(home, "echo began; sleep 600")
    engine.start(launch, token=TOKEN)
    for rank in b"01":
        listener.wrote(launch, home.attempt(launch).log, b"%c: began" % rank, LONG)
    # Another cluster of this machine may have a group, too.
    (agent,) = marked("SLURM_NODEID=1", f"SLURM_CONF={site.layout.conf}", word="agent import main")
    os.kill(agent, 9)
    ended = listener.ended(launch, LONG)
    assert (ended.state, ended.reason.code) == (JobState.NODE_FAIL, "NodeLost")
    assert re.search(r"Node node\d does not answer", ended.reason.message)


def test_mpi_processes_are_started_by_slurm_with_pmi(home, engine, listener, site):
    offered = site.run("srun", "--mpi=list").out.split()
    assert {"pmix", "pmi2"} & set(offered)
    launch = group(home, "echo $RANK of $WORLD_SIZE, ${PMIX_RANK:-$PMI_RANK}", processes=2, launcher=Launcher.MPI)
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch, LONG)
    assert ended.state is JobState.COMPLETED, (ended, lines(home, launch))
    assert lines(home, launch) == [f"{rank}: {rank} of 4, {rank}" for rank in range(4)]


def test_use_on_other_nodes_is_counted(home, engine, listener):
    spin = 'python3 -c "import time; t = time.process_time()\nwhile time.process_time() < t + 1: pass"'
    launch = group(home, spin, processes=2)
    engine.start(launch, token=TOKEN)
    assert listener.ended(launch, LONG).usage.cpu_seconds >= 4


def sampled(listener, launch):
    """The first sample with all GPUs of the job."""

    def find(story):
        samples = [record.usage for record in story.records if isinstance(record, Sampled)]
        return next((usage for usage in samples if len(usage.gpu_memory) == launch.resources.gpus * launch.resources.nodes), None)

    return find(listener.wait(launch, find, LONG))


def test_gpus_are_sampled_on_each_node(site, home, tmp_path):
    source = Path(__file__).parents[1] / "devices" / "fake_nvml.c"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make the fake driver library with (Debian: apt-get install gcc)")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    environ = {**site.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    commands = SlurmCommands(environ=environ, json=False, timeout=60)
    engine = SlurmEngine(spool=home.spool, run_dir=home.run, lab="gpus", environ=environ, commands=commands, interval=0.3)
    listener = EngineListener(engine)
    try:
        launches = [
            make_launch(
                home,
                "sleep 600",
                job_id=nodes,
                resources=Resources(nodes=nodes, cpus=1, memory=256 * MIB, gpus=1, gpu_type="fake", time=300),
                limits=replace(LaunchLimits(), sample=0.5),
            )
            for nodes in (1, 2)
        ]
        for launch in launches:
            engine.start(launch, token=TOKEN)
        busy = set()
        for launch in launches:
            usage = sampled(listener, launch)
            assert usage.gpu_memory.keys() == usage.gpu_utilization.keys()
            assert all(re.fullmatch(r"node\d/gpu0", name) for name in usage.gpu_memory)
            busy |= set(usage.gpu_utilization.values())
            engine.cancel(launch.job_id, launch.attempt, by="alice")
        # Slurm names them by position, and the driver's first one is busy.
        assert 37.0 in busy <= {37.0, 0.0}
        for launch in launches:
            listener.ended(launch, LONG)
    finally:
        engine.close()


def test_nodes_that_cannot_be_started_on_are_told(home, engine, listener, site, tmp_path):
    launch = group(home, "true", launcher=Launcher.TORCHRUN)
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch, LONG)
    assert (ended.state, ended.reason.code) == (JobState.FAILED, "LaunchFailed")
    assert re.search(r"On node\d: the launcher torchrun is not in the task's environment", ended.reason.message)


def test_too_much_memory_on_another_node_ends_the_group(home, engine, listener):
    eat = "python3 -c \"import time; held = b'x' * (300 * 2**20); time.sleep(600)\""
    launch = group(home, f"[ $RANK = 0 ] && sleep 600; {eat}", processes=1)
    engine.start(launch, token=TOKEN)
    ended = listener.ended(launch, LONG)
    assert (ended.state, ended.reason.code) == (JobState.OUT_OF_MEMORY, "OutOfMemory")
    assert re.search(r"On node\d it used [\d.]+M of memory and had asked for 256M on each node", ended.reason.message)


def test_a_group_is_stopped_on_all_nodes_and_goes_on(home, engine, listener):
    count = "i=0; while [ ! -e go ]; do i=$((i + 1)); echo $i > count.$RANK; sleep 0.05; done"
    launch = group(home, f"echo began; {count}; echo done")
    engine.start(launch, token=TOKEN)
    for rank in b"01":
        listener.wrote(launch, home.attempt(launch).log, b"%c: began" % rank, LONG)
    engine.preempt(1, 1, Preemption(mode=PreemptMode.SUSPEND, by=9, qos="high", at=0.0, grace=60))
    listener.wait(launch, lambda story: story.first(Suspended), LONG)
    work = home.attempt(launch).work
    # A signal to stop takes effect when the process runs next: on a machine that is busy, a moment later.
    wait_until(lambda: {stat for pid in marked(f"CARREL_OUTPUT_DIR={work}") if (stat := state_of(pid))} == {"T"})
    before = [(work / f"count.{rank}").read_text() for rank in range(2)]
    (work / "go").touch()
    assert [(work / f"count.{rank}").read_text() for rank in range(2)] == before
    engine.preempt(1, 1, None)
    listener.wait(launch, lambda story: story.first(Resumed), LONG)
    assert listener.ended(launch, LONG).state is JobState.COMPLETED
    assert {"0: done", "1: done"} <= set(lines(home, launch))

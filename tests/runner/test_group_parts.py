"""The pure parts of a group: labels, and what launchers and processes are told."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher
from carrel.node.runner.group.labels import Labelled
from carrel.node.runner.group.plan import (
    Allocation,
    GroupPlan,
    Rendezvous,
    mpirun_arguments,
    mpirun_command,
    plan_group,
    rank_variables,
    torchrun_arguments,
)
from carrel.testing.builders import LabHome, make_launch

pytestmark = pytest.mark.quick

MEETING = Rendezvous(address="fd00::7", port=12345, number=1)
STEPS = Allocation(each_node=("srun", "-N2"), each_process=("srun", "--mpi=pmix"), nodes=("a", "b"))


def plan(tmp_path, launcher=Launcher.NONE, nodes=1, processes=1, allocation=None, **task) -> GroupPlan:
    launch = make_launch(
        LabHome(tmp_path), "python train.py", resources=Resources(nodes=nodes, cpus=8),
        task={"launcher": launcher, "tasks_per_node": processes, **task},
    )  # fmt: skip
    return plan_group(launch, secret="s", directory="/work", variables={"A": "it's"}, allocation=allocation)


@given(st.lists(st.binary(max_size=40)))
def test_labels_change_nothing_else(pieces: list[bytes]) -> None:
    labelled = Labelled("3: ")
    shown = b"".join([*(labelled.feed(piece) for piece in pieces), labelled.rest()])
    written = b"".join(pieces)
    if b"3: " not in written:
        plain = b"".join(line.removeprefix(b"3: ") for line in shown.splitlines(keepends=True))
        assert plain in (written, written + b"\n")


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"bc"])))
def test_every_line_has_its_label(pieces: list[bytes]) -> None:
    labelled = Labelled("3: ")
    shown = b"".join([*(labelled.feed(piece) for piece in pieces), labelled.rest()])
    assert all(line.startswith(b"3: ") for line in shown.splitlines())


def test_lines_that_never_end_are_let_go() -> None:
    assert Labelled("0: ").feed(b"x" * 10000) == b"0: " + b"x" * 10000 + b"\n"


@given(nodes=st.integers(1, 9), processes=st.integers(1, 9))
def test_ranks_are_all_different(nodes: int, processes: int) -> None:
    shape = GroupPlan(
        name="1.1",
        secret="",
        command="",
        directory="",
        variables={},
        launcher=Launcher.NONE,
        nodes=nodes,
        tasks_per_node=processes,
    )
    told = [rank_variables(shape, MEETING, node=node, local=local) for node in range(nodes) for local in range(processes)]
    assert [int(one["RANK"]) for one in told] == list(range(shape.size))
    assert {one["WORLD_SIZE"] for one in told} == {str(nodes * processes)}


def test_one_process_is_no_group(tmp_path) -> None:
    home = LabHome(tmp_path)
    assert not make_launch(home, "true").is_group
    assert make_launch(home, "true", task={"launcher": Launcher.TORCHRUN}).is_group
    assert make_launch(home, "true", resources=Resources(nodes=2)).is_group


@pytest.mark.parametrize(
    ("launcher", "nodes", "allocation", "step", "agents", "processes"),
    [
        (Launcher.NONE, 1, STEPS, (), 1, 3),
        (Launcher.NONE, 2, STEPS, ("srun", "-N2"), 2, 3),
        (Launcher.TORCHRUN, 2, STEPS, ("srun", "-N2"), 2, 1),
        (Launcher.MPI, 2, STEPS, ("srun", "--mpi=pmix"), 6, 1),
        (Launcher.MPI, 1, None, (), 1, 1),
    ],
)
def test_who_starts_what(tmp_path, launcher, nodes, allocation, step, agents, processes) -> None:
    found = plan(tmp_path, launcher, nodes, 3, allocation)
    assert (found.step, found.agents, found.processes) == (step, agents, processes)


def test_processors_are_shared_out_unless_the_task_says_otherwise(tmp_path) -> None:
    assert plan(tmp_path, processes=4).variables["OMP_NUM_THREADS"] == "2"
    assert plan(tmp_path / "b", processes=16).variables["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in plan(tmp_path / "c", processes=4, variables={"OMP_NUM_THREADS": "8"}).variables


def test_torchrun_is_told_who_has_the_store(tmp_path) -> None:
    shape = plan(tmp_path, Launcher.TORCHRUN, 2, 4, STEPS)
    first, second = (torchrun_arguments(shape, MEETING, node=node, shell=["bash", "-c", "x"]) for node in range(2))
    assert first == [
        "torchrun", "--nnodes=2", "--nproc-per-node=4", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::7]:12345",
        "--rdzv-id=1.1.1", "--rdzv-conf=is_host=1", "--max-restarts=0", "--no-python", "bash", "-c", "x",
    ]  # fmt: skip
    assert [word for word in second if word not in first] == ["--rdzv-conf=is_host=0"]


def test_mpirun_takes_nodes_and_variables_along(tmp_path) -> None:
    shape = plan(tmp_path, Launcher.MPI, 2, 2, Allocation(each_node=("srun",), nodes=("a", "b")))
    assert mpirun_arguments(shape, ["sh"]) == ["mpirun", "-n", "4", "--host", "a:2,b:2", "sh"]
    command = mpirun_command(shape, MEETING, {"A": "it's", "TMPDIR": "/here", "CUDA_VISIBLE_DEVICES": "0"})
    ran = subprocess.run(
        ["bash", "-c", command.replace("python train.py", "env")], env={"OMPI_COMM_WORLD_RANK": "3", "TMPDIR": "/there"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = dict(line.split("=", 1) for line in ran.stdout.splitlines())
    assert (told["A"], told["RANK"], told["WORLD_SIZE"], told["NODE_RANK"]) == ("it's", "3", "4", "1")
    assert (told["TMPDIR"], "CUDA_VISIBLE_DEVICES" in told) == ("/there", False)
    assert shlex.quote("it's") in command

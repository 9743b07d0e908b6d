"""How many processes a task is, and what starts them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher
from carrel.core.submission.kinds import read_launcher
from carrel.core.tasks import describe
from carrel.core.tasks.shape import MAX_TASKS_PER_NODE, one_of_gpus, tasks_on_each_node

PROJECT = "entry_points: {main: {command: python train.py}}\ncarrel:\n"


def described(root: Path, section: str):
    (root / "MLproject").write_text(PROJECT + section)
    return describe(root)


def test_a_file_says_the_shape(tmp_path: Path) -> None:
    found = described(tmp_path, "  resources: {nodes: 2, gpus_per_node: 4, cpus: 8}\n  launcher: torchrun\n  tasks_per_node: 3\n")
    found = found.options
    assert (found.resources.nodes, found.resources.gpus, found.launcher, found.tasks_per_node) == (2, 4, Launcher.TORCHRUN, 3)
    silent = described(tmp_path, "  qos: batch\n")
    assert (silent.options.resources.nodes, silent.options.launcher, silent.options.tasks_per_node) == (None, None, None)


@pytest.mark.parametrize(
    ("section", "says", "remedy"),
    [
        ("  resources: {gpus: 2, gpus_per_node: 4}\n", "gpus is 2 and gpus_per_node is 4", "keep one"),
        ("  resources: {nodes: 0}\n", "nodes is 0", "at least 1"),
        ("  tasks_per_node: 0\n", "tasks_per_node is 0", "at least 1"),
        ("  launcher: torchrn\n", '"torchrn"', 'Did you mean "torchrun"'),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_line(tmp_path: Path, section: str, says: str, remedy: str) -> None:
    with pytest.raises(Invalid) as caught:
        described(tmp_path, section)
    assert says in caught.value.message
    assert "MLproject, line 3" in caught.value.message
    assert remedy in caught.value.remedy


def test_torchrun_has_a_process_for_each_gpu() -> None:
    def number(launcher: Launcher, gpus: int, asked: int | None = None) -> int:
        return tasks_on_each_node(asked, launcher, Resources(gpus=gpus), "python train.py")

    assert [number(launcher, 4) for launcher in Launcher] == [1, 4, 1]
    assert number(Launcher.TORCHRUN, 0) == 1
    assert number(Launcher.TORCHRUN, 4, asked=2) == 2


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py", "/opt/bin/torchrun --nnodes=2 x.py", "python3 -m torch.distributed.run x.py",
        "accelerate launch x.py", "mpirun -n 4 ./solve", "mpiexec ./solve", " srun hostname",
    ],
)  # fmt: skip
def test_a_command_that_starts_processes_itself_has_no_other_launcher(command: str) -> None:
    for launcher in (Launcher.TORCHRUN, Launcher.MPI):
        with pytest.raises(Invalid, match=r"which starts processes itself"):
            tasks_on_each_node(None, launcher, Resources(), command)
    assert tasks_on_each_node(None, Launcher.NONE, Resources(), command) == 1


@pytest.mark.parametrize("command", ["python torchrun.py", "./mpirun.sh", "python -m torch.distributed.running", "echo srun"])
def test_other_commands_may_have_such_words(command: str) -> None:
    assert tasks_on_each_node(None, Launcher.TORCHRUN, Resources(), command) == 1


@given(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_two_names_of_one_number(gpus: int | None, gpus_per_node: int | None) -> None:
    if None not in (gpus, gpus_per_node) and gpus != gpus_per_node:
        with pytest.raises(Invalid):
            one_of_gpus(gpus, gpus_per_node)
    else:
        assert one_of_gpus(gpus, gpus_per_node) == (gpus if gpus is not None else gpus_per_node)


def test_numbers_have_limits() -> None:
    for asked in (0, -1, MAX_TASKS_PER_NODE + 1):
        with pytest.raises(Invalid, match=f"tasks_per_node is {asked}"):
            tasks_on_each_node(asked, Launcher.NONE, Resources(), "true")
    with pytest.raises(Invalid, match='no launcher "slurm"'):
        read_launcher("slurm")

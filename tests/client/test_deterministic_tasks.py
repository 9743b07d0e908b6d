"""`carrel run --deterministic` and `--order`: jobs that repeat random numbers, results, and the order of samples."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import Invalid
from carrel.testing.waiting import PATIENCE
from carrel.wire import v1
from support.lab_process import LabProcess

SMALL = v1.ResourceRequest(cpus=1, memory="256M")
LARGE = v1.ResourceRequest(cpus=1, memory="2G")
#: Nothing here has a seed, but for the last line.
DRAWS = """
import random
import numpy
from numpy.random import default_rng
print(random.random(), hash("carrel"), numpy.random.rand(), default_rng().random(), default_rng().random())
print(default_rng(5).random())
"""
TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8, shuffle=True, num_workers=1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
step = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in data:
    step.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    step.step()
print(loss.item().hex(), torch.are_deterministic_algorithms_enabled())
torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
"""


def run(
    client: Client,
    directory: Path,
    program: str,
    python: str | Path = sys.executable,
    state: str = "COMPLETED",
    **more: object,
) -> tuple[int, list[str]]:
    """Run the program to its end, in which it has that state; the job and the lines of its log."""
    directory.mkdir(exist_ok=True)
    (directory / "train.py").write_text(program)
    section = "carrel: {deterministic: true}\n" if more.pop("in_file", False) else ""
    command = json.dumps(f"{shlex.quote(str(python))} train.py")
    (directory / "MLproject").write_text(f"entry_points:\n  main:\n    command: {command}\n{section}")
    job = client.submit_project(directory, **{"resources": SMALL, **more})  # type: ignore[arg-type]
    ended = client.wait(job.id, timeout=PATIENCE).state
    log = "".join(client.stream_log(job.id))
    assert ended == state, log
    return job.id, log.splitlines()


@pytest.mark.gate
def test_what_is_random_is_the_same_each_time(client: Client, tmp_path: Path) -> None:
    plain = [run(client, tmp_path / "code", DRAWS)[1] for _ in range(2)]
    assert plain[0][0] != plain[1][0]
    first, lines = run(client, tmp_path / "code", DRAWS, deterministic=True)
    _, again = run(client, tmp_path / "code", DRAWS, deterministic=True)
    assert lines == again
    _, same = run(client, tmp_path / "in-file", DRAWS, in_file=True)
    assert lines == same
    draws = lines[0].split()
    assert draws[3] != draws[4], "two generators without a seed are two"
    assert lines[1] == plain[0][1], "one with a seed has it"
    _, others = run(client, tmp_path / "code", DRAWS, deterministic=True, deterministic_seed=7)
    assert not set(others[0].split()) & (set(draws) - {draws[1]})
    record = client.record(first)
    assert record["task"]["deterministic_seed"] == 0
    seeds = record["attempts"][0]["seeds"]
    assert (seeds["CARREL_SEED"], seeds["PYTHONHASHSEED"], seeds["OMP_NUM_THREADS"], seeds["OMP_DYNAMIC"]) == (
        "0",
        "0",
        "1",
        "FALSE",
    )


def test_a_rerun_is_deterministic_as_its_job_was(client: Client, tmp_path: Path) -> None:
    first, lines = run(client, tmp_path / "code", DRAWS, deterministic=True)
    again = client.rerun(first)
    assert client.wait(again.id, timeout=PATIENCE).state == "COMPLETED"
    assert "".join(client.stream_log(again.id)).splitlines()[-2:] == lines[-2:]


def test_what_a_task_sets_itself_is_kept(client: Client, tmp_path: Path) -> None:
    program = "import os; print(os.environ['XLA_FLAGS'], os.environ['MKL_CBWR'])"
    _, lines = run(
        client, tmp_path / "code", program, deterministic=True, variables={"XLA_FLAGS": "--xla_dump_to=x", "MKL_CBWR": "AVX2"}
    )
    assert lines == ["--xla_dump_to=x --xla_gpu_deterministic_ops=true AVX2"]


def test_a_library_that_cannot_be_set_is_named_and_used(client: Client, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tensorflow.py").write_text("answer = 42\n")
    _, lines = run(client, tmp_path / "code", "import tensorflow; print(tensorflow.answer)", deterministic=True)
    assert lines[-1] == "42"
    assert any(line.startswith("carrel: --deterministic: tensorflow cannot be set: AttributeError") for line in lines)


def test_a_seed_alone_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text("import random")
    with pytest.raises(Invalid, match="The seed 7 is that of --deterministic, which was not asked for"):
        client.submit_project(tmp_path / "draw.py", resources=SMALL, deterministic_seed=7)


def test_a_result_of_another_mode_is_not_taken(client: Client, tmp_path: Path) -> None:
    first, _ = run(client, tmp_path / "code", "print(1)", cache=True)
    other, _ = run(client, tmp_path / "code", "print(1)", cache=True, deterministic=True)
    assert other != first
    again, _ = run(client, tmp_path / "code", "print(1)", cache=True, deterministic=True)
    assert again == other


def test_the_command_says_it_too(lab: LabProcess, client: Client, tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text("import random; print(random.random())")
    words = [
        sys.executable,
        "-m",
        "carrel.cli.main",
        "run",
        "draw.py",
        "--deterministic",
        "--deterministic-seed",
        "3",
        "--detach",
        "--json",
        "--home",
        str(lab.home),
    ]
    said = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert client.record(json.loads(said)["id"])["task"]["deterministic_seed"] == 3


#: Two loaders, one of them twice, in the order that chance gives them; the last one's length is that of what is shown.
SHOWS = """
import sys
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
numbers = list(range(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
shuffled = DataLoader(numbers, batch_size=3, shuffle=True, num_workers=2)
alone = DataLoader(numbers, batch_size=None, shuffle=True)
for epoch in range(2):
    print([batch.tolist() for batch in shuffled], [int(one) for one in alone], len(shuffled))
class Stream(IterableDataset):
    def __iter__(self):
        return iter([1])
print([batch.tolist() for batch in DataLoader(Stream())])
"""


@pytest.mark.heavy
@pytest.mark.xdist_group("heavy")
def test_the_order_of_samples_is_kept_and_repeated(client: Client, tmp_path: Path, heavy_python: Path) -> None:
    more = {"python": heavy_python, "resources": LARGE}
    plain = [line for line in run(client, tmp_path / "code", SHOWS, **more)[1] if line.startswith("[")]
    first, lines = run(client, tmp_path / "code", SHOWS, order="record", **more)
    shown = [line for line in lines if line.startswith("[")]
    assert len({shown[0], shown[1], plain[0]}) == 3, "it is another each time"
    assert any("an IterableDataset has its own order, which is not recorded" in line for line in lines)
    assert [output.path for output in client.outputs(first)] == ["outputs/order/0.jsonl"]
    again, lines = run(client, tmp_path / "code", SHOWS, order=str(first), **more)
    assert [line for line in lines if line.startswith("[")] == shown
    assert client.compare_results(first, again).agreement.value == "identical"
    # Who asks for more than was recorded is told, and gets no order of chance.
    longer = SHOWS.replace("range(2)", "range(3)")
    _, lines = run(client, tmp_path / "code", longer, order=str(first), state="FAILED", **more)
    assert f"carrel: the order of job {first} has no loader 0 that was begun 3 times" in "".join(lines)


OWN_ORDER = """
import random
import carrel
for epoch in range(2):
    print("epoch", *carrel.order(random.sample(range(100), 5)))
print("files", *carrel.order([name] for name in random.sample(["a", "b", "c"], 3)))
"""


@pytest.mark.gate
def test_an_order_of_the_programs_own_is_kept_and_repeated(client: Client, tmp_path: Path) -> None:
    def shown(text: str, **more: object) -> tuple[int, list[str]]:
        job, lines = run(client, tmp_path / "code", text, **more)  # type: ignore[arg-type]
        return job, [line for line in lines if line.startswith(("epoch", "files"))]

    first, lines = shown(OWN_ORDER, order="record")
    assert [output.path for output in client.outputs(first)] == ["outputs/order/0.jsonl"]
    assert shown(OWN_ORDER, order=str(first))[1] == lines
    assert shown(OWN_ORDER)[1] != lines, "outside it is as chance has it"
    longer = OWN_ORDER + "list(carrel.order([1]))\n"
    _, said = run(client, tmp_path / "code", longer, order=str(first), state="FAILED")
    assert f"carrel: the order of job {first} has no loader 3" in "".join(said)


def test_an_order_that_is_none_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text("import random")
    with pytest.raises(Invalid, match='There is no order of samples "backwards"'):
        client.submit_project(tmp_path / "draw.py", resources=SMALL, order="backwards")


@pytest.mark.heavy
@pytest.mark.xdist_group("heavy")
def test_a_training_repeats_itself_to_the_last_bit(client: Client, tmp_path: Path, heavy_python: Path) -> None:
    runs = [run(client, tmp_path / "code", TRAINING, heavy_python, deterministic=True, resources=LARGE)[1] for _ in range(2)]
    results = [next(line for line in lines if line.endswith(" True")) for lines in runs]
    assert results[0] == results[1]
    assert any("put_" in line and "does not have a deterministic implementation" in line for line in runs[0]), runs[0]

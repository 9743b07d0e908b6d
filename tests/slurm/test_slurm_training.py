"""PyTorch's data parallel training across two nodes gives the weights that one process gives."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from test_slurm_groups import LONG, group

from carrel.core.domain.job import JobState
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher
from carrel.engines.local import LocalEngine
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.node.devices import DeviceLocks, this_node
from carrel.testing.builders import EngineListener, LabHome
from carrel.testing.engine_contract import TOKEN
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.heavy, pytest.mark.xdist_group("heavy")]

GIB = 1024**3
EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_torch"
#: Each process takes its share of every batch, so that all batches are those of one process. Nothing outside `train` keeps the
#: group: one that is still there when the interpreter ends may abort it (pytorch/pytorch#179291).
TRAIN = """
import os, signal, sys
import torch
from torch import distributed, nn

def train(rank, size):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    inputs = torch.randn(256, 8)
    targets = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
    trained = nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(4):
        for batch in torch.randperm(256).split(32):
            optimizer.zero_grad()
            mine = batch[rank::size]
            loss = nn.functional.cross_entropy(trained(inputs[mine]), targets[mine])
            loss.backward()
            optimizer.step()
            if "fail" in sys.argv and rank == size - 1:
                os._exit(7)  # an interpreter that ends may abort, as above
            if "fail" in sys.argv:
                signal.pause()  # who has lost its partner would fail, too
    print("trained on", os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK")), flush=True)
    torch.save(model.state_dict(), f"outputs/weights.{rank}.pt")

rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if size > 1:
    distributed.init_process_group("gloo")
    assert (distributed.get_rank(), distributed.get_world_size()) == (rank, size)
train(rank, size)
if size > 1:
    distributed.barrier()
    distributed.destroy_process_group()
    os._exit(0)  # what was written is flushed, and an interpreter that ends may abort even now
"""
#: Each argument is a list of files; it prints how far those of each are from each other. One process: PyTorch takes seconds.
COMPARE = """
import json, sys, torch
for files in map(json.loads, sys.argv[1:]):
    first, *others = map(torch.load, files)
    print(max(float((first[name] - other[name]).abs().max()) for other in others for name in first))
"""


@pytest.fixture(scope="module")
def site(slurm_programs):
    """A cluster of its own: these tests are with others that need the same large environment, not with those of Slurm."""
    with SlurmSite(nodes=2, accounting=False) as site:
        yield site


@pytest.fixture
def python(heavy_python) -> Path:
    return heavy_python


class Training:
    """Runs the same training in different shapes."""

    def __init__(self, root: Path, site, python: Path) -> None:
        self.home, self.python, self.number = LabHome(root), python, 0
        commands = SlurmCommands(environ=site.environ, json=False, timeout=60)
        lab = f"d{abs(hash(str(root))):x}"
        self.slurm = SlurmEngine(
            spool=self.home.spool, run_dir=root / "slurm", lab=lab, environ=site.environ, commands=commands, interval=0.3
        )
        self.local = LocalEngine(
            spool=self.home.spool, node=this_node(), run_dir=root / "run", environ=site.environ, locks=DeviceLocks(root / "locks")
        )
        self.ears = {engine: EngineListener(engine) for engine in (self.slurm, self.local)}

    def run(self, engine, command="python train.py", **shape):
        self.number += 1
        variables = {"PATH": f"{self.python.parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        resources = Resources(nodes=shape.pop("nodes", 1), cpus=2, memory=2 * GIB, time=600)
        launch = group(
            self.home, command, resources=resources, task={"variables": variables}, files={"train.py": TRAIN},
            job_id=self.number, **shape,
        )  # fmt: skip
        engine.start(launch, token=TOKEN)
        return launch, self.ears[engine].ended(launch, 2 * LONG)

    def weights(self, engine, **shape):
        launch, ended = self.run(engine, **shape)
        log = self.home.attempt(launch).log.read_text()
        assert ended.state is JobState.COMPLETED, f"{ended.reason}\n{log}"
        return log, {file.path: str(self.home.blob(file.digest)) for file in ended.outputs}


@pytest.fixture
def training(site, python, tmp_path):
    training = Training(tmp_path, site, python)
    yield training
    training.slurm.close()
    training.local.close()


def distances(python: Path, *files: list[str]) -> list[float]:
    words = [python, "-c", COMPARE, *map(json.dumps, files)]
    return [float(line) for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()]


def test_two_nodes_give_the_weights_of_one_process(training, python):
    _, alone = training.weights(training.local, processes=1)
    shapes = [list(alone.values())]
    for engine, shape, ranks in (
        (training.slurm, {"nodes": 2, "processes": 1, "launcher": Launcher.TORCHRUN}, 2),
        (training.slurm, {"nodes": 2, "processes": 1, "launcher": Launcher.NONE}, 2),
        (training.slurm, {"nodes": 2, "processes": 2, "launcher": Launcher.TORCHRUN}, 4),
        (training.local, {"processes": 2, "launcher": Launcher.TORCHRUN}, 2),
        (training.local, {"processes": 2, "launcher": Launcher.NONE}, 2),
    ):
        log, found = training.weights(engine, **shape)
        assert sorted(found) == [f"outputs/weights.{rank}.pt" for rank in range(ranks)]
        for rank in range(ranks):
            assert re.search(rf"^{rank}: trained on \d$", log, re.MULTILINE), log
        nodes = set(re.findall(r"trained on (\d)", log))
        assert nodes == ({"0", "1"} if engine is training.slurm else {"0"})
        shapes.append(list(found.values()))
    *within, between = distances(python, *shapes[1:], [files[0] for files in shapes])
    assert within == [0, 0, 0, 0, 0]
    # Float64, and the gradients of a batch are summed in another order: the last bits may differ, and nothing else.
    assert between < 1e-12


def test_torchruns_process_that_fails_is_named(training):
    launch, ended = training.run(training.slurm, "python train.py fail", nodes=2, processes=1, launcher=Launcher.TORCHRUN)
    log = training.home.attempt(launch).log.read_text()
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 7), (ended, log)
    assert re.search(r"That was rank 1 on node\d", ended.reason.message)


def test_the_example_trains_on_two_nodes_as_it_does_alone(lab):
    found = []
    for shape in ([], ["--nodes", "2", "--launcher", "torchrun"]):
        few = ["-P", "epochs=1", "-P", "samples=601", "--env", "OMP_NUM_THREADS=1", "--memory", "2G"]
        done = lab.carrel("run", "--json", "--partition", "cluster", *few, *shape, str(EXAMPLE))
        assert done.returncode == 0, (done.stdout, done.stderr)
        (job,) = lab.client.jobs(limit=1)
        kept = {file.path: file.digest.removeprefix("sha256:") for file in lab.client.outputs(job.id)}
        assert set(kept) == {"outputs/metrics.json", "outputs/model/weights.pt"}
        digest = kept["outputs/metrics.json"]
        found.append(json.loads(next(lab.home.glob(f"**/{digest[:2]}/{digest}")).read_text()))
    alone, together = (one["history"][-1] for one in found)
    # Float32 here, in which the order of a sum shows after some steps.
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    shown = lab.carrel("show", str(job.id)).stdout
    assert re.search(r"processes +2 nodes × 1, torchrun", shown), shown
    assert "2 nodes with 2 CPUs, 2G" in shown

"""Images on a cluster's nodes: fetched before the job has its place, and run there as on the lab's own machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from slurm_lab import RULES, Lab

from carrel.core.domain.errors import Impossible
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.image_lab import need_image_programs
from support.image_registry import Registry
from support.images import programs, write_layer
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]
GPU = ResourceRequest(memory="256M", gpus=1)
#: What a command finds around it.
LOOK = """
cat /etc/motd; cat input.txt; echo "flavour $FLAVOUR, devices $CUDA_VISIBLE_DEVICES"
test -e /etc/debian_version && echo "the machine"; (echo x > /etc/x) 2>/dev/null || echo "read-only"
echo x > "$TMPDIR/x" && echo x > /tmp/y && echo "temporary files"; echo made > "$CARREL_OUTPUT_DIR/made.txt"
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    need_image_programs()
    base = write_layer({**programs("sh", "cat", "ls", "test", "grep", "sleep"), "etc/motd": b"an image\n"})
    variables = {"PATH": "/usr/bin:/bin", "FLAVOUR": "mild"}
    with Registry() as registry:
        registry.publish("1", [base], variables)
        yield registry


def project(directory: Path, image: str, command: str, asked: str = "") -> Path:
    directory.mkdir()
    (directory / "MLproject").write_text(
        f'name: images\ndocker_env: {{image: "{image}"}}\n{asked}\nentry_points:\n  main:\n    command: {json.dumps(command)}\n'
    )
    (directory / "input.txt").write_text("the input\n")
    return directory


def run(lab: Lab, code: Path, resources: ResourceRequest = GPU) -> JobDetail:
    return lab.ended(lab.client.submit_project(code, resources=resources, partition="cluster").id)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A directory of the site's."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/data").write_text("the data\n")
    return tmp_path / "scratch"


@pytest.fixture
def lab(site: SlurmSite, tmp_path: Path, scratch: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab", site, f'slurm_image_paths = "/not-on-this-node:{scratch}"\n{RULES}')
    yield lab
    lab.stop()


@pytest.mark.gate
def test_a_task_runs_in_its_image_on_a_node(lab: Lab, registry: Registry, scratch: Path, tmp_path: Path) -> None:
    name = f"{registry.host}/lab/train:1"
    job = lab.client.submit_project(
        project(tmp_path / "a", name, f"{LOOK}cat {scratch}/data; echo x > {scratch}/made"), resources=GPU, partition="cluster"
    )
    lab.until(job.id, lambda job: job.reason == "BuildEnvironment" or job.attempt == 1)
    ended = lab.ended(job.id)
    log = lab.log(ended.id)
    assert ended.state == "COMPLETED", (ended.message, log)
    assert log.splitlines() == ["an image", "the input", "flavour mild, devices 0", "read-only", "temporary files", "the data"]
    assert (scratch / "made").read_text() == "x\n"
    assert [output.path for output in lab.client.outputs(ended.id)] == ["outputs/made.txt"]
    record = lab.client.record(ended.id)
    assert registry.tags["1"] in json.dumps(record)
    assert [attempt["environment_built"] for attempt in record["attempts"]] == [False], "it was there before the GPU was"


def test_processes_on_several_nodes_run_in_the_image(lab: Lab, registry: Registry, tmp_path: Path) -> None:
    name = f"{registry.host}/lab/train:1"
    command = 'cat /etc/motd; test -e /etc/debian_version && echo "the machine"; echo "$RANK of $WORLD_SIZE"; echo x > /tmp/x'
    asked = "carrel: {tasks_per_node: 2, outputs: ['outputs/**']}"
    code = project(tmp_path / "a", name, f'{command}; echo "$RANK" > "$CARREL_OUTPUT_DIR/$RANK"', asked)
    two = ResourceRequest(memory="256M", nodes=2)
    ended = run(lab, code, two)
    log = lab.log(ended.id)
    assert ended.state == "COMPLETED", (ended.message, log)
    assert sorted(log.splitlines()) == sorted(line for rank in range(4) for line in (f"{rank}: an image", f"{rank}: {rank} of 4"))
    assert sorted(output.path for output in lab.client.outputs(ended.id)) == [f"outputs/{rank}" for rank in range(4)]
    with pytest.raises(Impossible, match="MPI of an image cannot start processes on 2 nodes"):
        run(lab, project(tmp_path / "b", name, "true", "carrel: {launcher: mpi}"), two)


def test_a_node_without_the_programs_says_what_is_missing(site: SlurmSite, registry: Registry, tmp_path: Path) -> None:
    programs_here = tmp_path / "bin"
    programs_here.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            with suppress(FileExistsError):
                if program.name not in ("umoci", "podman"):
                    (programs_here / program.name).symlink_to(program)
    lab = Lab(tmp_path / "lab", site, PATH=str(programs_here))
    try:
        ended = run(lab, project(tmp_path / "a", f"{registry.host}/lab/train:1", "true"))
        assert (ended.state, ended.reason, ended.attempt) == ("FAILED", "EnvironmentFailed", 0)
        lacks = [f"{node} has no umoci and no podman" in ended.message for node in site.layout.nodes]
        assert any(lacks), ended.message
        assert "apt-get install umoci" in ended.message
    finally:
        lab.stop()

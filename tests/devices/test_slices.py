"""Nodes below /dev that programs on slices open, by the fake NVML and a file as the driver has it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from carrel.core.domain.units import GIB
from carrel.node.devices.slices import nodes_of_all_slices
from carrel.node.runner.walls import gpu_nodes
from support.fake_driver import FakeDriver, FakeGpu, build, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="the fake driver is compiled from C")

#: As /proc/driver/nvidia-caps/mig-minors of a machine with two GPUs says.
MINORS = "config 1\nmonitor 2\ngpu1/gi1/access 12\ngpu1/gi1/ci0/access 13\ngpu1/gi2/access 21\ngpu1/gi2/ci0/access 22\n"
CODE = """
import json, sys
from pathlib import Path
from carrel.node.devices import discover
from carrel.node.devices.slices import create_slice, device_nodes, sliced_gpus
gpu, = sliced_gpus()
before = [device.uuid for device in discover()]
create_slice(gpu.uuid, "2g.35gb", 0)
create_slice(gpu.uuid, "1g.18gb", 4)
whole, first, second = discover()
nodes = {one.type: sorted(device_nodes([one.uuid], Path(sys.argv[1]))) for one in (whole, first, second)}
print(json.dumps({"before": before, "nodes": nodes}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    gpus = [FakeGpu(uuid=f"GPU-{uuid.uuid4()}", memory=141 * GIB, mig=mig) for mig in (False, True)]
    return build(tmp_path_factory.mktemp("driver"), gpus=gpus)


def test_a_slice_has_its_own_nodes_and_a_gpu_in_mig_mode_is_its_slices(driver: FakeDriver, tmp_path: Path) -> None:
    file = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    file.parent.mkdir(parents=True)
    file.write_text(MINORS)
    words = [sys.executable, "-c", CODE, str(tmp_path)]
    said = json.loads(subprocess.run(words, env=driver.environment(), check=True, stdout=subprocess.PIPE).stdout)
    assert said["before"] == [driver.gpus[0].uuid]
    assert said["nodes"] == {
        "h200": ["nvidia0"],
        "h200-2g.35gb": ["nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13", "nvidia1"],
        "h200-1g.18gb": ["nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22", "nvidia1"],
    }
    # What changes how GPUs are cut, and what watches all, are not among those that jobs see.
    assert nodes_of_all_slices(tmp_path) == [f"nvidia-caps/nvidia-cap{minor}" for minor in (12, 13, 21, 22)]
    assert nodes_of_all_slices(tmp_path / "none") == []
    assert "/dev/nvidia-caps/nvidia-cap12" in gpu_nodes({"nvidia1", "nvidia-caps/nvidia-cap12"})

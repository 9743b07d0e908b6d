"""The driver's view of the GPUs, through a fake driver library behind the real pynvml."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_LOOK = """
import json
from carrel.node.devices import GpuSampler, discover
from carrel.core.domain.serial import to_plain
devices = discover()
with GpuSampler([device.uuid for device in devices] + ["GPU-none", "SIM-lab-0", "1", "7"]) as sampler:
    use = sampler.read()
print(json.dumps({"devices": to_plain(devices), **to_plain(use)}))
"""


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to make the fake driver library with (Debian: apt-get install gcc)")
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libnvidia-ml.so.1", source], check=True)

    def run(mode="", code=_LOOK):
        environ = {**os.environ, "LD_LIBRARY_PATH": str(directory), "FAKE_NVML": mode}
        return json.loads(subprocess.run([sys.executable, "-c", code], env=environ, check=True, stdout=subprocess.PIPE).stdout)

    return run


def test_gpus_and_slices_are_found(look):
    seen = look()
    assert [(device["uuid"], device["index"], device["type"], device["memory"]) for device in seen["devices"]] == [
        ("GPU-aaaa", 0, "h200", 150754820096),
        ("MIG-cccc", 1, "h200-1g.18gb", 19327352832),
    ]
    assert not any(device["simulated"] for device in seen["devices"])


def test_use_is_read_where_it_can_be(look):
    seen = look()
    # "1" is a position, as Slurm names GPUs.
    assert seen["utilization"] == {"GPU-aaaa": 37.0, "1": 0.0}
    assert seen["memory"] == {"GPU-aaaa": 1024, "MIG-cccc": 2048, "1": 0}
    assert seen["energy"] == {"GPU-aaaa": 1250.0, "1": 1500.0}


def test_the_activity_of_multiprocessors_is_read_of_gpus_and_of_slices(look):
    assert look()["sm"] == {"GPU-aaaa": 21.5, "MIG-cccc": 40.0}
    assert look("old")["sm"] == {}


def test_a_gpu_that_is_lost_does_not_hide_the_others(look):
    assert [device["uuid"] for device in look("lost")["devices"]] == ["MIG-cccc"]


def test_a_driver_that_is_down_means_no_gpus(look):
    assert look("down") == {"devices": [], "utilization": {}, "memory": {}, "sm": {}, "energy": {}}


_SAMPLES = """
import json
from carrel.core.domain.serial import to_plain
from carrel.node.runner.samples import GpuWatch, Sampler
sampler = Sampler(GpuWatch({"a": "GPU-aaaa", "b": "1"}), None)
samples = [sampler.take(), sampler.take(stopped=True), sampler.take()]
print(json.dumps([to_plain(one) for one in [*samples, sampler.total()]]))
"""


def test_a_mean_leaves_out_what_others_had_meanwhile(look):
    first, stopped, last, total = look(code=_SAMPLES)
    assert stopped["gpu_utilization"] == {"a": 37.0, "b": 0.0}
    assert [one["gpu_samples"] for one in (first, stopped, last, total)] == [1, 1, 2, 2]
    assert total["gpu_mean"] == last["gpu_mean"] == {"a": 37.0, "b": 0.0}
    assert total["gpu_utilization"] == {}
    assert total["gpu_sm_mean"] == {"a": 21.5}
    assert total["gpu_memory_peak"] == {"a": 1024, "b": 0}


def test_energy_counts_from_the_first_sample_and_not_while_others_have_the_gpu(look):
    first, stopped, last, total = look(code=_SAMPLES)
    assert first["gpu_energy"] == stopped["gpu_energy"] == {"a": 0.0, "b": 0.0}
    # Two GPUs are looked at in turn, and the fake counts on with each look.
    assert total["gpu_energy"] == last["gpu_energy"] == {"a": 500.0, "b": 500.0}

"""Devices: what is found, what it is called, who holds it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.node import Device, short_type
from carrel.node.devices import DeviceLocks, GpuSampler, discover, this_node
from carrel.node.devices.discover import select_visible
from carrel.node.devices.machine import available_memory, cpu_quota, memory_limit

GIB = 1024**3


def gpu(number, uuid=None):
    return Device(uuid=uuid or f"GPU-{number}{number}{number}", index=number, type="h200", name="NVIDIA H200", memory=GIB)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "rtx-6000"),
        ("NVIDIA H200 MIG 1g.18gb", "h200-1g.18gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-3g.20gb"),
    ],
)
def test_types_are_short(name, short):
    assert short_type(name) == short


def test_simulated_devices_say_so():
    devices = discover(simulate=2, lab="ab12")
    assert [device.uuid for device in devices] == ["SIM-ab12-0", "SIM-ab12-1"]
    for device in devices:
        assert device.simulated
        assert device.type == "simulated"
        assert "simulated" in device.name
        assert device.memory == 16 * GIB
    assert discover(simulate=0) == ()


def test_a_machine_without_a_driver_has_no_devices():
    # a fresh interpreter with no place to find libnvidia-ml in, as on a machine without GPUs
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    assert discover() == ()
    with GpuSampler(["GPU-1"]) as sampler:
        assert sampler.read().memory == {}


@pytest.mark.parametrize(
    ("visible", "seen"), [("1", [1]), ("1,0", [1, 0]), ("GPU-22", [2]), ("0,9,1", [0]), ("", []), ("-1", []), ("GPU-", [])]
)
def test_an_allocation_is_respected(visible, seen):
    gpus = tuple(gpu(number) for number in range(3))
    assert [device.index for device in select_visible(gpus, visible)] == seen


def machine(root, *, cgroup, files):
    files = {"proc/self/cgroup": cgroup, "proc/meminfo": f"MemTotal:       {64 * 1024**2} kB\nMemFree: 1 kB\n", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_cgroups_v2_count(tmp_path):
    root = machine(
        tmp_path,
        cgroup="0::/a/b\n",
        files={
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            "sys/fs/cgroup/a/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
        },
    )
    assert memory_limit(root) == 8 * GIB
    assert cpu_quota(root) == 1.5
    node = this_node(name="here", root=root)
    assert node.cpus == 1
    assert node.memory == 8 * GIB - 8 * GIB // 10
    assert this_node(root=root, reserve=0).memory == 8 * GIB


def test_limits_of_cgroups_v1_count(tmp_path):
    root = machine(
        tmp_path,
        cgroup="4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
        files={
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
    )
    assert memory_limit(root) == 4 * GIB
    assert cpu_quota(root) == 0.5
    assert this_node(root=root).cpus == 1


def test_memory_that_is_available_is_the_smallest_of_what_the_machine_and_its_cgroups_have(tmp_path):
    files = {
        "proc/meminfo": "MemTotal:       67108864 kB\nMemAvailable:   33554432 kB\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/fs/cgroup/a/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/a/memory.current": f"{6 * GIB}\n",
        "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1\n",
    }
    assert available_memory(machine(tmp_path / "limited", cgroup="0::/a/b\n", files=files)) == 3 * GIB
    assert available_memory(machine(tmp_path / "other", cgroup="0::/\n", files=files)) == 32 * GIB


def test_a_machine_without_limits(tmp_path):
    root = machine(tmp_path, cgroup="0::/\n", files={"sys/fs/cgroup/cgroup.controllers": "cpu memory\n"})
    node = this_node(discover(simulate=1), name="here", root=root)
    assert node.cpus == len(os.sched_getaffinity(0))
    assert node.memory == 60 * GIB
    assert node.name == "here"
    assert len(node.devices) == 1


def test_this_machine_is_plausible():
    node = this_node()
    assert 1 <= node.cpus <= os.cpu_count()
    assert 64 * 1024**2 < node.memory < 2**50
    assert node.name


_HOLDER = """
import sys
from pathlib import Path
from pathlib import Path
from carrel.node.devices import DeviceLocks
from carrel.core.domain.node import Device
locks = DeviceLocks(Path(sys.argv[1])).take([Device(uuid=sys.argv[2], index=0, type="h200", name="H200", memory=1)])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_device_belongs_to_one_lab_at_a_time(tmp_path):
    directory = tmp_path / "locks"
    locks = DeviceLocks(directory)
    first, second = gpu(1), gpu(2)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, directory, first.uuid], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        assert locks.is_held(first)
        with pytest.raises(Unavailable, match=first.uuid):
            locks.take([second, first])
        assert not locks.is_held(second)  # all or none
        other.kill()
    assert not locks.is_held(first)
    held = locks.take([second, first])
    assert locks.is_held(first)
    for fd in held:
        os.close(fd)
    assert not locks.is_held(first)


def test_locks_are_for_every_user_of_the_machine(tmp_path):
    directory = tmp_path / "locks"
    for fd in DeviceLocks(directory).take([gpu(1)]):
        os.close(fd)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert stat.S_IMODE((directory / "GPU-111.lock").stat().st_mode) == 0o444


def test_links_in_the_place_of_locks_are_not_followed(tmp_path):
    target = tmp_path / "target"
    target.mkdir(mode=0o1777)
    (tmp_path / "locks").symlink_to(target)
    with pytest.raises(Unavailable):
        DeviceLocks(tmp_path / "locks").take([gpu(1)])
    directory = tmp_path / "sound"
    DeviceLocks(directory).is_held(gpu(2))
    (directory / "GPU-111.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(Unavailable, match="GPU-111"):
        DeviceLocks(directory).take([gpu(1)])
    assert not (tmp_path / "victim").exists()


def test_simulated_devices_need_no_lock(tmp_path):
    locks = DeviceLocks(tmp_path / "none" / "locks")
    device = discover(simulate=1)[0]
    assert locks.take([device]) == []
    assert not locks.is_held(device)

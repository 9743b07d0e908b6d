"""What a node's driver can do is found out by doing it, and said in words where it cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from suspension_rig import MIB, PATIENT, Rig, fake_driver, hung, rig

from carrel.core.domain.lease import Tier
from carrel.node.devices.driver import DriverFacts, GpuFacts
from carrel.node.suspension import CudaSuspender
from carrel.node.suspension.probe import Bench, has_open_module, probe, refusal
from carrel.testing.waiting import PATIENCE
from support.fake_driver import FakeGpu

CHECKPOINT = "cuCheckpointProcessCheckpoint"
RESTORE = "cuCheckpointProcessRestore"
GPU = GpuFacts(uuid="GPU-1", name="NVIDIA H200", memory=1024, free=1024, mig=False)


def facts(version: str = "580.65.06", **changes: Any) -> DriverFacts:
    return DriverFacts(
        version=version, gpus=(GpuFacts(**{"uuid": "GPU-1", "name": "x", "memory": 1, "free": 1, "mig": False} | changes),)
    )


def why_not(found: DriverFacts, **changes: Any) -> str:
    return refusal(found, **{"devices": None, "machine": "x86_64", "open_module": False} | changes)


@pytest.mark.gate
def test_a_driver_that_can_is_found_and_measured(tmp_path: Path) -> None:
    with rig(tmp_path, suspender={"cache": tmp_path / "kept" / "probe.json"}) as r:
        found = r.suspender.probe()
        assert (found.tier, found.message, found.driver) == (Tier.SUSPEND, "", "580.65.06")
        assert found.suspend_rate > 0
        assert found.restore_rate > 0
        assert r.on_devices() == set()  # nothing of ours stays
        kept = json.loads((tmp_path / "kept" / "probe.json").read_text())
        assert kept["managed"] == "refused"


def test_the_answer_is_kept_for_this_driver_and_these_devices(tmp_path: Path) -> None:
    cache = tmp_path / "probe.json"
    with rig(tmp_path / "a", suspender={"cache": cache}) as r:
        first = r.suspender.probe()
        r.driver.inject(CHECKPOINT, "fail")
        assert r.another_suspender(cache=cache).probe() == first
        assert len(r.driver.pending()) == 1  # nothing was tried
        kept = json.loads(cache.read_text())
        kept["key"]["boot"] = "another"
        cache.write_text(json.dumps(kept))
        again = r.another_suspender(cache=cache).probe()
        assert again.tier is Tier.HOLD
        assert r.driver.pending() == []
    with rig(tmp_path / "b", driver="590.10", suspender={"cache": cache}) as r:
        assert r.suspender.probe().driver == "590.10"
    cache.write_text("no json")
    with rig(tmp_path / "c", suspender={"cache": cache}) as r:
        assert r.suspender.probe().tier is Tier.SUSPEND


@pytest.mark.parametrize(("fault", "count"), [("", 0), ("refuse_map", 1), ("stay", 9)])
def test_whether_states_come_back_on_another_device_is_tried(tmp_path: Path, fault: str, count: int) -> None:
    with rig(tmp_path, gpus=2) as r:
        if fault:
            r.driver.inject(RESTORE, fault, count=count)
        found = r.suspender.probe()
        assert (found.tier, found.homes_move) == (Tier.SUSPEND, not fault)
        assert r.on_devices() == set()


@pytest.mark.parametrize(
    ("call", "action", "argument", "words"),
    [
        (CHECKPOINT, "error", 801, "suspending a process of our own ended as unsuspendable"),
        (CHECKPOINT, "fail", 0, "ended as lost"),
        (CHECKPOINT, "ghost", -1, "ended as unverified"),
        (RESTORE, "poison", 0, "restoring a process of our own ended as lost"),
        ("cuInit", "error", 100, "could not be started: cuInit: CUDA_ERROR_NO_DEVICE"),
        ("cuMemAlloc", "error", 2, "could not be started: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_a_driver_that_cannot_leaves_the_tier_hold_and_is_asked_again(
    tmp_path: Path, call: str, action: str, argument: int, words: str
) -> None:
    cache = tmp_path / "probe.json"
    with rig(tmp_path, suspender={"cache": cache}, limits={"verify": 0.5}) as r:
        r.driver.inject(call, action, argument)
        found = r.suspender.probe()
        assert found.tier is Tier.HOLD
        assert words in found.message
        assert not cache.exists()
        assert r.suspender.probe().tier is Tier.SUSPEND


def test_a_driver_that_brings_back_something_else_is_not_trusted(tmp_path: Path) -> None:
    with rig(tmp_path) as r:
        spoiler = Spoiling(r)
        bench = Bench(suspender=spoiler, environment=r.driver.environment(), python=_python(), start_seconds=60.0)
        found = probe(pool=r.suspender._pool, bench=bench, devices=None, cache=None, seconds=PATIENCE)
        assert found.tier is Tier.HOLD
        assert "not what it was" in found.message


class Spoiling:
    """A suspender whose driver mixes up what it keeps: one byte of the image in host memory is another one."""

    def __init__(self, r: Rig) -> None:
        self._rig = r

    def resume(self, targets: Any, *, devices: Any, size: int, **options: Any) -> Any:
        (image,) = (self._rig.driver.state / "host").iterdir()
        with image.open("r+b") as file:
            file.seek(MIB + 4711)
            byte = file.read(1)
            file.seek(MIB + 4711)
            file.write(bytes([byte[0] ^ 1]))
        return self._rig.suspender.resume(targets, devices=devices, size=size, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rig.suspender, name)


def _python() -> str:
    import sys

    return sys.executable


def test_a_full_node_cannot_be_tried(tmp_path: Path) -> None:
    cache = tmp_path / "probe.json"
    with rig(tmp_path, memory=256 * MIB, suspender={"cache": cache}) as r:
        r.specimen(size=200 * MIB)
        found = r.suspender.probe()
        assert found.tier is Tier.HOLD
        assert "No device has room" in found.message
        assert not cache.exists()


def test_a_silent_driver(tmp_path: Path) -> None:
    with rig(tmp_path, limits=hung("nvmlInitWithFlags")) as r:
        r.driver.inject("nvmlInitWithFlags", "hang", -1)
        found = r.suspender.probe()
        assert found.tier is Tier.HOLD
        assert "does not answer" in found.message


def test_no_driver(tmp_path: Path) -> None:
    suspender = CudaSuspender(environment={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, deadlines=PATIENT)
    found = suspender.probe()
    suspender.close()
    assert found.tier is Tier.HOLD
    assert found.message == "No NVIDIA driver answers on this machine (NVML)."


def test_what_is_not_even_tried(tmp_path: Path) -> None:
    assert why_not(facts()) == ""
    assert "x86-64 only; this machine is aarch64" in why_not(facts(), machine="aarch64")
    assert "MIG" in why_not(facts(mig=True))
    assert why_not(facts(mig=True), devices=["GPU-2"]) == ""
    assert "MIG" in why_not(facts(), devices=["MIG-1"])
    assert "570 and newer" in why_not(facts("550.90.07"))
    assert "hang the whole machine" in why_not(facts("595.71.05"), open_module=True)
    assert why_not(facts("595.71.05"), open_module=False) == ""
    assert "crash the process" in why_not(facts("610.57.04"))
    assert "no device" in why_not(DriverFacts(version="580.65.06", gpus=()))


def test_a_denied_driver_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with rig(tmp_path, driver="610.57.04") as r:
        r.driver.inject("cuInit", "error", 999)
        found = r.suspender.probe()
        assert (found.tier, found.driver) == (Tier.HOLD, "610.57.04")
        assert "Another version is needed" in found.message
        assert len(r.driver.pending()) == 1


def test_mig_is_seen_through_nvml(tmp_path: Path) -> None:
    gpu = FakeGpu(uuid="GPU-00000000-0000-4000-8000-000000000001", mig=True)
    with rig(tmp_path, gpus=[gpu]) as r:
        assert "MIG mode" in r.suspender.probe().message


def test_the_kind_of_kernel_module(tmp_path: Path) -> None:
    assert not has_open_module(tmp_path)
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n")
    assert not has_open_module(tmp_path)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build\n")
    assert has_open_module(tmp_path)


def test_devices_of_the_lab_only(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=2)
    suspender = CudaSuspender(environment=driver.environment(), deadlines=PATIENT, devices=[driver.uuids[1]])
    try:
        assert suspender.use().processes == {driver.uuids[1]: {}}
        assert suspender.probe().tier is Tier.SUSPEND
    finally:
        suspender.close()
    stranger = CudaSuspender(environment=driver.environment(), deadlines=PATIENT, devices=["GPU-elsewhere"])
    try:
        assert "None of this node's devices" in stranger.probe().message
    finally:
        stranger.close()

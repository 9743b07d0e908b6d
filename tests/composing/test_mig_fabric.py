"""The driver of real slices passes the contract on a fake NVML that has the rules of real GPUs."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fabric_contract import FabricContract
from mig_process import MODELS, MigMachine, sliceable
from small_fabric import SmallLab

from carrel.core.control.composing import Fabric
from carrel.core.control.compositions import node_of
from carrel.core.domain.composition import CompositionState
from carrel.core.domain.errors import Conflict, NotFound, Unavailable
from carrel.core.domain.fabric import Block, Change, Step, by_name, slice_name
from carrel.core.policy.slices import room_of
from support.fake_driver import FakeDriver, build

pytestmark = pytest.mark.slow

#: nvml.h.
NO_PERMISSION, TIMEOUT, IN_USE, LOST, INSUFFICIENT = 4, 10, 19, 15, 23
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
PART = "nvmlGpuInstanceCreateComputeInstance"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("mig"))


@pytest.fixture
def driver(libraries: FakeDriver, tmp_path: Path) -> FakeDriver:
    return libraries.another(tmp_path / "driver", gpus=[*sliceable(), *sliceable(mig=False)])


Opened = Callable[..., MigMachine]


@pytest.fixture
def opened(driver: FakeDriver, tmp_path: Path) -> Iterator[Opened]:
    """Open machines in processes of their own, which are ended after the test."""
    machines: list[MigMachine] = []

    def open_one(there: FakeDriver = driver, kind: type[MigMachine] = MigMachine, **about: Any) -> MigMachine:
        machines.append(kind(there, tmp_path / "fence", **about))
        return machines[-1]

    yield open_one
    for machine in machines:
        machine.close()


@pytest.fixture
def fabric(opened: Opened) -> MigMachine:
    return opened()


class TestMigFabric(FabricContract):
    @pytest.fixture
    def fabric(self, opened: Opened) -> Fabric:
        return opened()

    @pytest.fixture
    def reopened(self, opened: Opened) -> Callable[[], Fabric]:
        return opened


def cut(gpu: Block, profile: str, start: int) -> Change:
    return Change(step=Step.CREATE_SLICE, block=slice_name(gpu.name, profile, start), of=gpu.name, profile=profile, start=start)


def slices(fabric: Fabric) -> list[str]:
    return sorted(block.name for block in fabric.blocks() if block.of)


def the_gpu(fabric: Fabric) -> Block:
    return next(block for block in fabric.blocks() if block.profiles)


@pytest.mark.parametrize("model", MODELS)
def test_profiles_are_those_of_the_guide(libraries: FakeDriver, opened: Opened, tmp_path: Path, model: str) -> None:
    machine = opened(libraries.another(tmp_path / "another", gpus=sliceable(model)))
    gpu = the_gpu(machine)
    sizes = {"NVIDIA A100-SXM4-40GB": (5, 10, 20, 40), "NVIDIA H200": (18, 35, 71, 141)}
    one, two, four, all_of_it = sizes.get(model, (10, 20, 40, 80))
    assert {(each.name, each.compute, each.memory_slices, each.starts) for each in gpu.profiles} == {
        (f"1g.{one}gb", 1, 1, tuple(range(7))),
        (f"1g.{one}gb+me", 1, 1, tuple(range(7))),
        (f"1g.{two}gb", 1, 2, (0, 2, 4, 6)),
        (f"2g.{two}gb", 2, 2, (0, 2, 4)),
        (f"3g.{four}gb", 3, 4, (0, 4)),
        (f"4g.{four}gb", 4, 4, (0,)),
        (f"7g.{all_of_it}gb", 7, 8, (0,)),
    }
    assert (gpu.compute_slices, gpu.memory_slices) == (7, 8)


def test_only_gpus_in_mig_mode_are_there_and_a_slice_has_its_name_for_programs(fabric: MigMachine) -> None:
    gpu = the_gpu(fabric)
    fabric.do(cut(gpu, "3g.71gb", 4), fence=1)
    blocks = by_name(fabric.blocks())
    assert sorted(blocks) == ["gpu0", "gpu0/3g.71gb@4", "here-cpu"]
    made = blocks["gpu0/3g.71gb@4"]
    assert (made.title, made.uuid[:4], made.machine) == ("h200 3g.71gb", "MIG-", "here")


def test_only_the_gpus_that_were_named_are_cut(libraries: FakeDriver, opened: Opened, tmp_path: Path) -> None:
    gpus = sliceable(count=2)
    machine = opened(libraries.another(tmp_path / "another", gpus=gpus), gpus=(gpus[1].uuid,))
    assert the_gpu(machine).name == "gpu1"
    with pytest.raises(NotFound, match="gpu0"):
        machine.do(Change(step=Step.CREATE_SLICE, block="x", of="gpu0", profile="1g.18gb"), fence=1)


def test_a_slice_on_which_something_runs_stays(fabric: MigMachine, driver: FakeDriver) -> None:
    change = cut(the_gpu(fabric), "2g.35gb", 2)
    fabric.do(change, fence=1)
    driver.put_on(by_name(fabric.blocks())[change.block].uuid, 4711)
    with pytest.raises(Conflict, match="Process 4711 runs on 2g.35gb at 2"):
        fabric.do(change.back, fence=1)
    assert slices(fabric) == [change.block]


@pytest.mark.parametrize("call", [CREATE, PART])
def test_a_refusal_leaves_nothing_behind(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    gpu = the_gpu(fabric)
    driver.inject(call, "error", INSUFFICIENT)
    with pytest.raises(Conflict, match="The driver refuses it"):
        fabric.do(cut(gpu, "1g.18gb", 0), fence=1)
    assert slices(fabric) == []
    fabric.do(cut(gpu, "7g.141gb", 0), fence=1)  # all of the GPU is free


@pytest.mark.parametrize("call", [CREATE, PART])
def test_an_answer_that_was_lost_is_not_known_and_it_goes_on_from_what_is_there(
    fabric: MigMachine, driver: FakeDriver, call: str
) -> None:
    change = cut(the_gpu(fabric), "1g.18gb", 3)
    driver.inject(call, "lost", TIMEOUT)
    with pytest.raises(Unavailable, match="does not say whether it is done"):
        fabric.do(change, fence=1)
    fabric.do(change, fence=1)
    assert slices(fabric) == [change.block]
    fabric.do(change.back, fence=1)
    assert slices(fabric) == []


@pytest.mark.parametrize("call", [CREATE, PART])
def test_a_lab_that_died_in_between_goes_on(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    change = cut(the_gpu(fabric), "4g.71gb", 0)
    driver.inject(call, "die")
    with pytest.raises(Unavailable, match="died"):
        fabric.do(change, fence=1)
    assert slices(fabric) == ([] if call == CREATE else [change.block])
    fabric.do(change, fence=2)
    assert slices(fabric) == [change.block]


@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_what_was_half_destroyed_is_in_nobodys_way(fabric: MigMachine, driver: FakeDriver, call: str) -> None:
    gpu = the_gpu(fabric)
    change = cut(gpu, "1g.35gb", 2)
    fabric.do(change, fence=1)
    driver.inject(call, "die")
    with pytest.raises(Unavailable, match="died"):
        fabric.do(change.back, fence=1)
    assert slices(fabric) == []
    fabric.do(cut(gpu, "3g.71gb", 0), fence=2)
    assert slices(fabric) == ["gpu0/3g.71gb@0"]


def test_a_gpu_that_is_lost_does_not_hide_the_others(libraries: FakeDriver, opened: Opened, tmp_path: Path) -> None:
    driver = libraries.another(tmp_path / "another", gpus=sliceable(count=2))
    machine = opened(driver)
    driver.inject("nvmlDeviceGetHandleByIndex_v2", "error", LOST)
    assert [block.name for block in machine.blocks()] == ["here-cpu", "gpu1"]


def test_a_gpu_that_is_not_well_gets_no_new_slices(fabric: MigMachine, driver: FakeDriver) -> None:
    lab = SmallLab(fabric)
    one = lab.ask("1 slice 1g.18gb")
    lab.settle()
    driver.inject("nvmlDeviceGetRemappedRows", "failed", 0, count=-1)
    two = lab.ask("1 slice 1g.18gb")
    lab.settle()
    (name,) = lab.one(one).blocks
    assert lab.one(one).reason == f"{name}: a row of its memory could not be remapped"
    assert lab.state(two) is CompositionState.PENDING
    driver.clear()
    lab.settle()
    assert (lab.one(one).reason, lab.state(two)) == ("", CompositionState.RUNNING)


def test_a_slice_that_somebody_has_cut_further_is_left_alone(fabric: MigMachine, driver: FakeDriver) -> None:
    code = """
import pynvml as nvml, ctypes
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
place = nvml.c_nvmlGpuInstancePlacement_t(start=0, size=4)
profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, nvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
made = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.id, ctypes.byref(place))
nvml.nvmlGpuInstanceCreateComputeInstance(made, 0)
"""
    subprocess.run([sys.executable, "-c", code], env=driver.environment(), check=True)
    gpu = the_gpu(fabric)
    foreign = by_name(fabric.blocks())["gpu0/3g.71gb@0"]
    assert foreign.fault == "somebody has cut it further"
    with pytest.raises(Conflict, match="somebody has cut it further"):
        fabric.do(cut(gpu, "3g.71gb", 0).back, fence=1)
    lab = SmallLab(fabric)
    one, two = lab.ask("1 slice 3g.71gb"), lab.ask("1 slice 3g.71gb")
    lab.settle()
    assert lab.one(one).blocks == ("gpu0/3g.71gb@4",)
    assert lab.state(two) is CompositionState.PENDING


def test_who_may_not_cut_gpus_reads_what_to_do(fabric: MigMachine, driver: FakeDriver) -> None:
    driver.inject("nvmlDeviceGetGpuInstances", "error", NO_PERMISSION, count=-1)
    with pytest.raises(Unavailable, match="Run the lab as root"):
        fabric.blocks()


def test_without_a_driver_the_lab_is_told_so(libraries: FakeDriver, opened: Opened, tmp_path: Path) -> None:
    driver = libraries.another(tmp_path / "another", gpus=sliceable())
    (driver.state / "config").unlink()
    machine = opened(driver)
    with pytest.raises(Unavailable, match="No NVIDIA driver answers"):
        machine.blocks()


@pytest.mark.parametrize("model", MODELS)
def test_random_creations_follow_the_rules_of_the_gpu(libraries: FakeDriver, opened: Opened, tmp_path: Path, model: str) -> None:
    """Slices that should fit can be made, and others are refused."""
    chance = random.Random(1)
    machine = opened(libraries.another(tmp_path / "another", gpus=sliceable(model)))
    gpu, there, refused = the_gpu(machine), list[Block](), 0
    for _ in range(150):
        profile = chance.choice(gpu.profiles)
        start = chance.choice(profile.starts)
        change = cut(gpu, profile.name, start)
        me_is_there = any("+me" in block.profile for block in there)
        fits = room_of(gpu, there).takes(profile, start) and not ("+me" in profile.name and me_is_there)
        if there and chance.random() < 0.3:
            one = chance.choice(there)
            machine.do(cut(gpu, one.profile, one.start).back, fence=1)
        elif change.block in by_name(there) or fits:
            machine.do(change, fence=1)
        else:
            refused += 1
            with pytest.raises(Conflict):
                machine.do(change, fence=1)
        there = [block for block in machine.blocks() if block.of]
        assert room_of(gpu, there).compute >= 0
    assert 20 < refused < 120


SIZES = ["1 slice 1g.18gb", "2 slice 1g.18gb", "1 slice 1g.35gb", "1 slice 2g.35gb", "2 slice 3g.71gb", "1 slice 7g.141gb"]
CALLS = [CREATE, PART, "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"]


@dataclass
class Watched(MigMachine):
    """Nobody destroys a slice that is in use."""

    used: Callable[[], set[str]] = set

    def do(self, change: Change, *, fence: int) -> None:
        assert change.step is Step.CREATE_SLICE or change.block not in self.used()
        super().do(change, fence=fence)


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_never_move_a_slice_on_which_something_runs(
    libraries: FakeDriver, opened: Opened, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    driver = libraries.another(tmp_path / "another", gpus=sliceable(count=2))
    machine = opened(driver, Watched)
    lab, running = SmallLab(machine), dict[int, dict[str, str]]()
    machine.used = lambda: {name for one in lab.records.all() if one.state is CompositionState.RUNNING for name in one.blocks}
    for _ in range(60):
        if chance.random() < 0.4:
            lab.ask(chance.choice(SIZES), time=chance.choice([20, 100, 1000]))
        if chance.random() < 0.3:
            what = chance.choice([("error", INSUFFICIENT), ("error", IN_USE), ("lost", TIMEOUT), ("die", 0.0)])
            driver.inject(chance.choice(CALLS), *what)
        try:
            lab.composer.turn()
        except Unavailable:  # the lab died with its process
            lab.start_again()
        lab.now += chance.choice([0, 1, 6, 30])
        there = by_name(machine.blocks())
        for one in lab.records.all():
            if one.state is CompositionState.RUNNING:
                mine = {name: there[name].uuid for name in one.blocks}
                assert running.setdefault(one.id, mine) == mine
        names = [name for one in lab.composer.living() for name in one.blocks if one.state is not CompositionState.PENDING]
        assert len(names) == len(set(names))
    driver.clear()
    for _ in range(500):
        lab.now += 50
        lab.composer.turn()
        if not lab.composer.living():
            break
    assert not lab.composer.living()
    assert running


def test_a_gpu_in_mig_mode_is_to_be_had_in_slices_alone(fabric: MigMachine) -> None:
    lab = SmallLab(fabric)
    whole, largest = lab.ask("1 gpu"), lab.ask("1 slice 7g.141gb")
    lab.settle()
    assert lab.state(whole) is not CompositionState.RUNNING
    assert lab.one(largest).blocks == ("gpu0/7g.141gb@0",)
    node = node_of(lab.one(largest), by_name(fabric.blocks()))
    (device,) = node.devices
    assert (device.simulated, device.type, device.uuid[:4]) == (False, "h200-7g.141gb", "MIG-")
